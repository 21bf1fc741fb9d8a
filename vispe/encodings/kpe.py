"""KPE: the angles under which a lens sees each token, as octaves, added to the tokens: what crops lose without it.

    x_n ← x_n + W·[sin, cos](2^l θ_n) + b,   θ = (atan2(u − cx, fx), atan2(v − cy, fy)),  l = 0 ... L − 1

Paper: Prakash et al., Mitigating Perspective Distortion-induced Shape Ambiguity in Image Crops, ECCV 2024, arXiv 2312.06594.
Code: ap229997/ambiguity@ff8284b (no π; L = 4 for hands, 8 for depth and detection). "dense": the angle of every token.
"center_corner": of the middle and the four corners of the image, one and the same for all tokens. Intrinsics follow a crop and
a resize (`crop_intrinsics`, `resize_intrinsics`), so that a crop's tokens get the angles that they had in the whole image.
Adding W·f equals appending f to the channels ahead of a 1x1 convolution; net="mlp" is what the same authors put into ViTs.
Different here: angles are taken at the centre of every token, turned the right way. Released dense maps of ARCTIC
(`arctic_map`) are transposed, start at the corner of a canvas whatever the size of the crop, and are 0 elsewhere; those of
detection take the tangent instead of the angle (`angles="tangent"`). Skew is ignored. Prefix tokens get nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.rays import cameras_of
from .base import Card, Encoding, at_least_float32

Form = Literal["dense", "center_corner", "both"]
FORMS = ("dense", "center_corner", "both")


def lens_angles(pixels: Tensor, intrinsics: Tensor, *, angles: Literal["angle", "tangent"] = "angle") -> Tensor:
    """Radians (..., 2) off the principal axis, x before y, of pixels (..., 2), u before v; intrinsics (..., 3, 3)."""
    offset = pixels - intrinsics[..., :2, 2]
    focal = torch.stack((intrinsics[..., 0, 0], intrinsics[..., 1, 1]), dim=-1)
    return offset / focal if angles == "tangent" else torch.atan2(offset, focal.expand_as(offset))


def angle_octaves(angles: Tensor, count: int) -> Tensor:
    """(..., 2 · A · count): octave outside, then coordinate, then sine and cosine of angles (..., A)."""
    turned = 2.0 ** torch.arange(count, dtype=angles.dtype, device=angles.device)[:, None] * angles[..., None, :]
    return torch.stack((turned.sin(), turned.cos()), dim=-1).flatten(-3)


def center_corner(boxes: Tensor, intrinsics: Tensor, count: int, *, angles: Literal["angle", "tangent"] = "angle") -> Tensor:
    """(..., 20 · count) of boxes (..., 4) as x0, y0, x1, y1 in pixels: the middle's octaves, then those of the four corners."""
    x0, y0, x1, y1 = boxes.unbind(-1)
    corners = torch.stack((x0, y0, x0, y1, x1, y0, x1, y1), dim=-1).unflatten(-1, (4, 2))
    middle = torch.stack((x0 + x1, y0 + y1), dim=-1) / 2
    around = lens_angles(corners, intrinsics[..., None, :, :], angles=angles).flatten(-2)
    return torch.cat(
        (angle_octaves(lens_angles(middle, intrinsics, angles=angles), count), angle_octaves(around, count)), dim=-1
    )


