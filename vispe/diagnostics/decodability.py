"""Where is this token? What a linear probe reads from the features of each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.vit import EncodedVisionTransformer
from .host import patches_of, walk
from .probe import probe, r2

FEWEST = 4


@dataclass(frozen=True)
class Decodability:
    """R² of row and column at each place of the model, (places, 2), on images that the probe has not seen.

    The first place, "patches", comes before any encoding: what the images themselves tell.
    """

    places: tuple[str, ...]
    r2: Tensor


def image_parts(count: int) -> Tensor:
    """Half of the images to fit, a quarter to choose the penalty, a quarter to test; (count,)."""
    if count < FEWEST:
        raise ValueError(f"decodability: needs at least {FEWEST} images to fit, choose and test on, got {count}.")
    return torch.tensor([(0, 1, 0, 2)[i % 4] for i in range(count)])


def position_r2(tokens: Tensor, coords: Tensor) -> Tensor:
    """R² (axes,) of the coordinates (N, axes) from tokens (B, N, C), split by images."""
    batch, count, _ = tokens.shape
    parts = image_parts(batch)[:, None].expand(batch, count).flatten()
    target = coords.expand(batch, -1, -1).flatten(0, 1)
    return r2(*probe(tokens.flatten(0, 1).cpu(), target.cpu(), parts)).float()


@torch.no_grad()
def decodability(host: EncodedVisionTransformer, images: Tensor, *, tokens: int = 6000) -> Decodability:
    """Row and column from the tokens of every layer by ridge regression (eval mode).

    After Islam et al., How Much Position Information Do CNNs Encode?, arXiv 2001.08248, with a closed-form probe.

    Args:
        images: (B, C, height, width), at least 4.
        tokens: read at most so many; of larger sets every few tokens of each image.
    """
    patches, pos = patches_of(host, images)
    stride = max(1, -(-patches.shape[0] * patches.shape[1] // tokens))
    if pos.grid is not None and stride > 1 and pos.grid[1] % stride == 0:
        stride += 1  # a divisor of the width would read some columns only
    places, found = [], []
    for step in walk(host, patches, pos):
        x = step.tokens[:, -patches.shape[1] :][:, ::stride]
        places.append(step.name)
        found.append(position_r2(x, pos.coords[0, ::stride]))
    return Decodability(tuple(places), torch.stack(found))
