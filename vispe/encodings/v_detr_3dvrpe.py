"""3D vertex relative positions: a bias from where a point lies to each of the eight corners of a query's box.

    logit_ij += Σ_v T_v[f(c_iv − p_j)],   f(δ) = sign(δ) log2(|δ| · s + 1) / (3 m),   T_v = MLP_v on a grid of [−m, m]³

Paper: Shen et al., V-DETR: DETR with Vertex Relative Position Encoding for 3D Object Detection, ICLR 2024,
arXiv 2308.04409. Code: V-DETR/V-DETR@c2a1c45. s = 512, m = 4, 10 entries a side: |δ| = 8 m is the border (f = 1), beyond
which the bias fades to 0 in half an entry. Released tables are read with their axes in the order z, y, x (`F.grid_sample`
takes the offset along x for the last axis): kept, since weights depend on it. `boxes="turned"` measures offsets along the
sides of each box by its yaw. There keys and values have one head for all query heads (the host's business), and masked
logits are −100 before the softmax instead of −inf.
Chosen here: any number of axes (2^axes corners); a token without a box is a box with sides of `cell`, so that it works between
patches too; pairs with prefix tokens get 0. Cost: 2^axes lookups for every pair; tables are made once a forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from ..positions.boxes import box_corners
from .base import Card, Encoding, at_least_float32
from .rotary import positive


@dataclass(frozen=True)
class VertexContext:
    """Points (B, N, axes), corners (B, N, 2^axes, axes), yaw (B, N), tables (2^axes, H, n, ..., n); B may be 1."""

    points: Tensor
    vertices: Tensor | None
    angle: Tensor | None
    tables: Tensor
    prefix: int


def log_offsets(delta: Tensor, log_scale: float, limit: float) -> Tensor:
    """sign(δ) log2(|δ| · scale + 1) / log2(8) / limit."""
    return delta.sign() * torch.log2(delta.abs() * log_scale + 1) / 3 / limit


def turn_offsets(delta: Tensor, angle: Tensor) -> Tensor:
    """Offsets (B, Nq, ..., axes) turned by +yaw (B, Nq), in V-DETR's sense, in the first two axes: along the boxes' sides."""
    shape = (*angle.shape, *(1,) * (delta.ndim - angle.ndim - 1))
    cos, sin = angle.cos().reshape(shape), angle.sin().reshape(shape)
    x, y = delta[..., 0], delta[..., 1]
    return torch.cat((torch.stack((cos * x - sin * y, sin * x + cos * y), dim=-1), delta[..., 2:]), dim=-1)


def lookup(tables: Tensor, where: Tensor) -> Tensor:
    """Sum over corners of tables at places, linear between entries, 0 beyond half an entry outside.

    Args:
        tables: (corners, H, n, ..., n), axes in reverse order of those of `where`.
        where: (B, Nq, Nk, corners, axes) in [−1, 1] from the first entry's outer side to the last one's.

    Returns:
        (B, H, Nq, Nk).
    """
    batch, queries, keys, corners, axes = where.shape
    grid = where.movedim(3, 0).flatten(1, 3)  # (corners, B · Nq · Nk, axes)
    grid = grid.reshape(corners, -1, *(1,) * (axes - 1), axes)
    found = F.grid_sample(tables, grid, mode="bilinear", padding_mode="zeros", align_corners=False)  # (corners, H, pairs, 1)
    return found.sum(0).reshape(-1, batch, queries, keys).movedim(0, 1)


class VDetr3dvrpe(Encoding):
    """Bias from the corners of boxes.

    Args:
        hidden: width of the networks.
        entries: n, entries of a table along an axis; limit: m, its end before normalisation.
        log_scale: s, per coordinate unit (metres).
        boxes: "axis" measures offsets in the world, "turned" along the sides of each box (positions need angles).
        cell: side of the box of a token that has none; None refuses such queries.

    Attributes:
        cpb_mlps: one network a corner, axes → hidden → heads, no last bias.
    """

    card = Card(
        title="3DV-RPE (V-DETR)",
        family="bias",
        axes=(2, 3),
        injection=("bias",),
        formula="q_i·k_j + sum_v MLP_v(log(corner_v(i) - p_j))",
        paper="https://arxiv.org/abs/2308.04409",
        year=2024,
        code="V-DETR/V-DETR",
        licence="MIT",
        cases=2,
        relative=True,
    )
    per_layer = True

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 3,
        hidden: int = 128,
        entries: int = 10,
        limit: float = 4.0,
        log_scale: float = 512.0,
        boxes: Literal["axis", "turned"] = "axis",
        cell: float | None = 1.0,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if boxes not in ("axis", "turned") or entries < 1 or hidden < 1:
            raise ValueError(
                f"v_detr_3dvrpe: boxes must be 'axis' or 'turned', entries and hidden at least 1, got {boxes!r}, {entries}, "
                f"{hidden}."
            )
        self.limit = positive("v_detr_3dvrpe", "limit", limit)
        self.log_scale = positive("v_detr_3dvrpe", "log_scale", log_scale)
        self.cell = None if cell is None else positive("v_detr_3dvrpe", "cell", cell)
        self.entries, self.boxes = entries, boxes
        self.cpb_mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(axes, hidden), nn.ReLU(), nn.Linear(hidden, num_heads, bias=False)) for _ in range(2**axes)
        )

    def reset_parameters(self) -> None:
        for net in self.cpb_mlps:
            net[0].reset_parameters()
            net[2].reset_parameters()

    @torch.no_grad()
    def set_identity(self) -> bool:
        for net in self.cpb_mlps:
            net[2].weight.zero_()
        return True

    def tables(self, device: torch.device | None = None) -> Tensor:
        """(2^axes, heads, n, ..., n) of all corners; the networks see (first, ..., last) axis of the table."""
        dtype = at_least_float32(self.cpb_mlps[0][0].weight.dtype)
        line = torch.linspace(-self.limit, self.limit, self.entries, device=device, dtype=dtype)
        places = torch.stack(torch.meshgrid(*[line] * self.axes, indexing="ij"), dim=-1)
        found = []
        for net in self.cpb_mlps:
            hidden = F.linear(places, net[0].weight.to(dtype), net[0].bias.to(dtype)).relu()
            found.append(F.linear(hidden, net[2].weight.to(dtype)).movedim(-1, 0))
        return torch.stack(found)

    def prepare(self, pos: Positions) -> VertexContext:
        self.check_axes(pos)
        vertices, angle = getattr(pos, "vertices", None), getattr(pos, "angle", None)
        if vertices is None and self.cell is not None:
            vertices = box_corners(pos.coords, torch.full_like(pos.coords, self.cell))
            angle = torch.zeros_like(pos.coords[..., 0])
        return VertexContext(pos.coords, vertices, angle, self.tables(pos.coords.device), pos.prefix)

    def bias(self, q: Tensor, k: Tensor, ctx_q: VertexContext, ctx_k: VertexContext) -> Tensor:
        if ctx_q.vertices is None:
            raise ValueError("v_detr_3dvrpe: the queries carry no boxes; build their positions with box_positions(vertices).")
        if self.boxes == "turned" and ctx_q.angle is None:
            raise ValueError("v_detr_3dvrpe: boxes='turned', but the queries' boxes carry no angle; see box_positions.")
        delta = ctx_q.vertices[:, :, None] - ctx_k.points[:, None, :, None]  # (B, Nq, Nk, corners, axes)
        if self.boxes == "turned":
            delta = turn_offsets(delta, ctx_q.angle)
        found = lookup(ctx_q.tables, log_offsets(delta.to(ctx_q.tables.dtype), self.log_scale, self.limit))
        return F.pad(found, (ctx_k.prefix, 0, ctx_q.prefix, 0))
