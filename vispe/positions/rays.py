"""Geometry of cameras: rays, Plücker coordinates, frustum points, projection, poses relative to one another.

    p = (x, y, 1),  y = (v − cy)/fy,  x = (u − cx − s·y)/fx;   d = Rᵀp/|p|,  o = −Rᵀt,  m = o × d

Everything is in the convention of `camera`. Leading axes broadcast; products are elementwise sums, which autocast leaves in
float32, and poses are composed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .camera import CameraPositions
from .camera_formats import invert_pose, rotate
from .grid import Positions

Order = Literal["direction_moment", "moment_direction"]
Spacing = Literal["lid", "uniform", "log"]


def unit(vectors: Tensor) -> Tensor:
    """Vectors (..., 3) of length 1; a vector shorter than 1e-12 stays as good as zero instead of becoming NaN."""
    length = vectors.square().sum(-1, keepdim=True).clamp(min=1e-24).sqrt()  # sqrt after the clamp: its gradient at 0 is inf
    return vectors / length


def unproject(pixels: Tensor, intrinsics: Tensor) -> Tensor:
    """Directions (..., N, 3) in camera axes with z = 1 through pixels (..., N, 2), u before v; intrinsics (..., 3, 3)."""
    k = intrinsics[..., None, :, :]  # (..., 1, 3, 3)
    y = (pixels[..., 1] - k[..., 1, 2]) / k[..., 1, 1]
    x = (pixels[..., 0] - k[..., 0, 2] - k[..., 0, 1] * y) / k[..., 0, 0]
    return torch.stack((x, y, torch.ones_like(x)), dim=-1)


def camera_centre(world_to_camera: Tensor) -> Tensor:
    """o = −Rᵀt, (..., 3)."""
    return -(world_to_camera[..., :3, :3] * world_to_camera[..., :3, 3:]).sum(-2)


def pixel_rays(pixels: Tensor, world_to_camera: Tensor, intrinsics: Tensor) -> tuple[Tensor, Tensor]:
    """Origins and unit directions, both (..., N, 3) in world axes, of pixels (..., N, 2); one camera a leading index."""
    directions = rotate(world_to_camera[..., None, :3, :3].mT, unit(unproject(pixels, intrinsics)))
    return camera_centre(world_to_camera)[..., None, :].expand_as(directions), directions


def pixel_centres(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """u and v of every pixel of an image, (height, width, 2) float32."""
    v, u = (torch.arange(n, device=device, dtype=torch.float32) + 0.5 for n in (height, width))
    return torch.stack((u.expand(height, -1), v[:, None].expand(-1, width)), dim=-1)


def image_rays(world_to_camera: Tensor, intrinsics: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Origins and unit directions (..., height, width, 3) of all pixel centres of cameras (..., 4, 4) and (..., 3, 3)."""
    pixels = pixel_centres(*image_size, device=intrinsics.device).flatten(0, 1)
    return tuple(t.unflatten(-2, image_size) for t in pixel_rays(pixels, world_to_camera, intrinsics))


def token_cameras(pos: CameraPositions) -> tuple[Tensor, Tensor]:
    """world_to_camera (B or 1, N, 4, 4) and intrinsics (B or 1, N, 3, 3) of every token."""
    return pos.of_tokens(pos.world_to_camera), pos.of_tokens(needs_intrinsics(pos))


def needs_intrinsics(pos: CameraPositions, name: str = "rays") -> Tensor:
    """The intrinsics of positions that have them."""
    return cameras_of(pos, name, intrinsics=True).intrinsics


def cameras_of(pos: Positions, name: str, *, intrinsics: bool = False) -> CameraPositions:
    """The positions, when they carry cameras (and intrinsics); `name` is the encoding that asks.

    Raises:
        ValueError: otherwise, with what they are and how to add cameras.
    """
    if not isinstance(pos, CameraPositions):
        kind = "custom coordinates" if pos.units == "custom" else "a grid alone"
        raise ValueError(
            f"{name}: these positions carry no cameras, they are {kind}; build them with camera_grid or add cameras with "
            f"with_cameras(pos, world_to_camera, intrinsics, image_size=(H, W))."
        )
    if intrinsics and pos.intrinsics is None:
        raise ValueError(f"{name}: these cameras have no intrinsics; pass them, with image_size, to with_cameras.")
    return pos


def token_rays(pos: CameraPositions) -> tuple[Tensor, Tensor]:
    """Origins and unit directions (B or 1, N, 3) in world axes through the centre of every token."""
    pose, k = token_cameras(pos)
    origins, directions = pixel_rays(pos.pixels()[..., None, :], pose, k)
    return origins.squeeze(-2), directions.squeeze(-2)


def plucker(origins: Tensor, directions: Tensor, *, order: Order = "direction_moment") -> Tensor:
    """Plücker coordinates (..., 6): d and m = o × d in the given order; d is taken as it is (unit for rays of this file)."""
    if order not in ("direction_moment", "moment_direction"):
        raise ValueError(f"plucker: order is 'direction_moment' or 'moment_direction', got {order!r}.")
    directions, origins = torch.broadcast_tensors(directions, origins)
    moments = torch.linalg.cross(origins, directions, dim=-1)  # without dim, any axis of 3 ahead would be crossed
    return torch.cat((directions, moments) if order == "direction_moment" else (moments, directions), dim=-1)


