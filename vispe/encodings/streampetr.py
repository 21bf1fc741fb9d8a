"""StreamPETR: PETR's points at cell centres, tokens conditioned by their camera's cone, and a memory that knows motion.

    m_n = γ(c_n) LN(MLP(x_n)) + β(c_n),   x_n ← m_n + W2 relu(W1 logit(frustum_n)) · sigmoid(MLP(m_n))

c_n, the cone of cell n: focal lengths / 1000, the last point of its ray and the one 29 bins ahead of it. Paper: Wang et al.,
Exploring Object-Centric Temporal Modeling for Efficient Multi-View 3D Object Detection, ICCV 2023, arXiv 2303.11926. Code:
exiawsh/StreamPETR@95f6470 (streampetr_head.py).
The released code lays out focal lengths camera-fastest where everything else is camera-major: token t has the intrinsics of
camera t mod V. Published weights were trained so: `preset="streampetr_compat"`, which needs all cells of all views. The
default, "fixed", gives every token those of its own camera. Also there: coords_d, position_range, pc_range and code_weights
are parameters without gradient and stand in state dicts; here they are options. Cell centres lie at stride // 2 there, which is
(i + ½) · stride for even strides; the layers of γ and β start at 0 there and with std 1e-3 here, so that no gradient is 0 at
the start. Values in a detector are m, keys m plus the embedding: `memory(x, ctx)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from ..positions.rays import Spacing
from .base import Card, at_least_float32
from .frustum import RANGE, inverse_sigmoid, point_sine, run_float32, time_sine, two_layers
from .petr import FeatureGate, Petr

LAG = 30  # the cone's second point is depth index D − 30


@dataclass(frozen=True)
class StreamContext:
    """The embedding of points (1 or B, prefix + N, C) and the cones (1 or B, N, 8), float32."""

    points: Tensor
    cone: Tensor
    prefix: int


def camera_cone(focal: Tensor, points: Tensor) -> Tensor:
    """(..., N, 8): |fx| and |fy| over 1000 (..., N, 2), then the last and the D − 30th of normalised points (..., N, D, 3)."""
    if points.shape[-2] < LAG:
        raise ValueError(f"streampetr: the cone reads depth index D − {LAG}; depth_num must be at least {LAG}.")
    focal = (focal.abs() / 1000).expand(*points.shape[:-2], 2)
    return torch.cat((focal, points[..., -1, :], points[..., -LAG, :]), dim=-1)


def token_focals(focal: Tensor, tokens_per_view: int, preset: str) -> Tensor:
    """Focal lengths (B, V, 2) for camera-major tokens, (B, V · tokens, 2): their own camera's, or the released mix-up."""
    if preset == "streampetr_compat":
        return focal.repeat(1, tokens_per_view, 1)
    return focal.repeat_interleave(tokens_per_view, dim=1)


class StreamPetr(Petr):
    """Frustum points at cell centres and camera-conditioned tokens.

    Args:
        preset: "fixed", or "streampetr_compat" for released weights (see above).
        depth_num, depth_start, spacing, position_range: as in Petr; at least 30 points.

    Attributes:
        position_encoder, memory_embed: networks of two layers. spatial_alignment: ConditionedNorm. featurized_pe: the gate.
    """

    card = Card(
        title="StreamPETR",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="m_n + MLP(logit(frustum points)) · gate(m_n), m = LN(MLP(x)) conditioned by the camera",
        needs=("grid", "cameras"),
        paper="https://arxiv.org/abs/2303.11926",
        year=2023,
        code="exiawsh/StreamPETR",
        licence="Apache-2.0",
    )
    name = "streampetr"

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
        preset: Literal["fixed", "streampetr_compat"] = "fixed",
    ) -> None:
        if preset not in ("fixed", "streampetr_compat"):
            raise ValueError(f"streampetr: preset must be 'fixed' or 'streampetr_compat', got {preset!r}.")
        if depth_num < LAG:
            raise ValueError(f"streampetr: depth_num must be at least {LAG} for the cone, got {depth_num}.")
        super().__init__(
            dim=dim, num_heads=num_heads, axes=axes, depth_num=depth_num, depth_start=depth_start, spacing=spacing,
            position_range=position_range, cell="centre", multiview=False,
        )  # fmt: skip
        self.preset = preset
        self.memory_embed = two_layers(dim, dim, dim)
        self.spatial_alignment = ConditionedNorm(8, dim)
        self.featurized_pe = FeatureGate(dim)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.spatial_alignment.reset_parameters()

    def set_identity(self) -> bool:
        return False  # tokens are normalised, whatever the parameters

    def prepare(self, pos: Positions) -> StreamContext:
        points = self.frustum(pos)
        focal = torch.stack((pos.intrinsics[..., 0, 0], pos.intrinsics[..., 1, 1]), dim=-1)
        if self.preset == "fixed":
            focal = pos.of_tokens(focal)
        elif pos.tokens_per_view is None:
            raise ValueError("streampetr: preset='streampetr_compat' needs all cells of all views; tokens were dropped.")
        else:
            focal = token_focals(focal, pos.tokens_per_view, self.preset)
        return self.stream_context(points, focal, prefix=pos.prefix)

    def stream_context(self, points: Tensor, focal: Tensor, *, prefix: int = 0) -> StreamContext:
        """The context of normalised points (B, N, D, 3) and of every token's focal lengths in pixels (B, N, 2)."""
        embedded = run_float32(self.position_encoder, inverse_sigmoid(points).flatten(-2))
        return StreamContext(F.pad(embedded, (0, 0, prefix, 0)), camera_cone(focal, points), prefix)

    def memory(self, x: Tensor, ctx: StreamContext) -> Tensor:
        """Tokens as keys and values see them without the embedding; prefix tokens unchanged."""
        aligned = self.spatial_alignment(self.memory_embed(x[:, ctx.prefix :]), ctx.cone)
        return torch.cat((x[:, : ctx.prefix], aligned.to(x.dtype)), dim=1) if ctx.prefix else aligned

    def embedding(self, x: Tensor, ctx: StreamContext) -> Tensor:
        """What keys get on top of the memory x (B, prefix + N, C)."""
        return self.featurized_pe(ctx.points, x)

    def tokens(self, x: Tensor, ctx: StreamContext) -> Tensor:
        memory = self.memory(x, ctx)
        return memory + self.embedding(memory, ctx).to(x.dtype)


