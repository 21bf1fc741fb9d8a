"""3DPPE: the one 3-D point that a cell shows, from its depth, through the network that also embeds queries.

    x_n ← x_n + W2 relu(W1 sine(logit(X_n))),   X_n = o + D_n · ray_n,   D = σ(λ) · direct + (1 − σ(λ)) Σ_k softmax(l)_k d_k

Paper: Shu et al., 3DPPE: 3D Point Positional Encoding for Transformer-based Multi-Camera 3D Object Detection, ICCV 2023,
arXiv 2211.14710. Code: drilistbox/3DPPE@a49bdc4 (PETRDepthHeadV2). The direct depth counts in metres without exp
(`direct="exp"` is what "direct only" heads and V3 do); λ starts at 1e-4. Sines are of logits, as released. Queries:
`queries(points)` is the same network (shared, as published: weights stand twice in released state dicts and are one here).
The head with true depth (`depth_source="given"`, an upper bound) embeds queries without the logit, although keys have it: pass
`queries(points, space="unit")` for its weights. V3, in camera view: petr_3dppe_view.py.
Ray comparator: a ray instead of a point is PETR's frustum (`petr`, or depth_num=1); the repository has no class of its own.
Differences: depth comes from one Linear layer on the tokens, the released depth network (camera-aware convolutions) is
the host's business (`with_cameras(..., depth=...)` and depth_source="given"). Keys only, as in petr.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from ..positions.camera_checks import check_depth_scale
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
)
from .petr import check_cameras


@dataclass(frozen=True)
class PointContext:
    """A⁻¹ (1 or B, N, 4, 4), pixels (1 or B, N, 2) and, when it is given, depth (1 or B, N) of every token, float32."""

    back: Tensor
    pixels: Tensor
    depth: Tensor | None
    prefix: int


def depth_bins(count: int, near: float, far: float, device: torch.device | None = None) -> Tensor:
    """Depths of the distribution, both ends included, (count,) float32."""
    return torch.linspace(near, far, count, device=device)


def expected_depth(logits: Tensor, bins: Tensor) -> Tensor:
    """Mean of the softmax over bins: logits (..., K) to (...)."""
    return (logits.softmax(dim=-1) * bins).sum(dim=-1)


def fuse_depth(direct: Tensor, expected: Tensor, fuse_lambda: Tensor) -> Tensor:
    """σ(λ) · direct + (1 − σ(λ)) · expected."""
    share = fuse_lambda.sigmoid()
    return share * direct + (1 - share) * expected


def known_depth(depth: Tensor, valid: Tensor, far: float) -> Tensor:
    """Depth with cells that are not known at `far`, and larger ones cut to it; `valid` is non-zero where it is known."""
    return torch.where(valid != 0, depth, far).clamp(max=far)


class Petr3dppe(Encoding):
    """One point a cell.

    Args:
        depth_source: "predicted" from the tokens, or "given" by the positions (0 or less, or beyond the range: its far end).
        depth_num: bins of the distribution from `depth_start` to the position range's x maximum.
        depth_start: metres of the first bin.
        direct: the direct depth as it is, in metres ("metres"), or its exponential ("exp").
        position_range, cell: as in Petr.

    Attributes:
        position_encoder: network 3C/2 → C → C, of keys and queries. depth_head: Linear C → 1 + bins. fuse_lambda: λ.
    """

    card = Card(
        title="3DPPE",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + MLP(sine(logit(3-D point of cell n at its depth)))",
        needs=("grid", "cameras"),
        paper="https://arxiv.org/abs/2211.14710",
        year=2023,
        code="drilistbox/3DPPE",
        licence="Apache-2.0",
        cases=4,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        depth_source: Literal["predicted", "given"] = "predicted",
        depth_num: int = 16,
        depth_start: float = 1.0,
        direct: Literal["metres", "exp"] = "metres",
        position_range: tuple[float, ...] = RANGE,
        cell: Cell = "corner",
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if dim % 4:
            raise ValueError(f"petr_3dppe: dim must be a multiple of 4, got dim={dim}.")
        for option, value, known in (
            ("depth_source", depth_source, ("predicted", "given")), ("direct", direct, ("metres", "exp")),
            ("cell", cell, ("corner", "centre")),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"petr_3dppe: {option} must be one of {known}, got {value!r}.")
        self.position_range = check_range("petr_3dppe", position_range)
        if depth_num < 2 or not 0 < depth_start < self.position_range[3]:
            raise ValueError(
                f"petr_3dppe: needs at least 2 bins between 0 and {self.position_range[3]} m, got {depth_num} from "
                f"{depth_start}."
            )
        self.depth_source, self.depth_num, self.depth_start = depth_source, depth_num, depth_start
        self.direct, self.cell = direct, cell
        self.position_encoder = two_layers(3 * dim // 2, dim, dim)
        self.depth_head = nn.Linear(dim, 1 + depth_num) if depth_source == "predicted" else None
        self.fuse_lambda = nn.Parameter(torch.empty(())) if depth_source == "predicted" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.position_encoder[0], self.position_encoder[2]):
            layer.reset_parameters()
        if self.depth_head is not None:
            self.depth_head.reset_parameters()
            nn.init.constant_(self.fuse_lambda, 1e-4)

    @torch.no_grad()
    def set_identity(self) -> bool:
        self.position_encoder[2].weight.zero_()
        self.position_encoder[2].bias.zero_()
        return True

    def prepare(self, pos: Positions) -> PointContext:
        check_cameras("petr_3dppe", self, pos)
        back = pos.of_tokens(image_to_world(pos.world_to_camera, pos.intrinsics))
        pixels = cell_pixels(pos.coords, pos.extent, pos.image_size, self.cell)
        if self.depth_source == "predicted":
            return PointContext(back, pixels, None, pos.prefix)
        if pos.depth is None:
            raise ValueError("petr_3dppe: depth_source='given', but positions carry none; pass depth=... to with_cameras.")
        check_depth_scale(pos.depth, self.position_range[3], "petr_3dppe")
        return PointContext(back, pixels, known_depth(pos.depth, pos.depth > 0, self.position_range[3]), pos.prefix)

    def bins(self, device: torch.device | None = None) -> Tensor:
        """(depth_num,) metres."""
        return depth_bins(self.depth_num, self.depth_start, self.position_range[3], device)

    def depth_of(self, direct: Tensor, logits: Tensor) -> Tensor:
        """Fused depth (...) of a direct one (...) and of logits over the bins (..., K)."""
        direct = direct.exp() if self.direct == "exp" else direct
        return fuse_depth(direct, expected_depth(logits, self.bins(logits.device)), self.fuse_lambda.to(direct.dtype))

    def predict(self, x: Tensor) -> Tensor:
        """Depth (B, N) in metres of tokens (B, N, C)."""
        dtype = at_least_float32(x.dtype)
        out = F.linear(x.to(dtype), self.depth_head.weight.to(dtype), self.depth_head.bias.to(dtype))
        return self.depth_of(out[..., 0], out[..., 1:])

    def points(self, ctx: PointContext, depth: Tensor) -> Tensor:
        """Normalised points (B, N, 3) at depth (B, N); u and v are scaled by at least 1e-5 where that is not positive."""
        return ray_points(ctx.back, ctx.pixels, depth[..., None], self.position_range).squeeze(-2)

    def queries(self, points: Tensor, *, space: Literal["logit", "unit"] = "logit") -> Tensor:
        """(..., C) float32 of normalised points (..., 3), for keys and queries alike."""
        points = points.to(at_least_float32(points.dtype))
        points = inverse_sigmoid(points) if space == "logit" else points
        return run_float32(self.position_encoder, point_sine(points, self.dim // 2))

    def embedding(self, x: Tensor, ctx: PointContext) -> Tensor:
        """What keys get, (1 or B, prefix + N, C), of features x (B, prefix + N, C)."""
        with torch.autocast(x.device.type, enabled=False):
            depth = self.predict(x[:, ctx.prefix :]) if ctx.depth is None else ctx.depth
            return F.pad(self.queries(self.points(ctx, depth)), (0, 0, ctx.prefix, 0))

    def tokens(self, x: Tensor, ctx: PointContext) -> Tensor:
        return x + self.embedding(x, ctx).to(x.dtype)
