"""Wavelengths of rotary encodings, layer by layer, against the grid."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.vit import EncodedVisionTransformer


@dataclass(frozen=True)
class Wavelengths:
    """Of one member of the model's encoding.

    Attributes:
        patches: (L, H or 1, P) wavelengths in patches, inf for a pair that does not turn; L = 1 when layers share them.
        grid: (H, W) patches.
        longer: (L, H or 1) share of pairs that make less than one turn over the longest side.
    """

    patches: Tensor
    grid: tuple[int, int]
    longer: Tensor


@torch.no_grad()
def wavelengths(host: EncodedVisionTransformer, grid: tuple[int, int]) -> dict[str, Wavelengths]:
    """By the name of the member; empty for an encoding without frequencies."""
    layers: dict[str, list[Tensor]] = defaultdict(list)
    for name, encoding in host.encoding.encodings():
        waves = encoding.wavelengths(grid)
        if waves is not None:
            layers[name.split(".")[0]].append(waves.float())
    found = {name: torch.stack(waves) for name, waves in layers.items()}
    return {name: Wavelengths(w, tuple(grid), (w > max(grid)).float().mean(-1)) for name, w in found.items()}
