"""Rays of the tokens as numbers (Plücker coordinates and their relatives), projected and added to the tokens.

    x_n ← x_n + W·r_n,   r = (d, m = o × d) for the ray through the token's centre; o origin, d unit direction, world axes

Adding W·r equals appending r to the token's channels ahead of its first linear layer, whose new columns are W.
`form` is what r holds; every form is one official code's:

    spad        (d, m), +½: yashkant/spad@7a375c0 (MIT, world-to-camera poses); also GBT in autonomousvision/gta@1dcbd37
    cameractrl  (m, d), +½: hehao13/CameraCtrl@af45a7a (Apache-2.0, camera-to-world poses)
    lvsm        (d, m), raymap (o, d), camray (d, m at the identity pose, so m = 0): liruilong940607/prope, in
                Lucas-707/RayRoPE@52e3631 (MIT); +½ after dividing K by the downscaling
    lfn         (d, m) at integer pixels without +½: Light Field Networks, vsitzmann/light-field-networks
    gbt         (d, m) of rays that are given: autonomousvision/gta@1dcbd37 (MIT)
    closest     (d, d × m): the point of the ray nearest to the origin; ours, stays small where o is far

All give one layout here, (B, N, channels); official maps are (V, 6, H, W), (B, V, H, W, 6) and so on. Differences: SPAD
concatenates inside each block's residual branch, ahead of `proj_in`; inject="blocks" adds to the residual stream ahead of each
block. Released CameraCtrl crosses over the wrong axis for 3 samples or 3 views; here the axis is always the last. d has scale 1
and m the scene's: `scale` divides origins. Prefix tokens get nothing.
Papers: SPAD, arXiv 2402.05235; CameraCtrl, 2404.02101; LVSM, 2410.17242; PRoPE, 2507.10496; LFN, 2106.02634.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import CameraPositions
from ..positions.camera_formats import make_pose
from ..positions.rays import cameras_of, pixel_rays, plucker
from .base import Card, Encoding, at_least_float32
from .rotary import positive

Form = Literal["spad", "cameractrl", "lvsm", "raymap", "camray", "lfn", "gbt", "closest"]
FORMS: tuple[str, ...] = get_args(Form)


def ray_channels(origins: Tensor, directions: Tensor, form: Form) -> Tensor:
    """The six numbers (..., 6) of rays in a form; for "camray" and "lfn" the rays must be those that the form asks for."""
    if form == "raymap":
        return torch.cat((origins, directions), dim=-1)
    if form == "cameractrl":
        return plucker(origins, directions, order="moment_direction")
    line = plucker(origins, directions)
    if form == "closest":
        return torch.cat((directions, torch.linalg.cross(directions, line[..., 3:], dim=-1)), dim=-1)
    return line


def sample_pixels(pos: CameraPositions, samples: int, *, corner: bool = False) -> Tensor:
    """Pixels (B or 1, N, samples², 2) of a grid of points inside every token, row-major; `corner`: top-left corners."""
    (height, width), (h, w) = pos.image_size, pos.extent
    inside = (torch.arange(samples, device=pos.coords.device) + (0.0 if corner else 0.5)) / samples
    row, col = (c[..., None] + inside for c in pos.coords.unbind(-1))  # (B or 1, N, samples)
    u = (col * (width / w))[..., None, :].expand(*col.shape[:-1], samples, samples)
    v = (row * (height / h))[..., :, None].expand_as(u)
    return torch.stack((u, v), dim=-1).flatten(-3, -2)


def ray_map(pos: CameraPositions, form: Form = "spad", *, samples: int = 1, scale: float = 1.0) -> Tensor:
    """Rays of every token, (B or 1, N, 6·samples²) float32, sample-major."""
    k, pose = pos.of_tokens(pos.intrinsics), pos.of_tokens(pos.world_to_camera)
    if form == "camray":
        pose = torch.eye(4, device=pose.device).expand_as(pose)
    elif scale != 1.0:
        pose = make_pose(pose[..., :3, :3], pose[..., :3, 3] / scale)
    origins, directions = pixel_rays(sample_pixels(pos, samples, corner=form == "lfn"), pose, k)
    return ray_channels(origins, directions, form).flatten(-2)


class Plucker(Encoding):
    """Ray coordinates through a linear layer.

    Args:
        form: what stands for a ray, see above.
        samples: rays of each token along each side; the patch size gives one ray a pixel (LVSM's patchified map).
        inject: "tokens" adds ahead of block 0; "blocks" ahead of every block, each with a projection of its own (SPAD).
        init: "zero" (SPAD: nothing changes at first) or "normal" (PyTorch's linear layer).
        scale: world units that count as 1 in origins and moments.
        depth: blocks of the host, for inject="blocks".

    Attributes:
        proj: (6·samples² → C) without bias, or of each block, by the number of the block ahead of it.
    """

    card = Card(
        title="Plücker rays",
        family="additive",
        axes=(2,),
        injection=("tokens", "between"),
        formula="x_n + W (d, o x d)",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2402.05235",
        year=2024,
        code="yashkant/spad",
        licence="MIT",
        cases=6,
    )
    neutral_zeros = ("proj",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        form: Form = "spad",
        samples: int = 1,
        inject: Literal["tokens", "blocks"] = "tokens",
        init: Literal["zero", "normal"] = "zero",
        scale: float = 1.0,
        depth: int | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        choices = (("form", form, FORMS), ("inject", inject, ("tokens", "blocks")), ("init", init, ("zero", "normal")))
        for option, value, known in choices:
            if value not in known:
                raise ValueError(f"plucker: {option} must be one of {known}, got {value!r}.")
        if samples < 1:
            raise ValueError(f"plucker: samples counts rays along a side and must be at least 1, got {samples}.")
        if inject == "blocks" and not depth:
            raise ValueError("plucker: inject='blocks' needs depth, the number of blocks of the host.")
        self.form, self.samples, self.init, self.scale = form, samples, init, positive("plucker", "scale", scale)
        width = 6 * samples**2
        if inject == "tokens":
            self.proj = nn.Linear(width, dim, bias=False)
        else:
            self.proj = nn.ModuleDict({str(i): nn.Linear(width, dim, bias=False) for i in range(-1, depth - 1)})
            self.of_blocks = "proj"
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in self.proj.values() if isinstance(self.proj, nn.ModuleDict) else (self.proj,):
            if self.init == "zero":
                nn.init.zeros_(layer.weight)
            else:
                layer.reset_parameters()

    def truncate(self, depth: int) -> None:
        """Drop the projections ahead of blocks that are gone."""
        if isinstance(self.proj, nn.ModuleDict):
            for i in [i for i in self.proj if int(i) >= depth - 1]:
                del self.proj[i]

    def prepare(self, pos: CameraPositions) -> dict[str, Tensor]:
        """What is added, (1 or B, prefix + N, C), by the block behind which it is ("tokens": ahead of all)."""
        self.check_axes(pos)
        rays = ray_map(cameras_of(pos, "plucker", intrinsics=True), self.form, samples=self.samples, scale=self.scale)
        layers = self.proj if isinstance(self.proj, nn.ModuleDict) else {"tokens": self.proj}
        return {name: F.pad(_linear(rays, layer.weight), (0, 0, pos.prefix, 0)) for name, layer in layers.items()}

    def tokens(self, x: Tensor, ctx: dict[str, Tensor]) -> Tensor:
        return x + ctx["tokens"].to(x.dtype) if "tokens" in ctx else x

    def between(self, x: Tensor, ctx: dict[str, Tensor], i: int) -> Tensor:
        return x + ctx[str(i)].to(x.dtype) if str(i) in ctx else x


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """In at least float32, whatever the module's dtype."""
    dtype = at_least_float32(weight.dtype)
    return F.linear(x.to(dtype), weight.to(dtype))
