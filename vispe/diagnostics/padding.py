"""The pattern that a constant image leaves in the features: what padding (or an absolute encoding) tells of places."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.vit import EncodedVisionTransformer
from .host import patches_of, walk


@dataclass(frozen=True)
class PaddingPattern:
    """Response to an image of one value.

    Attributes:
        places: "patches", "input", "block 0", ...
        maps: (places, H, W) distance of each token from the mean token, divided by the tokens' root mean square norm.
        strength: (places,) root mean square of the map: 0 where every place looks alike.
    """

    places: tuple[str, ...]
    maps: Tensor
    strength: Tensor


@torch.no_grad()
def padding_pattern(host: EncodedVisionTransformer, size: tuple[int, int], *, value: float = 0.0) -> PaddingPattern:
    """Pattern of a constant image of `size` pixels (eval mode), whose content is the same at every place.

    A convolutional encoding without any other positions gets its pattern from the zeros beyond the border alone: the
    position-information pattern from padding of Lin et al., arXiv 2206.01202, here for one constant image instead of a
    difference to unpadded features over many. Added vectors (a learned table) leave a pattern of their own. Without class and
    register tokens, positions that act on scores alone leave none: all values are equal.

    Args:
        value: of the image, after normalisation; 0 is the mean colour.
    """
    proj = host.patch_embed.proj
    image = torch.full((1, proj.weight.shape[1], *size), value, device=proj.weight.device, dtype=proj.weight.dtype)
    patches, pos = patches_of(host, image)
    places, maps = [], []
    for step in walk(host, patches, pos):
        x = step.tokens[0, -patches.shape[1] :].float()  # (N, C)
        away = (x - x.mean(0)).norm(dim=-1)
        maps.append((away / x.norm(dim=-1).square().mean().sqrt().clamp_min(1e-12)).reshape(pos.grid))
        places.append(step.name)
    found = torch.stack(maps)
    return PaddingPattern(tuple(places), found, found.square().mean((1, 2)).sqrt())
