"""Epipolar attention: a token looks along the line that its ray draws in every other view.

    a_ij ← a_ij + (0 if dist(p_j, l_ij) <= width else −1e9),   l_ij = K_j⁻ᵀ m,  m the moment of ray i in the axes of camera j

`form="bias"` takes γ² dist away instead, γ one learned number a layer. Distances are in cells of the view of j, to the whole
line. Paper: Kant et al., SPAD: Spatially Aware Multi-View Diffusers, CVPR 2024, arXiv 2402.05235. Code: yashkant/spad@7a375c0,
whose masks, rasterised with whole-pixel ends, are `epipolar_lines.spad_mask`. Different here: the true distance instead of
drawn lines (any shape of image, skew too); a query whose lines miss every key there is sees all of them, instead of uniform
noise; cameras with one and the same centre see each other whole, as views see themselves. Prefix tokens are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.camera_formats import rotate
from ..positions.rays import camera_centre
from .base import Card, Encoding
from .ray_distance import RayContext, meet_rays, ray_context
from .rotary import positive
from .se3 import of_tokens

CLOSED = -1e9  # SPAD's; a row of it alone is uniform, where infinities would be NaN


@dataclass(frozen=True)
class EpipolarContext(RayContext):
    """Also the lenses in cells, (B or 1, V, 3, 3), and the middles of the cells, (B or 1, N, 2), column before row."""

    lens: Tensor
    cells: Tensor


def epipolar_distance(ctx_q: EpipolarContext, ctx_k: EpipolarContext) -> tuple[Tensor, Tensor]:
    """Distance in cells of each key from the line of each query in its view, and where views have one centre.

    Both contexts must count from the same frame. Returns (B or 1, Nq, Nk) float32 and bool.
    """
    pose_q = of_tokens(ctx_q.views.pose, ctx_q.views)
    centre, direction = camera_centre(pose_q), rotate(pose_q[..., :3, :3].mT, ctx_q.local)  # (B, Nq, 3)
    pose_k = ctx_k.views.pose[:, None]  # (B, 1, Vk, 4, 4)
    start = rotate(pose_k[..., :3, :3], centre[..., None, :]) + pose_k[..., :3, 3]  # (B, Nq, Vk, 3)
    along = rotate(pose_k[..., :3, :3], direction[..., None, :])
    moment = torch.linalg.cross(start, along, dim=-1)
    k = ctx_k.lens[:, None]
    a = moment[..., 0] / k[..., 0, 0]
    b = (moment[..., 1] - k[..., 0, 1] * a) / k[..., 1, 1]
    line = torch.stack((a, b, moment[..., 2] - k[..., 0, 2] * a - k[..., 1, 2] * b), dim=-1)
    line = line / line[..., :2].norm(dim=-1, keepdim=True).clamp(min=1e-12)
    size = start.norm(dim=-1)
    same = size <= 1e-5 * (1 + pose_k[..., :3, 3].norm(dim=-1))  # (B, Nq, Vk)
    index = ctx_k.views.view[:, None].expand(max(line.shape[0], ctx_k.views.view.shape[0]), line.shape[1], -1)  # (B, Nq, Nk)
    line = line.expand(index.shape[0], -1, -1, -1).gather(2, index[..., None].expand(-1, -1, -1, 3))
    same = same.expand(index.shape[0], -1, -1).gather(2, index)
    u, v = (t[:, None] for t in ctx_k.cells.unbind(-1))
    distance = (line[..., 0] * u + line[..., 1] * v + line[..., 2]).abs()
    return torch.where(same, 0.0, distance), same


class Epipolar(Encoding):
    """Epipolar mask or bias.

    Args:
        form: "mask" (keys within `width` of the line) or "bias" (the further, the less).
        width: cells.

    Attributes:
        gamma: γ, (), with form="bias".
    """

    card = Card(
        title="Epipolar attention (SPAD)",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j - inf [dist(p_j, line of ray i in the view of j) > w]",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2402.05235",
        year=2024,
        code="yashkant/spad",
        licence="MIT",
        cases=1,
        relative=True,
    )

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, form: Literal["mask", "bias"] = "mask", width: float = 1.5
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if form not in ("mask", "bias"):
            raise ValueError(f"epipolar: form must be 'mask' or 'bias', got {form!r}.")
        self.form, self.width, self.per_layer = form, positive("epipolar", "width", width), form == "bias"
        if form == "bias":
            self.gamma = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.form == "bias":
            nn.init.constant_(self.gamma, 0.5)

    def prepare(self, pos: CameraPositions) -> EpipolarContext:
        rays = ray_context("epipolar", self, pos)
        (height, width), (h, w) = pos.image_size, pos.extent
        one = pos.coords.new_ones(())
        factors = torch.stack((one * w / width, one * h / height, one))  # sides may be symbolic
        return EpipolarContext(rays.views, rays.local, pos.intrinsics * factors[:, None], pos.coords.flip(-1) + 0.5)

    @classmethod
    def prepare_layers(cls, layers: list[Epipolar], pos: CameraPositions) -> list[EpipolarContext]:
        return [layers[0].prepare(pos)] * len(layers)

    def meet(self, ctx_q: EpipolarContext, ctx_k: EpipolarContext) -> tuple[EpipolarContext, EpipolarContext]:
        return meet_rays(ctx_q, ctx_k)

    def bias(self, q: Tensor, k: Tensor, ctx_q: EpipolarContext, ctx_k: EpipolarContext) -> Tensor:
        ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        distance, same = epipolar_distance(ctx_q, ctx_k)
        if self.form == "bias":
            bias = -self.gamma.float().square() * distance
        else:
            seen = same | (distance <= self.width)
            seen = seen | ~seen.any(dim=-1, keepdim=True)
            bias = torch.where(seen, 0.0, CLOSED)
        return F.pad(bias, (ctx_k.views.prefix, 0, ctx_q.views.prefix, 0))[:, None]
