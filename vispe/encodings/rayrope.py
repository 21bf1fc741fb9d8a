"""RayRoPE: rotary angles from where a patch's rays lie in the camera of the query, between two predicted depths.

    o_i = R_i Σ_j softmax(q_iᵀ R_i R_jᶜ⁻¹ k_j) R_jᶜ⁻¹ v_j,   R_jᶜ the mean turn over depths exp(l_j − s_j) ... exp(l_j + s_j)

Each token predicts a log-depth l and a spread s (one Linear a layer on attention's input, weight 0 and bias (0, 3) at the
start). Points of its rays at both ends, and its camera's centre, are moved into the camera c of the query, so keys and values
turn anew for every query camera. Here they stand side by side in V·D channels, of which a query has its own camera's alone: any
mask, bias or kernel works, at V times the products of plain attention (released code calls attention V times instead). Between
both depths the turn is the mean one, (sin b − sin a) / (b − a) and (cos a − cos b) / (b − a). Split halves over the whole head.

Paper: RayRoPE, arXiv 2601.15275. Code: Lucas-707/RayRoPE at 52e3631 (MIT), type "d_pj+0_3d", depth encoding "d". Different
here: poses count from the first camera (nothing changes but rounding); dropped tokens and cross-attention; prefix tokens stay
as they are and ask from the first camera. Hosts that do not show attention's input (`look`), and contexts of another width
than dim, get the depths that tokens of zeros would predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.rays import cameras_of
from .base import Card, Encoding, at_least_float32
from .functional import turn
from .prope import lifted
from .rayrope_angles import OFFSETS, coordinates, patch_points, ray_ends, turns
from .rotary import positive
from .se3 import Views, invert_rigid, move_frame, of_tokens, views_of

Table = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RayropeContext:
    """Cameras, lifted intrinsics and inverses (B or 1, V, 4, 4), places of rays (B or 1, N, rays, 2), depths (B, N, 2).

    After `meet`: tables of the tokens as each query camera sees them (keys), or as their own does (queries).
    """

    views: Views
    lift: Tensor
    drop: Tensor
    at: Tensor
    depth: Tensor | None = None
    table: Table | None = None


class Rayrope(Encoding):
    """Ray-based rotary encoding.

    Args:
        rays: of each patch: 1 (its centre), 2 or 3 (corners).
        base: ratio of neighbouring frequencies.

    Attributes:
        depth: Linear C → 2: log-depth and spread.
    """

    card = Card(
        title="RayRoPE",
        family="camera",
        axes=(2,),
        injection=("look", "qk", "v", "out"),
        formula="o_i = R_i sum_j softmax(q_i^T R_i R_j^-1 k_j) R_j^-1 v_j, R by rays in the query's camera",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2601.15275",
        year=2026,
        code="Lucas-707/RayRoPE",
        licence="MIT",
        cases=2,
        relative=True,
    )
    per_layer = True

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, rays: Literal[1, 2, 3] = 3, base: float = 3.0
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if rays not in OFFSETS:
            raise ValueError(f"rayrope: rays must be one of {tuple(OFFSETS)}, got {rays!r}.")
        unit = 2 * coordinates(rays)
        if self.head_dim % unit:
            raise ValueError(
                f"rayrope: a head of {self.head_dim} channels does not hold pairs for {coordinates(rays)} coordinates; "
                f"head_dim must be a multiple of {unit} with rays={rays}: change dim, num_heads or rays."
            )
        self.rays, self.base = rays, positive("rayrope", "base", base)
        self.depth = nn.Linear(dim, 2)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.depth.weight)
        self.depth.bias.zero_()
        self.depth.bias[1:] += 3.0

    def prepare(self, pos: CameraPositions) -> RayropeContext:
        self.check_axes(pos)
        pos = cameras_of(pos, "rayrope", intrinsics=True)
        lift, drop = lifted(pos.intrinsics.float(), pos.image_size)
        return RayropeContext(views_of("rayrope", pos), lift, drop, patch_points(pos.coords.flip(-1), pos.extent, self.rays))

    @classmethod
    def prepare_layers(cls, layers: list[Rayrope], pos: CameraPositions) -> list[RayropeContext]:
        return [layers[0].prepare(pos)] * len(layers)

    def look(self, x: Tensor, ctx: RayropeContext) -> RayropeContext:
        if x.shape[-1] != self.dim:
            return ctx
        dtype = at_least_float32(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            tokens = x[:, ctx.views.prefix :].to(dtype)
            return replace(ctx, depth=F.linear(tokens, self.depth.weight.to(dtype), self.depth.bias.to(dtype)))

    def meet(self, ctx_q: RayropeContext, ctx_k: RayropeContext) -> tuple[RayropeContext, RayropeContext]:
        if ctx_q.views.frame is not ctx_k.views.frame:
            ctx_q = replace(ctx_q, views=move_frame(ctx_q.views, ctx_k.views.frame))
        project, back = ctx_q.lift.double() @ ctx_q.views.pose.double(), unproject(ctx_q)
        own = self.tables(ctx_q, (project @ back)[:, :, None], torch.zeros_like(back[:, :, None, :3, 3]))
        centre = invert_rigid(ctx_k.views.pose.double())[..., None, :, 3]  # (B or 1, Vk, 1, 4)
        seen = (ctx_q.views.pose.double()[:, None] @ centre[..., None]).squeeze(-1)[..., :3]  # (B or 1, Vk, Vq, 3)
        other = self.tables(ctx_k, project[:, None] @ unproject(ctx_k)[:, :, None], seen)
        return replace(ctx_q, table=own), replace(ctx_k, table=other)

    def tables(self, ctx: RayropeContext, move: Tensor, centre: Tensor) -> Table:
        """cos and sin (B or 1, Q, prefix + N, head_dim / 2) of the tokens of a context in Q cameras.

        Args:
            move: (B or 1, V, Q, 4, 4) from the image of a token's camera to that of each camera that looks, float64.
            centre: (B or 1, V, Q, 3) the token's camera in its axes.
        """
        depth = self.depth.bias.float().expand(1, ctx.at.shape[1], 2) if ctx.depth is None else ctx.depth
        move, centre = (of_tokens(t.to(depth.dtype), ctx.views).transpose(1, 2) for t in (move, centre))
        cos, sin = turns(ray_ends(ctx.at, depth), move, centre, pairs=self.head_dim // 2, base=self.base)
        prefix = (0, 0, ctx.views.prefix, 0)
        return F.pad(cos, prefix, value=1.0), F.pad(sin, prefix)

    def qk(self, q: Tensor, k: Tensor, ctx_q: RayropeContext, ctx_k: RayropeContext) -> tuple[Tensor, Tensor]:
        if ctx_k.table is None:
            ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        cos, sin = ctx_q.table
        own = turn(q, cos, -sin, "half")[..., None, :] * cameras_of_tokens(ctx_q.views, q)  # (B, H, Nq, V, D)
        return own.flatten(-2), for_cameras(k, ctx_k.table)

    def v(self, v: Tensor, ctx_k: RayropeContext) -> Tensor:
        if ctx_k.table is None:  # nobody met: one side is both
            ctx_k = self.meet(ctx_k, ctx_k)[1]
        return for_cameras(v, ctx_k.table)

    def out(self, o: Tensor, ctx_q: RayropeContext) -> Tensor:
        if ctx_q.table is None:
            ctx_q = self.meet(ctx_q, ctx_q)[0]
        own = o.unflatten(-1, (-1, self.head_dim)) * cameras_of_tokens(ctx_q.views, o)
        return turn(own.sum(-2), *ctx_q.table, "half")


def unproject(ctx: RayropeContext) -> Tensor:
    """(B or 1, V, 4, 4) float64 from each image to the world."""
    return invert_rigid(ctx.views.pose.double()) @ ctx.drop.double()


def for_cameras(x: Tensor, table: Table) -> Tensor:
    """x (B, H, N, D) turned back by tables (B or 1, V, N, pairs) of every query camera: (B, H, N, V · D)."""
    cos, sin = (t[:, None] for t in table)
    wide = x[:, :, None].expand(-1, -1, cos.shape[2], -1, -1)  # (B, H, V, N, D)
    return turn(wide, cos, -sin, "half").transpose(2, 3).flatten(3)


def cameras_of_tokens(views: Views, like: Tensor) -> Tensor:
    """1 at the camera of each token, 0 elsewhere, (B or 1, 1, prefix + N, V, 1); prefix tokens have the first one."""
    view = F.pad(views.view, (views.prefix, 0))
    numbers = torch.arange(views.pose.shape[1], device=view.device)
    return (view[..., None] == numbers)[:, None, :, :, None].to(like.dtype)
