"""CaPE: camera poses of 4 or 6 degrees of freedom turn queries and keys; values stay.

    6 DoF: q ← q P_q⁻ᵀ, k ← k P_k on row vectors of 4 channels, P world to camera: logits see P_k P_q⁻¹ only
    4 DoF: entry e of (polar, azimuth, π·log(r / r₀) / log(r₁ / r₀), 0) turns pairs in quarter e of all channels

Paper: Kong et al., EscherNet, CVPR 2024, arXiv 2402.03908. Code: kxhit/EscherNet at 569240f, CaPE.py. One frequency (1.0);
quarters are those of the full width, ahead of the cut into heads. Compared with GTA queries and keys change roles.

Different here: 6-DoF poses count from the first camera (logits do not change). The radius bounds r₀, r₁ are options (1.5, 2.2).
4 DoF sees the world's axes and origin: it is relative in its four numbers only. Prefix tokens are left alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions
from .base import Card, Encoding
from .functional import rotate
from .rotary import Rotation
from .se3 import Views, apply_blocks, invert_rigid, move_frame, of_tokens, views_of


@dataclass(frozen=True)
class CapeContext:
    views: Views
    turn: Rotation | None  # 4 DoF


class Cape(Encoding):
    """Camera positional encoding.

    Args:
        dof: 6 (pose matrices) or 4 (angles and log-radius around the world's origin).
        radii: radii whose 4-DoF angles are 0 and π.
    """

    card = Card(
        title="CaPE",
        family="camera",
        axes=(2,),
        injection=("qk",),
        formula="q_i P_i^-T (k_j P_j)^T",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2402.03908",
        year=2024,
        code="kxhit/EscherNet",
        licence="Imperial College, non-commercial research",
        cases=2,
        relative=True,
    )

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, dof: Literal[4, 6] = 6, radii: tuple[float, float] = (1.5, 2.2)
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if dof not in (4, 6):
            raise ValueError(f"cape: dof must be 4 or 6, got {dof!r}.")
        if self.head_dim % 4 or dof == 4 and dim % 8:
            raise ValueError(
                f"cape: heads of {self.head_dim} channels (dim={dim}) are not groups of 4; head_dim must be a multiple of 4, "
                f"and dim of 8 with dof=4."
            )
        if not 0 < radii[0] < radii[1]:
            raise ValueError(f"cape: radii must be positive and increasing, got {radii}.")
        self.dof, self.radii = dof, tuple(radii)

    def prepare(self, pos: Positions) -> CapeContext:
        views = views_of("cape", pos)
        if self.dof == 6:
            return CapeContext(views, None)
        return CapeContext(views, self.rotation(of_tokens(self.spherical(pos.world_to_camera), views), pos.prefix))

    def spherical(self, world_to_camera: Tensor) -> Tensor:
        """(polar angle from +z, azimuth, radius as an angle, 0) of camera centres, (B or 1, V, 4)."""
        x, y, z = invert_rigid(world_to_camera)[..., :3, 3].unbind(-1)
        radius = torch.stack((x, y, z)).norm(dim=0).clamp(min=1e-6)
        low, high = (math.log(r) for r in self.radii)
        scaled = math.pi * (radius.log() - low) / (high - low)
        return torch.stack((torch.atan2(torch.hypot(x, y), z), torch.atan2(y, x), scaled, torch.zeros_like(x)), dim=-1)

    def rotation(self, pose: Tensor, prefix: int = 0) -> Rotation:
        """cos and sin (B or 1, H, prefix + N, head_dim / 2) of 4-DoF poses (B or 1, N, 4)."""
        angle = pose.repeat_interleave(self.dim // 8, dim=-1).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        angle = F.pad(angle, (0, 0, prefix, 0))
        return Rotation(angle.cos(), angle.sin())

    def meet(self, ctx_q: CapeContext, ctx_k: CapeContext) -> tuple[CapeContext, CapeContext]:
        if self.dof == 4 or ctx_q.views.frame is ctx_k.views.frame:
            return ctx_q, ctx_k
        return CapeContext(move_frame(ctx_q.views, ctx_k.views.frame), None), ctx_k

    def qk(self, q: Tensor, k: Tensor, ctx_q: CapeContext, ctx_k: CapeContext) -> tuple[Tensor, Tensor]:
        if self.dof == 4:
            return rotate(q, ctx_q.turn.cos, ctx_q.turn.sin), rotate(k, ctx_k.turn.cos, ctx_k.turn.sin)
        ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        return _apply(q, invert_rigid(ctx_q.views.pose).mT, ctx_q.views), _apply(k, ctx_k.views.pose, ctx_k.views)


def _apply(x: Tensor, matrix: Tensor, views: Views) -> Tensor:
    prefix, wide = views.prefix, torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        y = apply_blocks(x[:, :, prefix:].to(wide), matrix.to(wide), views).to(x.dtype)
    return torch.cat((x[:, :, :prefix], y), dim=2) if prefix else y