class ConditionedNorm(nn.Module):
    """MLN: LayerNorm without own scale, scaled and moved by functions of a condition: γ(relu(W c)) LN(x) + β(relu(W c)).

    Args:
        condition: channels of c.
        dim: channels of x.
    """

    def __init__(self, condition: int, dim: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Linear(condition, dim), nn.ReLU())
        self.gamma, self.beta = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.reduce[0].reset_parameters()
        for layer, bias in ((self.gamma, 1.0), (self.beta, 0.0)):
            nn.init.normal_(layer.weight, std=1e-3)
            nn.init.constant_(layer.bias, bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        hidden = self.reduce(condition.to(self.gamma.weight.dtype))
        return self.gamma(hidden) * F.layer_norm(x, x.shape[-1:]) + self.beta(hidden)


def ego_motion(velocity: Tensor, time: Tensor, pose: Tensor) -> Tensor:
    """Sines then cosines at 2^0 ... 2^5 of (velocity 2, time 1, first three rows of the pose 12), (..., 180) float32."""
    motion = torch.cat((velocity.float(), time.float(), pose[..., :3, :].float().flatten(-2)), dim=-1)
    parts = [f(motion * 2.0**k) for k in range(6) for f in (torch.sin, torch.cos)]
    return torch.cat(parts, dim=-1)


class StreamMemory(nn.Module):
    """Queries of earlier frames in the present one: embedding of their points, conditioned by motion, plus that of time.

    Attributes:
        query_embedding: 3C/2 → C → C, as in `ReferencePoints`; ego_pose_pe, ego_pose_memory: ConditionedNorm(180, C);
        time_embedding: Linear and LayerNorm.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim % 4:
            raise ValueError(f"StreamMemory: dim must be a multiple of 4, got {dim}.")
        self.dim = dim
        self.query_embedding = two_layers(3 * dim // 2, dim, dim)
        self.ego_pose_pe, self.ego_pose_memory = ConditionedNorm(180, dim), ConditionedNorm(180, dim)
        self.time_embedding = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))

    def forward(
        self, memory: Tensor, points: Tensor, time: Tensor, pose: Tensor, velocity: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Embedding of positions and the memory (both (B, M, C)) as the present frame's decoder takes them.

        Args:
            memory: (B, M, C) features of earlier queries.
            points: (B, M, 3), their centres in the present frame, fractions of the detection range.
            time: (B, M, 1) seconds since.
            pose: (B, M, 4, 4), their frame to the present one.
            velocity: (B, M, 2) metres a second.
        """
        dtype = at_least_float32(points.dtype)
        motion = ego_motion(velocity, time, pose)
        position = run_float32(self.query_embedding, point_sine(points.to(dtype), self.dim // 2))
        position = self.ego_pose_pe(position.to(memory.dtype), motion)
        position = position + self.time_embedding(time_sine(time.to(dtype), self.dim).to(memory.dtype))
        return position, self.ego_pose_memory(memory, motion)
