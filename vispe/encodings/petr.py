"""PETR: 3-D points along the ray of every image cell, through a small network, added to the tokens that are keys.

    x_n ← x_n + W2 relu(W1 logit(frustum_n)) + A2 relu(A1 sine(camera, row, column))

frustum_n: D points at growing depths in front of cell n, in fractions of a box of the world (`frustum`). Papers: Liu et al.,
PETR, ECCV 2022, arXiv 2203.05625; Liu et al., PETRv2, arXiv 2206.01256; Wang et al., StreamPETR, ICCV 2023,
arXiv 2303.11926. Code: megvii-research/PETR@f7525f9, exiawsh/StreamPETR@95f6470. PETRv2's previous frame is V more cameras,
whose world_to_camera includes the motion of the car; `guided` is its gate by the features. StreamPETR's form is
`cell="centre", multiview=False, guided=True` with `StreamMemory` (petr_stream.py).

Only keys get the embedding in a detector, values do not: a host does `key = x + petr.embedding(x, ctx)`, `value = x`, ahead of
its projections (the `qk` hook comes behind them). The `tokens` hook is for hosts that have one stream. Queries:
`ReferencePoints`. The world should be the car's frame: the embedding is absolute.
Differences: the number of a camera and its cell are counted from positions; images that are padded go through `context` with
`view_counts`. Cell corners are PETR's (half a cell off the centre, 8 pixels at stride 16); `cell="centre"` is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from ..positions.rays import Spacing, frustum_depths
from .base import Card, Encoding, at_least_float32
from .frustum import (
    RANGE,
    Cell,
    cell_pixels,
    check_range,
    image_to_world,
    inverse_sigmoid,
    point_sine,
    ray_points,
    run_float32,
    two_layers,
    view_sine,
)


@dataclass(frozen=True)
class PetrContext:
    """The embedding of points and that of (camera, row, column), (1 or B, prefix + N, C) float32; the second may be None."""

    points: Tensor
    views: Tensor | None


class Petr(Encoding):
    """Frustum points of every cell.

    Args:
        depth_num: D, points a ray.
        depth_start: metres to the first one; the last bin ends at the position range's x maximum.
        spacing: "lid" (growing steps), "uniform" or "log".
        position_range: minima and maxima of x, y, z, metres. Points outside are clamped to the border.
        cell: "corner" of each cell, as released, or its "centre".
        multiview: add the sine of camera, row and column. Its camera axis sees the order of cameras.
        guided: gate the embedding of points by the tokens, as PETRv2 does.

    Attributes:
        position_encoder, adapt_pos3d: networks with a hidden layer of 4C units.
        fpe: conv_reduce and conv_expand of the gate.
    """

    card = Card(
        title="PETR",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + MLP(logit(frustum points of cell n)) + MLP(sine(view, row, col))",
        needs=("grid", "cameras"),
        paper="https://arxiv.org/abs/2203.05625",
        year=2022,
        code="megvii-research/PETR",
        licence="Apache-2.0",
        cases=8,
    )

    name = "petr"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        depth_num: int = 64,
        depth_start: float = 1.0,
        spacing: Spacing = "lid",
        position_range: tuple[float, ...] = RANGE,
        cell: Cell = "corner",
        multiview: bool = True,
        guided: bool = False,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if multiview and dim % 4:
            raise ValueError(f"petr: dim must be a multiple of 4 with multiview=True, got dim={dim}; or pass multiview=False.")
        if cell not in ("corner", "centre"):
            raise ValueError(f"petr: cell must be 'corner' or 'centre', got {cell!r}.")
        self.position_range = check_range("petr", position_range)
        frustum_depths(depth_num, depth_start, self.position_range[3], spacing=spacing)  # refuses what does not fit
        self.depth_num, self.depth_start, self.spacing, self.cell = depth_num, depth_start, spacing, cell
        self.position_encoder = two_layers(3 * depth_num, 4 * dim, dim)
        self.adapt_pos3d = two_layers(3 * dim // 2, 4 * dim, dim) if multiview else None
        self.fpe = FeatureGate(dim) if guided else None

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    @torch.no_grad()
    def set_identity(self) -> bool:
        for net in (self.position_encoder, self.adapt_pos3d):
            if net is not None:
                net[-1].weight.zero_()
                net[-1].bias.zero_()
        return True

    def frustum(self, pos: Positions) -> Tensor:
        """Normalised points (1 or B, N, D, 3) of every cell, not clamped."""
        check_cameras(self.name, self, pos)
        back = pos.of_tokens(image_to_world(pos.world_to_camera, pos.intrinsics))  # (B, N, 4, 4)
        pixels = cell_pixels(pos.coords, pos.extent, pos.image_size, self.cell)
        return ray_points(back, pixels, self.depths(back.device), self.position_range)

    def depths(self, device: torch.device | None = None) -> Tensor:
        """(D,) metres."""
        far = self.position_range[3]
        return frustum_depths(self.depth_num, self.depth_start, far, spacing=self.spacing, device=device)

    def prepare(self, pos: Positions) -> PetrContext:
        points = self.frustum(pos)
        row, col = pos.coords.unbind(-1)
        counts = torch.stack((pos.view.to(row) + row.new_zeros(row.shape), row, col), dim=-1) + 1
        lasts = torch.stack([torch.ones_like(row) * n for n in (pos.num_views, *pos.extent)], dim=-1)  # n may be symbolic
        return self.context(points, counts, lasts, prefix=pos.prefix)

    def context(self, points: Tensor, counts: Tensor, lasts: Tensor, *, prefix: int = 0) -> PetrContext:
        """The context of normalised points (B, N, D, 3) and of counted cells (B, N, 3): camera, row, column (`view_counts`)."""
        embedded = run_float32(self.position_encoder, inverse_sigmoid(points).flatten(-2))
        views = None
        if self.adapt_pos3d is not None:
            views = run_float32(self.adapt_pos3d, view_sine(counts, lasts, self.dim // 2))
            views = F.pad(views, (0, 0, prefix, 0))
        return PetrContext(F.pad(embedded, (0, 0, prefix, 0)), views)

    def embedding(self, x: Tensor, ctx: PetrContext) -> Tensor:
        """What keys get, (1 or B, prefix + N, C); x (B, prefix + N, C) are the features (read by the gate alone)."""
        points = ctx.points if self.fpe is None else self.fpe(ctx.points, x)
        return points if ctx.views is None else points + ctx.views

    def tokens(self, x: Tensor, ctx: PetrContext) -> Tensor:
        return x + self.embedding(x, ctx).to(x.dtype)


class FeatureGate(nn.Module):
    """PETRv2's and StreamPETR's gate: embedding · sigmoid(W2 relu(W1 features))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv_reduce, self.conv_expand = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, embedding: Tensor, features: Tensor) -> Tensor:
        gate = self.conv_expand(self.conv_reduce(features).relu())
        return embedding * gate.float().sigmoid().to(embedding.dtype)


