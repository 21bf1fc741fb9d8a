"""Distance of rays in space as a bias: tokens whose rays pass far from each other attend less (GBT).

    a_ij ← a_ij − γ² · dist(ray_i, ray_j)
    dist = |d_i·m_j + d_j·m_i| / |d_i × d_j|, for parallel rays |d_i × (m_i − m_j)| / |d_i|²

Paper: Venkat et al., Geometry-biased Transformers for Novel View Synthesis, arXiv 2301.04650. Source read: the GBT baseline in
autonomousvision/gta@1dcbd37, source/utils/gbt.py (MIT). γ is one learned number a layer, 1 at the start. GBT also feeds sines
of (d, m) to its tokens: `ray_fourier` with form="gbt", composed by "ray_fourier+ray_distance". Different here: the cross
product runs over the last axis always (released code takes another one when a batch or a number of rays is 3); rays that run
against each other count as parallel lines (there their moments do not cancel); rays count from the first camera, ahead of
rounding. The distance jumps where rays turn parallel (|d_i × d_j| <= eps), as released. Pairs with prefix tokens get 0. Cost:
a table of all pairs in every layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.camera_formats import rotate
from ..positions.rays import camera_centre, cameras_of, plucker, unit, unproject
from .base import Card, Encoding
from .rotary import positive
from .se3 import Views, move_frame, of_tokens, views_of


@dataclass(frozen=True)
class RayContext:
    """Cameras, and the unit direction of each token's ray in the axes of its own camera, (B or 1, N, 3)."""

    views: Views
    local: Tensor

    def lines(self) -> Tensor:
        """Plücker coordinates (B or 1, N, 6), d before m, in the frame of the views."""
        pose = of_tokens(self.views.pose, self.views)
        return plucker(camera_centre(pose), rotate(pose[..., :3, :3].mT, self.local))


def line_distance(a: Tensor, b: Tensor, eps: float = 1e-6) -> Tensor:
    """Distances (..., P, Q) of lines (..., P, 6) and (..., Q, 6), d before m, d of length 1."""
    d1, m1 = a[..., :, None, :].chunk(2, dim=-1)
    d2, m2 = b[..., None, :, :].chunk(2, dim=-1)
    sine = torch.linalg.cross(*torch.broadcast_tensors(d1, d2), dim=-1).norm(dim=-1)
    skew = ((d1 * m2).sum(-1) + (d2 * m1).sum(-1)).abs() / (sine + eps)
    facing = torch.where((d1 * d2).sum(-1, keepdim=True) < 0, -1.0, 1.0)  # the other direction has the other moment
    apart = torch.linalg.cross(*torch.broadcast_tensors(d1, m1 - facing * m2), dim=-1).norm(dim=-1)
    return torch.where(sine <= eps, apart / (d1.square().sum(-1) + eps), skew)


class RayDistance(Encoding):
    """Bias by the distance of rays.

    Args:
        eps: sine of the angle up to which rays count as parallel.
        scale: world units that count as 1 in distances.

    Attributes:
        gamma: γ, ().
    """

    card = Card(
        title="Ray distance bias (GBT)",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j - γ^2 dist(ray_i, ray_j)",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2301.04650",
        year=2023,
        code="autonomousvision/gta",
        licence="MIT",
        cases=1,
        relative=True,
    )
    per_layer = True

    def __init__(self, *, dim: int, num_heads: int, axes: int = 2, eps: float = 1e-6, scale: float = 1.0) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.eps, self.scale = positive("ray_distance", "eps", eps), positive("ray_distance", "scale", scale)
        self.gamma = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gamma)

    def prepare(self, pos: CameraPositions) -> RayContext:
        return ray_context("ray_distance", self, pos)

    @classmethod
    def prepare_layers(cls, layers: list[RayDistance], pos: CameraPositions) -> list[RayContext]:
        return [layers[0].prepare(pos)] * len(layers)

    def meet(self, ctx_q: RayContext, ctx_k: RayContext) -> tuple[RayContext, RayContext]:
        return meet_rays(ctx_q, ctx_k)

    def bias(self, q: Tensor, k: Tensor, ctx_q: RayContext, ctx_k: RayContext) -> Tensor:
        ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        distance = line_distance(ctx_q.lines(), ctx_k.lines(), self.eps) / self.scale  # (B or 1, Nq, Nk)
        bias = -self.gamma.float().square() * distance
        return F.pad(bias, (ctx_k.views.prefix, 0, ctx_q.views.prefix, 0))[:, None]


def ray_context(name: str, encoding: Encoding, pos: CameraPositions) -> RayContext:
    """Cameras from the first one on, and rays in camera axes."""
    encoding.check_axes(pos)
    pos = cameras_of(pos, name, intrinsics=True)
    k = pos.of_tokens(pos.intrinsics)
    return RayContext(views_of(name, pos), unit(unproject(pos.pixels()[..., None, :], k)).squeeze(-2))


def meet_rays(ctx_q: RayContext, ctx_k: RayContext) -> tuple[RayContext, RayContext]:
    """Both in the frame of the keys."""
    if ctx_q.views.frame is ctx_k.views.frame:
        return ctx_q, ctx_k
    return replace(ctx_q, views=move_frame(ctx_q.views, ctx_k.views.frame)), ctx_k