def frustum_depths(
    count: int, near: float, far: float, *, spacing: Spacing = "lid", device: torch.device | None = None
) -> Tensor:
    """Depths of `count` bins from `near` on, which do not reach `far`, (count,) float32.

    lid: near + (far − near)·k(k+1)/(D(D+1)); uniform: near + (far − near)·k/D; log: near·(far/near)^(k/D); k = 0 ... D − 1.
    Source of the first two: megvii-research/PETR@f7525f9.
    """
    if count < 1 or not 0 < near < far:
        raise ValueError(f"frustum_depths: needs count >= 1 and 0 < near < far, got count={count}, near={near}, far={far}.")
    k = torch.arange(count, device=device, dtype=torch.float32)
    if spacing == "lid":
        return near + (far - near) / (count * (1 + count)) * k * (k + 1)
    if spacing == "uniform":
        return near + (far - near) / count * k
    if spacing == "log":
        return near * (far / near) ** (k / count)
    raise ValueError(f"frustum_depths: spacing is 'lid', 'uniform' or 'log', got {spacing!r}.")


def frustum_points(pixels: Tensor, world_to_camera: Tensor, intrinsics: Tensor, depths: Tensor) -> Tensor:
    """World points (..., N, D, 3) at depths z (D,) or (..., N, D) along the rays of pixels (..., N, 2); z, not distance."""
    rays = rotate(world_to_camera[..., None, :3, :3].mT, unproject(pixels, intrinsics))  # (..., N, 3)
    centre = camera_centre(world_to_camera)[..., None, None, :]
    return centre + rays[..., None, :] * depths[..., None]  # no 4x4 matrix a point


def project(
    points: Tensor, world_to_camera: Tensor, intrinsics: Tensor, *, near: float = 1e-4
) -> tuple[Tensor, Tensor, Tensor]:
    """Where world points (..., N, 3) appear in cameras (..., 4, 4), (..., 3, 3).

    Returns:
        Pixels (..., N, 2); depth z (..., N); and a mask (..., N), true where z > near. Pixels of points that are not in front
        are finite but mean nothing.
    """
    x, y, z = (rotate(world_to_camera[..., None, :3, :3], points) + world_to_camera[..., None, :3, 3]).unbind(-1)
    front = z > near
    safe = torch.where(front, z, torch.ones_like(z))
    k = intrinsics[..., None, :, :]
    u = (k[..., 0, 0] * x + k[..., 0, 1] * y) / safe + k[..., 0, 2]
    v = k[..., 1, 1] * y / safe + k[..., 1, 2]
    return torch.stack((u, v), dim=-1), z, front


def relative_poses(to: Tensor, of: Tensor) -> Tensor:
    """E_to·E_of⁻¹ (..., 4, 4), from the axes of camera `of` to those of camera `to`; float64 inside, the dtype of `to` out."""
    return (to.double() @ invert_pose(of.double())).to(to.dtype)


def canonical_poses(world_to_camera: Tensor, *, reference: int = 0) -> Tensor:
    """Poses (..., V, 4, 4) with the world moved to the axes of one view: E_i·E_ref⁻¹; that view's becomes the identity.

    Float64 inside and float32 out: relative poses of cameras far from the origin keep the digits that their inputs have, so
    pass float64 poses when the world is kilometres wide.
    """
    base = world_to_camera[..., reference : reference + 1, :, :] if reference != -1 else world_to_camera[..., -1:, :, :]
    return relative_poses(world_to_camera.double(), base).float()


def look_at(
    eye: Tensor | Sequence[float], target: Tensor | Sequence[float], up: Tensor | Sequence[float] = (0.0, 0.0, 1.0)
) -> Tensor:
    """world_to_camera (..., 4, 4) of a camera at `eye` (..., 3) that looks at `target`, `up` towards the image's top."""
    eye, target, up = (torch.as_tensor(t, dtype=torch.float64) for t in (eye, target, up))
    eye, target, up = torch.broadcast_tensors(eye, target, up)
    forward = target - eye
    right = torch.linalg.cross(forward, up, dim=-1)
    if (right.norm(dim=-1) <= 1e-9 * forward.norm(dim=-1) * up.norm(dim=-1)).any():
        raise ValueError("look_at: eye and target coincide, or `up` runs along the line of sight; choose another `up`.")
    forward, right = unit(forward), unit(right)
    rotation = torch.stack((right, torch.linalg.cross(forward, right, dim=-1), forward), dim=-2)
    pose = torch.eye(4, dtype=torch.float64, device=eye.device).repeat(*eye.shape[:-1], 1, 1)
    pose[..., :3, :3], pose[..., :3, 3] = rotation, -rotate(rotation, eye)
    return pose.float()


def orbit(azimuth: Tensor, polar: Tensor, radius: float | Tensor = 3.5) -> Tensor:
    """world_to_camera (..., 4, 4) of cameras on a sphere that look at its middle, z up; radians, `polar` counted from +z.

    SPAD and Zero123 describe cameras so, and call the polar angle elevation.
    """
    numbers = (torch.as_tensor(t, dtype=torch.float64) for t in (azimuth, polar, radius))
    azimuth, polar, radius = torch.broadcast_tensors(*numbers)
    level = radius * polar.sin()
    return look_at(torch.stack((level * azimuth.cos(), level * azimuth.sin(), radius * polar.cos()), dim=-1), (0.0, 0.0, 0.0))
