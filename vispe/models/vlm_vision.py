"""How pictures become tokens of a language model's decoder: a ViT of vispe, whole or by windows, and a projector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import timm
import torch
from torch import Tensor, nn

from . import vit_zoo


class VisionTokens(nn.Module):
    """A vision tower and a projector of two layers.

    Args:
        vision, vision_kwargs: a vision transformer of vispe in timm, and its arguments.
        dim: channels of the decoder.
        window: px of the squares that the tower sees, each by itself; None for whole pictures.
        merge: side of the square of tokens that become one.
    """

    def __init__(
        self, vision: str, dim: int, *, vision_kwargs: dict[str, Any] | None = None, window: int | None = None, merge: int = 1
    ) -> None:
        super().__init__()
        if not timm.is_model(vision) or not timm.models.model_entrypoint(vision).__module__.startswith(vit_zoo.__name__):
            raise ValueError(f"VisionLanguageModel: vision must be a ViT of vispe, e.g. 'vit_ti_rope_axial', got {vision!r}.")
        self.tower = timm.create_model(vision, **{"fc_norm": False, **(vision_kwargs or {}), "num_classes": 0})
        patch = self.tower.patch_embed.patch_size
        if window is not None and (window < 1 or any(window % p for p in patch)):
            raise ValueError(f"VisionLanguageModel: vision_window={window} must be a multiple of {patch} px.")
        self.window, self.merge = window, merge
        seen = self.tower.embed_dim * merge**2
        self.projector = nn.Sequential(nn.LayerNorm(seen), nn.Linear(seen, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Pictures (n, C, H, W) of any sizes to tokens (n, h, w, dim).

        Whatever has one size goes through the tower at once: pictures, or windows of all of them.
        """
        parts, grids = list(pictures), [(1, 1)] * len(pictures)
        if self.window is not None:
            grids = [self._windows(p) for p in pictures]
            parts = [crops(p, self.window) for p in pictures]
        by_size: dict[tuple[int, ...], list[int]] = {}
        for number, part in enumerate(parts):
            by_size.setdefault(tuple(part.shape[1:]), []).append(number)
        maps: dict[int, Tensor] = {}
        for size, members in by_size.items():
            inner = tuple(self.tower.patch_embed.dynamic_feat_size(size[1:]))
            x = self.tower.forward_features(torch.cat([parts[n] for n in members]))[:, self.tower.num_prefix_tokens :]
            for n, tokens in zip(members, x.split([len(parts[n]) for n in members])):
                maps[n] = merged(joined(tokens, grids[n], inner), self.merge)
        ordered = [maps[n] for n in range(len(parts))]
        flat = self.projector(torch.cat([m.flatten(0, 2) for m in ordered])).split([m[..., 0].numel() for m in ordered])
        return [tokens.unflatten(0, m.shape[:3]) for tokens, m in zip(flat, ordered)]

    def _windows(self, pictures: Tensor) -> tuple[int, int]:
        if any(side % self.window for side in pictures.shape[-2:]):
            raise ValueError(f"VisionLanguageModel: sides {tuple(pictures.shape[-2:])} px do not divide by {self.window}.")
        return pictures.shape[-2] // self.window, pictures.shape[-1] // self.window


def crops(pictures: Tensor, window: int) -> Tensor:
    """(n, C, H, W) cut into squares, row-major: (n · H/window · W/window, C, window, window)."""
    high, wide = (side // window for side in pictures.shape[-2:])
    cut = pictures.unflatten(3, (wide, window)).unflatten(2, (high, window))  # (n, C, h, s, w, s)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def joined(tokens: Tensor, grid: tuple[int, int], inner: tuple[int, int]) -> Tensor:
    """Tokens of crops (n · h · w, a · b, C) as maps of the pictures (n, h · a, w · b, C)."""
    maps = tokens.unflatten(0, (-1, *grid)).unflatten(3, inner)  # (n, h, w, a, b, C)
    return maps.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def merged(maps: Tensor, side: int) -> Tensor:
    """Squares of tokens joined along channels: (n, h, w, C) to (n, h / side, w / side, side² · C)."""
    if any(n % side for n in maps.shape[1:3]):
        raise ValueError(f"VisionLanguageModel: a grid of {tuple(maps.shape[1:3])} tokens does not merge {side} by {side}.")
    return maps.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3).flatten(3) if side > 1 else maps