class ReferencePoints(nn.Module):
    """The query side: learned anchor points, and an embedding of any points in the same normalised box.

    Args:
        dim: C, a multiple of 4.
        num_queries: anchors, uniform in [0, 1]³ at the start.
        space: "unit" embeds normalised points (PETR), "logit" their inverse sigmoid (3DPPE).

    Attributes:
        reference_points: Embedding (queries, 3), used as it is.
        query_embedding: network 3C/2 → C → C.
    """

    def __init__(self, dim: int, num_queries: int = 900, *, space: Literal["unit", "logit"] = "unit") -> None:
        super().__init__()
        if dim % 4 or space not in ("unit", "logit"):
            raise ValueError(f"ReferencePoints: dim must be a multiple of 4 and space 'unit' or 'logit', got {dim}, {space!r}.")
        self.dim, self.space = dim, space
        self.reference_points = nn.Embedding(num_queries, 3)
        self.query_embedding = two_layers(3 * dim // 2, dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.reference_points.weight)
        self.query_embedding[0].reset_parameters()
        self.query_embedding[2].reset_parameters()

    def embed(self, points: Tensor) -> Tensor:
        """(..., C) float32 of normalised points (..., 3)."""
        points = points.to(at_least_float32(points.dtype))
        points = inverse_sigmoid(points) if self.space == "logit" else points
        return run_float32(self.query_embedding, point_sine(points, self.dim // 2))

    def forward(self) -> tuple[Tensor, Tensor]:
        """The anchors (queries, 3) and their embedding (queries, C)."""
        return self.reference_points.weight, self.embed(self.reference_points.weight)


def check_cameras(name: str, encoding: Encoding, pos: Positions) -> None:
    """Refuse positions that carry no cameras with intrinsics."""
    encoding.check_axes(pos)
    if pos.units == "custom":
        raise ValueError(f"{name}: needs the cells of images (camera_grid), got custom coordinates without pixels.")
    if getattr(pos, "intrinsics", None) is None:
        raise ValueError(
            f"{name}: these positions carry no cameras with intrinsics; build them with camera_grid(height, width, "
            f"world_to_camera, intrinsics, image_size), or add them by with_cameras."
        )