def arctic_map(boxes: Tensor, intrinsics: Tensor, count: int, canvas: int) -> tuple[Tensor, Tensor, Tensor]:
    """Released dense map of ARCTIC, quirks and all: columns ahead of rows, both ends of a box, pasted at the canvas' corner.

    Args:
        boxes: (B, 4) whole pixels x0, y0, x1, y1. intrinsics: (B, 3, 3). count: L. canvas: its side.

    Returns:
        Octaves (B, 4 · count, canvas, canvas), angles (B, 2, canvas, canvas), mask (B, canvas, canvas), all float32.
    """
    steps = torch.arange(canvas, device=intrinsics.device)
    places = boxes[:, :2, None] + steps  # (B, 2, canvas)
    inside = places <= boxes[:, 2:, None]
    mask = (inside[:, 0, :, None] & inside[:, 1, None, :]).to(intrinsics.dtype)  # (B, x, y)
    angle = lens_angles(places.mT.to(intrinsics.dtype), intrinsics[:, None]).mT  # (B, 2, canvas)
    x, y = angle[:, 0, :, None].expand_as(mask), angle[:, 1, None, :].expand_as(mask)
    angle = torch.stack((x, y), dim=1) * mask[:, None]
    octaves = angle_octaves(angle.movedim(1, -1), count).movedim(-1, 1) * mask[:, None]
    return octaves, angle, mask


class Kpe(Encoding):
    """Lens angles.

    Args:
        form: "dense", "center_corner" or "both".
        num_freqs: L.
        angles: "angle", or "tangent" as released detection code has in its dense maps.
        net: "linear", or "mlp" (two layers, both with a ReLU behind).

    Attributes:
        proj: one Linear, or Linear, ReLU, Linear, ReLU.
    """

    card = Card(
        title="KPE",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + W [sin, cos](2^l (atan((u - cx)/fx), atan((v - cy)/fy))) + b",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2312.06594",
        year=2024,
        code="ap229997/ambiguity",
        licence="none stated",
        cases=2,
    )
    neutral_zeros = ("proj",)

    def __init__(
        self, *, dim: int, num_heads: int, axes: int = 2, form: Form = "dense", num_freqs: int = 4,
        angles: Literal["angle", "tangent"] = "angle", net: Literal["linear", "mlp"] = "linear",
    ) -> None:  # fmt: skip
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        choices = (("form", form, FORMS), ("angles", angles, ("angle", "tangent")), ("net", net, ("linear", "mlp")))
        for option, value, known in choices:
            if value not in known:
                raise ValueError(f"kpe: {option} must be one of {known}, got {value!r}.")
        if num_freqs < 1:
            raise ValueError(f"kpe: num_freqs must be at least 1, got {num_freqs}.")
        self.form, self.num_freqs, self.angles = form, num_freqs, angles
        width = num_freqs * {"dense": 4, "center_corner": 20, "both": 24}[form]
        if net == "linear":
            self.proj: nn.Module = nn.Linear(width, dim)
        else:
            self.proj = nn.Sequential(nn.Linear(width, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())

    def reset_parameters(self) -> None:
        for layer in self.layers():
            layer.reset_parameters()

    def set_identity(self) -> bool:
        """None behind a ReLU, where zeros have no gradient."""
        return isinstance(self.proj, nn.Linear) and super().set_identity()

    def layers(self) -> list[nn.Linear]:
        return [m for m in self.proj.modules() if isinstance(m, nn.Linear)]

    def features(self, pos: CameraPositions) -> Tensor:
        """(1 or B, N, features) float32."""
        found = []
        if self.form != "center_corner":
            angles = lens_angles(pos.pixels(), pos.of_tokens(pos.intrinsics), angles=self.angles)
            found.append(angle_octaves(angles, self.num_freqs))
        if self.form != "dense":
            height, width = pos.image_size
            k = pos.intrinsics
            zero = torch.zeros_like(k[..., 0, 0])
            whole = torch.stack((zero, zero, zero + width, zero + height), dim=-1)
            found.append(pos.of_tokens(center_corner(whole, k, self.num_freqs, angles=self.angles)))
        batch = max(f.shape[0] for f in found)
        return torch.cat([f.expand(batch, -1, -1) for f in found], dim=-1)

    def prepare(self, pos: CameraPositions) -> Tensor:
        """What is added, (1 or B, prefix + N, C)."""
        self.check_axes(pos)
        x = self.features(cameras_of(pos, "kpe", intrinsics=True))
        for layer in self.layers():
            dtype = at_least_float32(layer.weight.dtype)
            x = F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
            x = x if isinstance(self.proj, nn.Linear) else x.relu()
        return F.pad(x, (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
