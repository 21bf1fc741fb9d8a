"""PRoPE: projection matrices on half of a head's channels, rotary patch columns and rows on the other two quarters.

    q ← Pᵀ q, k ← P⁻¹ k, v ← P⁻¹ v, o ← P o,   P = lift(K') [R, t; 0, 1],  K' = (fx/W, fy/H, cx/W − ½, cy/H − ½)

Paper: Li et al., Cameras as Relative Positional Encoding, NeurIPS 2025, arXiv 2507.10496. Code: liruilong940607/prope at
a601c22. Patch indices, base 100, split halves, turned by −angle. Skew is ignored, as there. One camera a token is V = N views
of one token each. Without intrinsics P is the pose.

Different here: poses count from the first camera (nothing changes but rounding); any number of tokens a camera, dropped tokens
and cross-attention; head_dim must be a multiple of 8 (the official check lets 4 pass and then fails). Prefix tokens stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..positions import Positions
from .base import Card, Encoding
from .functional import rotate
from .rotary import positive
from .se3 import Views, apply_blocks, invert_rigid, join, move_frame, views_of


@dataclass(frozen=True)
class PropeContext:
    """Cameras, lifted intrinsics and their inverses (B or 1, V, 4, 4) or None, tables (B or 1, 1, N, head_dim / 8)."""

    views: Views
    lift: Tensor | None
    drop: Tensor | None
    column: tuple[Tensor, Tensor]
    row: tuple[Tensor, Tensor]

    def project(self) -> Tensor:
        return self.views.pose if self.lift is None else self.lift @ self.views.pose

    def unproject(self) -> Tensor:
        inverse = invert_rigid(self.views.pose)
        return inverse if self.drop is None else inverse @ self.drop


class Prope(Encoding):
    """Projective positional encoding.

    Args:
        theta: base of the patch frequencies.
        freq_scale: a factor on all of them.
        intrinsics: use those of the positions; False is GTA without its scale, as official `Ks=None`.
    """

    card = Card(
        title="PRoPE",
        family="camera",
        axes=(2,),
        injection=("qk", "v", "out"),
        formula="o_i = P_i sum_j softmax(q_i^T P_i P_j^-1 k_j) P_j^-1 v_j",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2507.10496",
        year=2025,
        code="liruilong940607/prope",
        licence="MIT",
        cases=2,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        theta: float = 100.0,
        freq_scale: float = 1.0,
        intrinsics: bool = True,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if self.head_dim % 8:
            raise ValueError(
                f"prope: a head of {self.head_dim} channels has no half of groups of 4 and two quarters of pairs; head_dim "
                f"must be a multiple of 8: change dim or num_heads."
            )
        self.theta, self.freq_scale = positive("prope", "theta", theta), positive("prope", "freq_scale", freq_scale)
        self.intrinsics = intrinsics

    def prepare(self, pos: Positions) -> PropeContext:
        views = views_of("prope", pos)
        lift = drop = None
        if self.intrinsics and pos.intrinsics is not None:
            lift, drop = lifted(pos.intrinsics.float(), pos.image_size)
        n = self.head_dim // 8
        freqs = self.freq_scale * self.theta ** -(torch.arange(n, device=pos.coords.device, dtype=torch.float32) / n)
        row, column = (((angle := c[:, None, :, None] * freqs).cos(), angle.sin()) for c in pos.coords.unbind(-1))
        return PropeContext(views, lift, drop, column, row)

    def meet(self, ctx_q: PropeContext, ctx_k: PropeContext) -> tuple[PropeContext, PropeContext]:
        if ctx_q.views.frame is ctx_k.views.frame:
            return ctx_q, ctx_k
        return replace(ctx_q, views=move_frame(ctx_q.views, ctx_k.views.frame)), ctx_k

    def qk(self, q: Tensor, k: Tensor, ctx_q: PropeContext, ctx_k: PropeContext) -> tuple[Tensor, Tensor]:
        ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        return self.act(q, ctx_q.project(), ctx_q, -1), self.act(k, ctx_k.unproject().mT, ctx_k, -1)

    def v(self, v: Tensor, ctx_k: PropeContext) -> Tensor:
        return self.act(v, ctx_k.unproject().mT, ctx_k, -1)

    def out(self, o: Tensor, ctx_q: PropeContext) -> Tensor:
        return self.act(o, ctx_q.project().mT, ctx_q, 1)

    def act(self, x: Tensor, matrix: Tensor, ctx: PropeContext, sign: int) -> Tensor:
        """x (B, H, prefix + N, D) with row vectors times matrix (B or 1, V, 4, 4), and patches turned by sign · angle."""
        prefix, wide = ctx.views.prefix, torch.promote_types(x.dtype, torch.float32)
        quarter = self.head_dim // 4
        with torch.autocast(x.device.type, enabled=False):
            body = (x[:, :, prefix:] if prefix else x).to(wide)
            seen, across, down = body.split((2 * quarter, quarter, quarter), dim=-1)
            (cx, sx), (cy, sy) = ((cos.to(wide), (sign * sin).to(wide)) for cos, sin in (ctx.column, ctx.row))
            seen = apply_blocks(seen, matrix.to(wide), ctx.views)
            y = torch.cat((seen, rotate(across, cx, sx, "half"), rotate(down, cy, sy, "half")), dim=-1).to(x.dtype)
        return torch.cat((x[:, :, :prefix], y), dim=2) if prefix else y


def lifted(intrinsics: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Normalised intrinsics as 4x4 matrices and their inverses, from pixels (B or 1, V, 3, 3); skew is left out."""
    height, width = image_size
    fx, fy = intrinsics[..., 0, 0] / width, intrinsics[..., 1, 1] / height
    cx, cy = intrinsics[..., 0, 2] / width - 0.5, intrinsics[..., 1, 2] / height - 0.5
    if not torch.compiler.is_compiling() and bool(((fx == 0) | (fy == 0)).any()):
        raise ValueError("prope: a focal length is 0, its projection has no inverse; pass cameras with fx and fy other than 0.")
    zero, one = torch.zeros_like(fx), torch.ones_like(fx)

    def matrix(a: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Tensor:
        k = torch.stack((a, zero, u, zero, b, v, zero, zero, one), dim=-1).unflatten(-1, (3, 3))
        return join(k, torch.zeros_like(k[..., :1]))

    return matrix(fx, fy, cx, cy), matrix(1 / fx, 1 / fy, -cx / fx, -cy / fy)
