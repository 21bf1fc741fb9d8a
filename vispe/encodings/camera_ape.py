"""The camera of each token as plain numbers, projected and added: what relative camera encodings are compared with.

    x_n ← x_n + W·(R, t / scale, fx/W, fy/H, cx/W, cy/H) + b

Twelve numbers of the world-to-camera pose, row by row, and four of the lens; every token of a view gets the same. It says
nothing about places in the image: compose it with one that does ("learned+camera_ape"). Absolute: another frame of the world is
another input. This form is ours; Sajjadi et al., Scene Representation Transformer, CVPR 2022, arXiv 2111.13152, give the camera
to a view-synthesis transformer as sines of each ray, to which `plucker` with form="raymap" is nearer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.rays import cameras_of
from .base import Card, Encoding, at_least_float32
from .rotary import positive


class CameraApe(Encoding):
    """Absolute camera embedding.

    Args:
        intrinsics: give the four numbers of the lens too; positions must then carry intrinsics.
        scale: world units that count as 1 in translations.

    Attributes:
        proj: (16 or 12 → C).
    """

    card = Card(
        title="Absolute camera embedding",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + W (R, t, f, c) + b",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2111.13152",
        year=2022,
    )
    neutral_zeros = ("proj",)

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, intrinsics: bool = True, scale: float = 1.0
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.intrinsics, self.scale = intrinsics, positive("camera_ape", "scale", scale)
        self.proj = nn.Linear(16 if intrinsics else 12, dim)

    def reset_parameters(self) -> None:
        self.proj.reset_parameters()

    def numbers(self, pos: CameraPositions) -> Tensor:
        """(B or 1, V, 16 or 12) float32."""
        r, t = pos.world_to_camera[..., :3, :3], pos.world_to_camera[..., :3, 3:] / self.scale
        found = torch.cat((r, t), dim=-1).flatten(-2)
        if not self.intrinsics:
            return found
        k, (height, width) = pos.intrinsics, pos.image_size
        lens = torch.stack(
            (k[..., 0, 0] / width, k[..., 1, 1] / height, k[..., 0, 2] / width, k[..., 1, 2] / height), dim=-1
        )
        batch = max(found.shape[0], lens.shape[0])
        return torch.cat((found.expand(batch, -1, -1), lens.expand(batch, -1, -1)), dim=-1)

    def prepare(self, pos: CameraPositions) -> Tensor:
        """What is added, (B or 1, prefix + N, C)."""
        self.check_axes(pos)
        pos = cameras_of(pos, "camera_ape", intrinsics=self.intrinsics)
        dtype = at_least_float32(self.proj.weight.dtype)
        views = F.linear(self.numbers(pos).to(dtype), self.proj.weight.to(dtype), self.proj.bias.to(dtype))
        return F.pad(pos.of_tokens(views), (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
