"""Refusing cameras that are broken or in another convention than `camera` documents, with what is wrong and by how much."""

from __future__ import annotations

import torch
from torch import Tensor

RIGID = 1e-3  # largest entry of R·Rᵀ − I that rounding and files with few digits explain


def check_cameras(world_to_camera: Tensor, intrinsics: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Poses (B or 1, V, 4, 4), in their dtype, and float32 intrinsics (B or 1, V, 3, 3) that passed every check.

    Values are checked only when not compiling, because a graph cannot raise.
    """
    world_to_camera = _batched("world_to_camera", world_to_camera, 4)
    if intrinsics is not None:
        intrinsics = _batched("intrinsics", intrinsics, 3)
        if intrinsics.shape[1] != world_to_camera.shape[1]:
            raise ValueError(
                f"with_cameras: {intrinsics.shape[1]} intrinsics for {world_to_camera.shape[1]} cameras; pass one a view."
            )
    if not torch.compiler.is_compiling():
        check_rigid(world_to_camera, "world_to_camera")
        if intrinsics is not None:
            check_intrinsics(intrinsics)
    return world_to_camera, None if intrinsics is None else intrinsics.float()


def check_rigid(pose: Tensor, name: str = "pose") -> Tensor:
    """The poses (..., 4, 4) when all are rotations with a translation and a last row [0, 0, 0, 1].

    Raises:
        ValueError: otherwise, with the deviation and a guess of the reason.
    """
    _check_float(name, pose, (4, 4))
    last = pose[..., 3, :]
    if (last - last.new_tensor([0.0, 0.0, 0.0, 1.0])).abs().max() > 1e-6:
        worst = last.reshape(-1, 4)[(last.reshape(-1, 4) - last.new_tensor([0.0, 0, 0, 1])).abs().sum(-1).argmax()]
        rows = (pose[..., :3, 3] == 0).all() and (last[..., :3] != 0).any()
        hint = "transpose it (it is made for row vectors)" if rows else "pass rigid 4x4 matrices"
        raise ValueError(f"{name}: the last row must be [0, 0, 0, 1], got {[round(v, 4) for v in worst.tolist()]}; {hint}.")
    rotation = pose[..., :3, :3].double()
    error = (rotation @ rotation.mT - torch.eye(3, dtype=torch.float64, device=pose.device)).abs().amax((-1, -2))
    if error.max() > RIGID:
        scale = rotation.reshape(-1, 3, 3)[error.argmax()].det().abs() ** (1 / 3)
        raise ValueError(
            f"{name}: a rotation is not orthonormal, |R·Rᵀ − I| is up to {error.max():.3g} ({RIGID:g} allowed; its mean scale "
            f"is {scale:.4g}); divide the scale out, or re-orthonormalise it by an SVD."
        )
    if (rotation.det() < 0).any():
        raise ValueError(
            f"{name}: a rotation has determinant −1, a mirror image: one axis was negated alone. Convert from OpenGL or "
            f"PyTorch3D with camera_formats, and flip images through the intrinsics (flip_intrinsics)."
        )
    return pose


def check_intrinsics(intrinsics: Tensor, name: str = "intrinsics") -> Tensor:
    """The intrinsics (..., 3, 3) when all are finite, upper triangular with last row [0, 0, 1], and invertible."""
    _check_float(name, intrinsics, (3, 3))
    lower = torch.stack([intrinsics[..., 1, 0], intrinsics[..., 2, 0], intrinsics[..., 2, 1], intrinsics[..., 2, 2] - 1])
    if lower.abs().max() > 1e-6:
        raise ValueError(
            f"{name}: must be [[fx, s, cx], [0, fy, cy], [0, 0, 1]], got entries below the diagonal or a last entry that are "
            f"off by {lower.abs().max():.3g}; transpose or rescale them."
        )
    focal = torch.stack((intrinsics[..., 0, 0], intrinsics[..., 1, 1])).abs()
    if focal.min() < 1e-6:
        raise ValueError(
            f"{name}: singular, the smallest focal length is {focal.min():.3g} pixels; an orthographic camera has no rays from "
            f"one point, so pass a camera with fx and fy other than 0."
        )
    if focal.max() > 1e12:
        raise ValueError(f"{name}: a focal length of {focal.max():.3g} pixels is a camera at infinity; pass a finite one.")
    return intrinsics


def check_image_size(image_size: tuple[int, int] | None, intrinsics: Tensor | None) -> tuple[int, int] | None:
    """(height, width); refuses intrinsics without it and intrinsics that look normalised by it."""
    if image_size is None:
        if intrinsics is not None:
            raise ValueError("with_cameras: intrinsics are in pixels, so image_size=(height, width) is needed with them.")
        return None
    size = tuple(image_size)
    if len(size) != 2 or any(isinstance(n, int) and n < 1 for n in size):
        raise ValueError(f"with_cameras: image_size is (height, width) in pixels, got {image_size!r}.")
    if intrinsics is not None and not torch.compiler.is_compiling() and min(size) > 20:
        focal = torch.stack((intrinsics[..., 0, 0], intrinsics[..., 1, 1])).abs().amax(0)
        centre = intrinsics[..., :2, 2].abs().amax(-1)
        if ((focal < 10) & (centre <= 1.5)).any():
            raise ValueError(
                f"with_cameras: intrinsics with a focal length of {focal.min():.3g} and principal point of {centre.min():.3g} "
                f"look normalised for an image of {size} pixels; convert them with camera_formats.from_normalized."
            )
    return size


def check_depth(depth: Tensor | None, tokens: int) -> Tensor | None:
    """Depth as (B or 1, N) float32."""
    if depth is None:
        return None
    if not isinstance(depth, Tensor) or depth.ndim not in (1, 2) or depth.shape[-1] != tokens:
        got = tuple(depth.shape) if isinstance(depth, Tensor) else depth
        raise ValueError(f"with_cameras: depth must be (N,) or (B, N) for the {tokens} tokens of all views, got {got}.")
    _check_dtype("depth", depth)
    if not torch.compiler.is_compiling() and not depth.isfinite().all():
        raise ValueError("with_cameras: depth has NaN or infinite entries; set depths that are not known to 0.")
    return (depth if depth.ndim == 2 else depth[None]).float()


def check_depth_scale(depth: Tensor, far: float, name: str) -> None:
    """Refuse depth (..., N) whose known (positive) values cannot be metres of a scene that ends at `far`.

    Median beyond ten times the range: millimetres. All below 1 for a range of 10 m or more: inverse or normalised depth.
    """
    if torch.compiler.is_compiling():
        return
    known = depth[depth > 0]
    if not len(known):
        return
    middle, most = known.median().item(), known.max().item()
    if middle > 10 * far:
        raise ValueError(
            f"{name}: half of the known depths are beyond {middle:.4g}, far outside the range of {far:.4g} m; they look like "
            f"millimetres: divide them by 1000, or widen position_range."
        )
    if most < 1 and far >= 10:
        raise ValueError(
            f"{name}: the largest known depth is {most:.4g} for a range of {far:.4g} m; it looks normalised or inverse: pass "
            f"metres along z, 0 where it is not known."
        )


def _batched(name: str, tensor: Tensor, side: int) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.ndim not in (3, 4) or tensor.shape[-2:] != (side, side):
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else repr(tensor)
        raise ValueError(f"with_cameras: {name} must be (V, {side}, {side}) or (B, V, {side}, {side}), got {got}.")
    _check_dtype(name, tensor)
    return tensor if tensor.ndim == 4 else tensor[None]


def _check_dtype(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name}: {tensor.dtype} cannot hold a camera; pass float32 or float64.")


def _check_float(name: str, tensor: Tensor, shape: tuple[int, int]) -> None:
    if tensor.shape[-2:] != shape:
        raise ValueError(f"{name}: must be (..., {shape[0]}, {shape[1]}), got {tuple(tensor.shape)}.")
    _check_dtype(name, tensor)
    if not tensor.isfinite().all():
        broken = int((~tensor.isfinite()).any(-1).any(-1).sum())
        raise ValueError(f"{name}: {broken} of {tensor[..., 0, 0].numel()} have NaN or infinite entries; leave such views out.")
