"""Rotary encoding of points in a scene: an even share of the channels for each axis, distances counted in voxels.

    angle_i = (x_a / voxel) · θ^(−2i / d_a),   d_a channels on axis a; what is left of d goes to the first axes, two at a time

The form that point transformers use (the shares are 3DETR's); no one paper's code. Coordinates are float32 as they come:
subtract one and the same `vispe.positions.boxes.scene_centre` from all points of a scene, queries and keys alike, so that
angles keep their digits. On a grid the unit is a cell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Positions, Resize
from .base import Card
from .coord_functions import even_shares
from .extrapolation import Series
from .rotary import Rotary, positive


class RopePoints(Rotary):
    """Rotary frequencies in voxels.

    Args:
        theta: base of the frequencies.
        voxel: length of a voxel in coordinate units (metres).
        resize: see RopeAxial.
    """

    card = Card(
        title="Point-cloud RoPE",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="angle_i = p / voxel · theta^(-2i/d_a)",
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 3,
        theta: float = 10000.0,
        voxel: float = 1.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.shares = even_shares(self.head_dim, axes)
        if min(self.shares) < 2:
            raise ValueError(
                f"rope_points: a head of {self.head_dim} channels has no pair for each of {axes} axes; head_dim must be at "
                f"least {2 * axes}: change dim or num_heads."
            )
        self.theta, self.voxel = positive("rope_points", "theta", theta), positive("rope_points", "voxel", voxel)

    def frequencies(self) -> Tensor:
        rows = [self.theta ** -(torch.arange(n // 2, dtype=torch.float32) / (n // 2))[None] for n in self.shares]
        return torch.block_diag(*rows)[None]

    def series(self) -> tuple[Series, ...]:
        return tuple(Series(self.theta, n // 2) for n in self.shares)

    def cell(self, train: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(c / self.voxel for c in super().cell(train))

    def places(self, pos: Positions) -> Tensor:
        return super().places(pos) / self.voxel
