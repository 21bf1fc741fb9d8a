"""RoCE: cameras shift the phases of a video transformer's rotary encoding; views are its frames.

    q, k ← e^(i(rope + φ_qk)),  v ← e^(−i φ_vo),  y = e^(i φ_vo) · W_o o,  φ = W SiLU(camera)

Paper: Park et al., ReDirector, arXiv 2511.19827. Code: byeongjun-park/ReDirector at 2ceace5 (Wan's transformer). W has no bias
and starts at zero: the plain rotary encoding of frame, row and column. A head has fewer phases than pairs: zeros in front leave
most temporal pairs alone. The last turn comes behind the output projection (`after="projection"`), so it is no inverse of that
on the values; `after="heads"` is. Adjacent pairs; frequencies θ^(−2i / channels of the axis).

Different here: released camera tokens come from a network of their own; here they are the sixteen numbers of pose and lens
relative to the first camera, and their negatives (SiLU takes one sign away), so that no frame of the world matters. Angles are
float32, not float64. `frames` lets a second video share the indices of the first, as source and target do there. Prefix
tokens are left alone.
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
from .functional import rotate
from .roce_phases import camera_phases, head_phases, phase_count, rope_angles, wan_axis_dims
from .rotary import positive
from .se3 import Views, move_frame, of_tokens, views_of

NUMBERS = 16  # of a camera: pose (12), focal lengths and principal point (4)


@dataclass(frozen=True)
class RoceContext:
    """Cameras, their lenses (B or 1, V, 4), rotary angles (B or 1, 1, N, pairs), phases (B or 1, H, N, pairs)."""

    views: Views
    lens: Tensor
    angle: Tensor
    qk: Tensor
    vo: Tensor


class Roce(Encoding):
    """Rotary camera encoding.

    Args:
        theta: base of the frequencies.
        frames: views that a video has; the number of a frame is that of the view modulo this. None: all are one video.
        after: where the values' turn is undone: behind the "projection", as published, or ahead of merging "heads".

    Attributes:
        phase_qk, phase_vo: Linear 32 → heads · phases without bias.
    """

    card = Card(
        title="RoCE",
        family="camera",
        axes=(2,),
        injection=("qk", "v", "out", "projected"),
        formula="q e^(i(rope + φ)), v e^(-iφ'), e^(iφ') W_o o; φ, φ' by cameras",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2511.19827",
        year=2025,
        code="byeongjun-park/ReDirector",
        licence="none stated",
        cases=1,
    )
    per_layer = True

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, theta: float = 10000.0, frames: int | None = None,
        after: Literal["projection", "heads"] = "projection",
    ) -> None:  # fmt: skip
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if self.head_dim % 2 or self.head_dim < 6:
            raise ValueError(
                f"roce: a head of {self.head_dim} channels has no pairs for frame, row and column; head_dim must be even and "
                f"at least 6: change dim or num_heads."
            )
        if after not in ("projection", "heads"):
            raise ValueError(f"roce: after must be 'projection' or 'heads', got {after!r}.")
        if frames is not None and frames < 1:
            raise ValueError(f"roce: frames counts the views of one video and must be at least 1, got {frames}.")
        self.theta, self.frames, self.after = positive("roce", "theta", theta), frames, after
        width = num_heads * phase_count(self.head_dim)
        self.phase_qk = nn.Linear(2 * NUMBERS, width, bias=False)
        self.phase_vo = nn.Linear(2 * NUMBERS, width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.phase_qk.weight)
        nn.init.zeros_(self.phase_vo.weight)

    def prepare(self, pos: CameraPositions) -> RoceContext:
        self.check_axes(pos)
        pos = cameras_of(pos, "roce", intrinsics=True)
        views, k, (height, width) = views_of("roce", pos), pos.intrinsics, pos.image_size
        lens = torch.stack(
            (k[..., 0, 0] / width, k[..., 1, 1] / height, k[..., 0, 2] / width, k[..., 1, 2] / height), dim=-1
        )
        frame = (pos.view if self.frames is None else pos.view % self.frames).to(pos.coords)[..., None]
        batch = max(frame.shape[0], pos.coords.shape[0])
        places = torch.cat((frame.expand(batch, -1, -1), pos.coords.expand(batch, -1, -1)), dim=-1)
        angle = rope_angles(places, wan_axis_dims(self.head_dim), self.theta)[:, None]
        return self.phased(RoceContext(views, lens, angle, angle, angle))

    def phased(self, ctx: RoceContext) -> RoceContext:
        """The context with this layer's phases."""
        pose = ctx.views.pose[..., :3, :].flatten(-2)
        batch = max(pose.shape[0], ctx.lens.shape[0])
        numbers = torch.cat((pose.expand(batch, -1, -1), ctx.lens.expand(batch, -1, -1)), dim=-1)
        numbers = of_tokens(torch.cat((numbers, -numbers), dim=-1), ctx.views)  # (B, N, 32)
        found = []
        with torch.autocast(numbers.device.type, enabled=False):
            for layer in (self.phase_qk, self.phase_vo):
                dtype = at_least_float32(layer.weight.dtype)
                phase = camera_phases(numbers.to(dtype), layer.weight.to(dtype))
                found.append(head_phases(phase, self.num_heads, self.head_dim // 2))
        return replace(ctx, qk=found[0], vo=found[1])

    def meet(self, ctx_q: RoceContext, ctx_k: RoceContext) -> tuple[RoceContext, RoceContext]:
        if ctx_q.views.frame is ctx_k.views.frame:
            return ctx_q, ctx_k
        return self.phased(replace(ctx_q, views=move_frame(ctx_q.views, ctx_k.views.frame))), ctx_k

    def qk(self, q: Tensor, k: Tensor, ctx_q: RoceContext, ctx_k: RoceContext) -> tuple[Tensor, Tensor]:
        ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        return turned(q, ctx_q.angle + ctx_q.qk, ctx_q), turned(k, ctx_k.angle + ctx_k.qk, ctx_k)

    def v(self, v: Tensor, ctx_k: RoceContext) -> Tensor:
        return turned(v, -ctx_k.vo, ctx_k)

    def out(self, o: Tensor, ctx_q: RoceContext) -> Tensor:
        return turned(o, ctx_q.vo, ctx_q) if self.after == "heads" else o

    def projected(self, y: Tensor, ctx_q: RoceContext) -> Tensor:
        if self.after == "heads":
            return y
        heads = y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return turned(heads, ctx_q.vo, ctx_q).transpose(1, 2).flatten(2)


def turned(x: Tensor, angle: Tensor, ctx: RoceContext) -> Tensor:
    """x (B, H, prefix + N, D) turned by angles (B or 1, H, N, D / 2)."""
    angle = F.pad(angle, (0, 0, ctx.views.prefix, 0))
    return rotate(x, angle.cos(), angle.sin())
