"""How much the output changes when an image, or only the positions of its tokens, are shifted or scaled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.vit import EncodedVisionTransformer
from ..positions import Positions
from .attention import centred, walk_logits
from .host import patches_of, relative_error, run


@dataclass(frozen=True)
class Change:
    """Relative errors ‖changed − original‖ / ‖original‖ of one change.

    Attributes:
        features: of the patch features, brought back into place.
        logits: of the class logits (pooled features of a model without a classifier).
        scores: of block 0's attention logits from patch to patch, each query's mean taken off; None when scaled.
    """

    features: float
    logits: float
    scores: float | None = None


@torch.no_grad()
def positions_shifted(host: EncodedVisionTransformer, images: Tensor) -> Change:
    """The same tokens at the top left and at the bottom right of the grid: no pixel changes, only where they are said to be.

    The tokens are a window of two thirds of the grid on each axis. Relative encodings leave patch-to-patch scores as they were;
    class and register tokens, which have no place, may still see a difference.
    """
    patches, pos, start, size = _window(host, images)
    tokens = patches.unflatten(1, pos.grid)[:, : size[0], : size[1]].flatten(1, 2)
    return _compare(host, (tokens, pos.crop((0, 0), size)), (tokens, pos.crop(start, size)))


@torch.no_grad()
def input_shifted(host: EncodedVisionTransformer, images: Tensor) -> Change:
    """A window of the image pasted on the mean colour, top left and then bottom right, whole patches apart."""
    patches, pos, start, size = _window(host, images)
    cell = host.patch_embed.patch_size
    window = images[:, :, : size[0] * cell[0], : size[1] * cell[1]]
    made = []
    for row, col in ((0, 0), start):
        canvas = torch.zeros_like(images)
        canvas[:, :, row * cell[0] : (row + size[0]) * cell[0], col * cell[1] : (col + size[1]) * cell[1]] = window
        features, logits = run(host, *patches_of(host, canvas))
        made.append((features.unflatten(1, pos.grid)[:, row : row + size[0], col : col + size[1]], logits))
    (f0, l0), (f1, l1) = made
    return Change(relative_error(f1, f0), relative_error(l1, l0))


@torch.no_grad()
def positions_scaled(host: EncodedVisionTransformer, images: Tensor, *, factor: int = 2) -> Change:
    """Every token repeated factor x factor times on a grid that much larger; features averaged back.

    Repeated keys weigh alike, so a model that cares neither for positions nor for the number of patches would answer the same.
    """
    patches, pos = patches_of(host, images)
    grid = (pos.grid[0] * factor, pos.grid[1] * factor)
    large = patches.unflatten(1, pos.grid).repeat_interleave(factor, 1).repeat_interleave(factor, 2).flatten(1, 2)
    f0, l0 = run(host, patches, pos)
    f1, l1 = run(host, large, host.positions(*grid, device=patches.device))
    return Change(relative_error(_pooled(f1, grid, factor), f0), relative_error(l1, l0))


@torch.no_grad()
def input_scaled(host: EncodedVisionTransformer, images: Tensor, *, factor: int = 2) -> Change:
    """The image enlarged bilinearly; features averaged back. Patches then show less each: part of the error is content."""
    patches, pos = patches_of(host, images)
    f0, l0 = run(host, patches, pos)
    large = F.interpolate(images, scale_factor=factor, mode="bilinear")
    more, positions = patches_of(host, large)
    f1, l1 = run(host, more, positions)
    return Change(relative_error(_pooled(f1, positions.grid, factor), f0), relative_error(l1, l0))


def equivariance(host: EncodedVisionTransformer, images: Tensor) -> dict[str, Change]:
    """All four by name (eval mode). The two of positions alone are left out for encodings that read the image."""
    found = {"input shifted": input_shifted(host, images), "input scaled x2": input_scaled(host, images)}
    if host.encoding.wants_image:
        return found
    only = {"positions shifted": positions_shifted(host, images), "positions scaled x2": positions_scaled(host, images)}
    return only | found


def _window(
    host: EncodedVisionTransformer, images: Tensor
) -> tuple[Tensor, Positions, tuple[int, int], tuple[int, int]]:
    patches, pos = patches_of(host, images)
    if max(pos.grid) < 2:
        raise ValueError(f"equivariance: nothing can be shifted on a grid of {pos.grid} patches; use larger images.")
    size = tuple(max(1, 2 * n // 3) for n in pos.grid)
    return patches, pos, tuple(n - s for n, s in zip(pos.grid, size)), size


def _compare(host: EncodedVisionTransformer, one: tuple[Tensor, Positions], other: tuple[Tensor, Positions]) -> Change:
    (f0, l0), (f1, l1) = run(host, *one), run(host, *other)
    first, second = (_scores(host, *side) for side in (one, other))
    return Change(relative_error(f1, f0), relative_error(l1, l0), relative_error(second, first))


def _scores(host: EncodedVisionTransformer, tokens: Tensor, pos: Positions) -> Tensor:
    return centred(next(walk_logits(host, tokens, pos))[..., pos.prefix :, pos.prefix :])


def _pooled(features: Tensor, grid: tuple[int, int], factor: int) -> Tensor:
    image = features.float().transpose(1, 2).unflatten(2, grid)
    return F.avg_pool2d(image, factor).flatten(2).transpose(1, 2)
