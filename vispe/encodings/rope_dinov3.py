"""DINOv3's axial RoPE on normalised coordinates, with shift, jitter and rescale of the coordinates in training.

    angle_i = 2π · c_axis / period_i,  c in [−1, 1],  period_i = base^(i / n),  channel pairs (i, i + d/2), rows first

Paper: Siméoni et al., DINOv3, 2025, arXiv 2508.10104, section 3.2. Code: facebookresearch/dinov3 at 6876159
(layers/rope_position_encoding.py). Base 100 and per-axis normalisation as in the released models; prefix not rotated.
Chosen here: periods are numbers of the configuration, not a buffer (released checkpoints hold them rounded to bfloat16).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..positions import Positions, Resize
from .base import Card
from .extrapolation import Series
from .rotary import Rotary, block_frequencies, positive, split_pairs

_UNITS = {"separate": "centered", "min": "centered_min", "max": "centered_max"}


class RopeDinov3(Rotary):
    """Fixed axial rotary frequencies over an image that spans [−1, 1] at every size.

    Args:
        base: periods are base^(i/n); None takes `min_period` to `max_period`, geometrically spaced.
        min_period, max_period: first and last period when base is None, in the units of the coordinates.
        normalize: divide by each side ("separate"), or both axes by the shorter ("min") or longer ("max") side.
        shift: in training, add U(−shift, shift) to each axis (0.0: off).
        jitter: in training, multiply each axis by exp U(−ln jitter, ln jitter) (1.0: off).
        rescale: in training, multiply both axes by one exp U(−ln rescale, ln rescale); the released models used 2.0.
        resize: "rescale" (the paper's): every image spans [−1, 1]; "extend": one patch keeps its size in training.
    """

    card = Card(
        title="DINOv3 RoPE",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="angle_i = 2 pi c / base^(i/n), c in [-1, 1]",
        paper="https://arxiv.org/abs/2508.10104",
        year=2025,
        code="facebookresearch/dinov3",
        licence="DINOv3 License",
        cases=6,
        relative=True,
    )
    layout = "half"
    default_resize = "rescale"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        base: float | None = 100.0,
        min_period: float | None = None,
        max_period: float | None = None,
        normalize: Literal["separate", "min", "max"] = "separate",
        shift: float = 0.0,
        jitter: float = 1.0,
        rescale: float = 1.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = split_pairs("rope_dinov3", self.head_dim, axes)
        if (base is None) == (min_period is None) or (min_period is None) != (max_period is None):
            raise ValueError(
                f"rope_dinov3: give either base or both min_period and max_period, got base={base}, "
                f"min_period={min_period}, max_period={max_period}; with periods pass base=None."
            )
        if normalize not in _UNITS:
            raise ValueError(f"rope_dinov3: normalize must be one of {tuple(_UNITS)}, got {normalize!r}.")
        check_augmentation("rope_dinov3", shift, jitter, rescale)
        self.base = base if base is None else positive("rope_dinov3", "base", base)
        self.min_period, self.max_period = min_period, max_period
        self.shift, self.jitter, self.rescale = shift, jitter, rescale
        self.units = _UNITS[normalize]

    def frequencies(self) -> Tensor:
        if self.base is None:
            spread = self.max_period / self.min_period
            periods = self.max_period * spread ** (torch.linspace(0, 1, self.pairs) - 1)
        else:
            periods = self.base ** (torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        return block_frequencies(2 * math.pi / periods, self.axes)

    def series(self) -> tuple[Series, ...]:
        if self.base is not None:
            return (Series(self.base, self.pairs, 2 * math.pi),) * self.axes
        theta = (self.max_period / self.min_period) ** (self.pairs / max(self.pairs - 1, 1))
        return (Series(theta, self.pairs, 2 * math.pi / self.min_period),) * self.axes

    def coordinates(self, pos: Positions) -> Tensor:
        coords = super().coordinates(pos)
        if not self.training or (self.shift == 0 and self.jitter == 1 and self.rescale == 1):
            return coords
        return augment_at_random(coords, shift=self.shift, jitter=self.jitter, rescale=self.rescale)


def check_augmentation(name: str, shift: float, jitter: float, rescale: float) -> None:
    """Refuse ranges that `augment_at_random` cannot draw from."""
    if shift < 0 or jitter < 1 or rescale < 1:
        raise ValueError(f"{name}: needs shift >= 0, jitter >= 1, rescale >= 1, got {shift}, {jitter}, {rescale}.")


def augment_at_random(coords: Tensor, *, shift: float, jitter: float, rescale: float) -> Tensor:
    """One draw for all: U(−shift, shift) and exp U(−ln jitter, ln jitter) an axis, one exp U(−ln rescale, ln rescale)."""
    draw = torch.rand(3, coords.shape[-1], device=coords.device) * 2 - 1
    return augment(
        coords,
        shift=draw[0] * shift,
        jitter=torch.exp(draw[1] * math.log(jitter)),
        rescale=torch.exp(draw[2, :1] * math.log(rescale)),
    )


def augment(coords: Tensor, *, shift: Tensor, jitter: Tensor, rescale: Tensor) -> Tensor:
    """(coords + shift) · jitter · rescale; shift and jitter (axes,), rescale (1,)."""
    return (coords + shift) * jitter * rescale
