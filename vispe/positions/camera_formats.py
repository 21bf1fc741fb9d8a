"""Converters of camera poses and intrinsics from and to other conventions; the one inside is that of `camera`.

Poses keep their dtype; rotations are inverted by transposition, so pass poses that are rigid (`with_cameras` checks). Any
leading axes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Frame = Literal["unit", "centered", "symmetric", "pytorch3d"]
FRAMES: tuple[str, ...] = ("unit", "centered", "symmetric", "pytorch3d")


def rotate(rotation: Tensor, vectors: Tensor) -> Tensor:
    """R·x for rotations (..., 3, 3) and vectors (..., 3), without a matmul, which autocast would downcast."""
    return (rotation * vectors[..., None, :]).sum(-1)


def make_pose(rotation: Tensor, translation: Tensor) -> Tensor:
    """(..., 4, 4) from rotations (..., 3, 3) and translations (..., 3)."""
    top = torch.cat((rotation, translation[..., None]), dim=-1)
    last = top.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(*top.shape[:-2], 1, 4)
    return torch.cat((top, last), dim=-2)


def invert_pose(pose: Tensor) -> Tensor:
    """The inverse (..., 4, 4) of rigid poses: [Rᵀ, −Rᵀt]."""
    back = pose[..., :3, :3].mT
    return make_pose(back, -rotate(back, pose[..., :3, 3]))


# ---- poses --------------------------------------------------------------------------------------------------------------


def from_camera_to_world(camera_to_world: Tensor) -> Tensor:
    """world_to_camera of camera-to-world poses with OpenCV axes."""
    return invert_pose(camera_to_world)


def to_camera_to_world(world_to_camera: Tensor) -> Tensor:
    """Camera-to-world poses with OpenCV axes."""
    return invert_pose(world_to_camera)


def from_opengl(camera_to_world: Tensor) -> Tensor:
    """world_to_camera of camera-to-world poses with OpenGL axes (x right, y up, z backward): Blender, NeRF, nerfstudio."""
    return invert_pose(camera_to_world) * _signs(camera_to_world, 1, -1, -1)


def to_opengl(world_to_camera: Tensor) -> Tensor:
    """Camera-to-world poses with OpenGL axes."""
    return invert_pose(world_to_camera * _signs(world_to_camera, 1, -1, -1))


def from_colmap(quaternion: Tensor, translation: Tensor) -> Tensor:
    """world_to_camera of COLMAP's images: quaternions (..., 4) as w, x, y, z, normalised here, and translations (..., 3).

    Raises:
        ValueError: a quaternion shorter than 1e-6.
    """
    norm = quaternion.norm(dim=-1, keepdim=True)
    if not torch.compiler.is_compiling() and not (norm > 1e-6).all():
        raise ValueError("from_colmap: a quaternion is zero or NaN, which is no rotation; leave that image out.")
    w, x, y, z = (quaternion / norm).unbind(-1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return make_pose(torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2), translation)


def to_colmap(world_to_camera: Tensor) -> tuple[Tensor, Tensor]:
    """Quaternions (..., 4) as w, x, y, z with w >= 0, and translations (..., 3)."""
    r = world_to_camera[..., :3, :3]
    d = r.diagonal(dim1=-2, dim2=-1)
    x, y, z = d.unbind(-1)
    a, b, c = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    e, f, g = r[..., 0, 1] + r[..., 1, 0], r[..., 0, 2] + r[..., 2, 0], r[..., 1, 2] + r[..., 2, 1]
    outer = torch.stack((  # 4·q·qᵀ
        torch.stack((1 + x + y + z, a, b, c), dim=-1),
        torch.stack((a, 1 + x - y - z, e, f), dim=-1),
        torch.stack((b, e, 1 - x + y - z, g), dim=-1),
        torch.stack((c, f, g, 1 - x - y + z), dim=-1),
    ), dim=-2)  # fmt: skip
    best = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)  # its row is far from zero whatever the angle
    q = outer.gather(-2, best[..., None, None].expand(*best.shape, 1, 4)).squeeze(-2)
    q = q / q.norm(dim=-1, keepdim=True)
    return torch.where(q[..., :1] < 0, -q, q), world_to_camera[..., :3, 3]


def from_pytorch3d(rotation: Tensor, translation: Tensor) -> Tensor:
    """world_to_camera of PyTorch3D's R (..., 3, 3), for row vectors, and T (..., 3); its axes are x left, y up, z forward."""
    return make_pose(rotation.mT, translation) * _signs(rotation, -1, -1, 1)


def to_pytorch3d(world_to_camera: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch3D's R (..., 3, 3), for row vectors, and T (..., 3)."""
    pose = world_to_camera * _signs(world_to_camera, -1, -1, 1)
    return pose[..., :3, :3].mT, pose[..., :3, 3]


def _signs(like: Tensor, x: int, y: int, z: int) -> Tensor:
    return like.new_tensor([x, y, z, 1])[:, None]


# ---- intrinsics ---------------------------------------------------------------------------------------------------------


def make_intrinsics(fx: Tensor | float, fy: Tensor | float, cx: Tensor | float, cy: Tensor | float) -> Tensor:
    """(..., 3, 3) float32 (float64 for float64 inputs) from focal lengths and principal points."""
    tensors = [torch.as_tensor(t) for t in (fx, fy, cx, cy)]
    fx, fy, cx, cy = torch.broadcast_tensors(*(t if t.is_floating_point() else t.float() for t in tensors))
    zero, one = torch.zeros_like(fx), torch.ones_like(fx)
    return torch.stack((fx, zero, cx, zero, fy, cy, zero, zero, one), dim=-1).unflatten(-1, (3, 3))


def from_field_of_view(angle: Tensor | float, image_size: tuple[int, int]) -> Tensor:
    """Intrinsics (..., 3, 3) with square pixels, a centred principal point and a horizontal angle of view in radians."""
    height, width = image_size
    focal = width / 2 / torch.as_tensor(angle).div(2).tan()
    return make_intrinsics(focal, focal, width / 2, height / 2)


def from_opencv_calibration(intrinsics: Tensor) -> Tensor:
    """Intrinsics whose integer coordinates are pixel centres (OpenCV's calibration, cx = (W − 1)/2 when centred): + ½."""
    return _shift(intrinsics, 0.5, 0.5)


def to_opencv_calibration(intrinsics: Tensor) -> Tensor:
    """Intrinsics whose integer coordinates are pixel centres: − ½."""
    return _shift(intrinsics, -0.5, -0.5)


def from_normalized(intrinsics: Tensor, image_size: tuple[int, int], *, frame: Frame = "unit") -> Tensor:
    """Pixel intrinsics of normalised ones.

    Args:
        frame: where an image of height H and width W lies. "unit": [0, 1] on both axes (fx/W, cx/W); "centered": [−½, ½]
            (fx/W, cx/W − ½; PRoPE); "symmetric": [−1, 1] (2fx/W, 2cx/W − 1; clip space with y down); "pytorch3d": the shorter
            side is [−1, 1], and x left, y up (2fx/S, (W − 2cx)/S with S = min(H, W)).
    """
    scale, shift = _frame(intrinsics, image_size, frame)
    return torch.cat(((_flipped(intrinsics, frame)[..., :2, :] - shift) / scale, intrinsics[..., 2:, :]), dim=-2)


def to_normalized(intrinsics: Tensor, image_size: tuple[int, int], *, frame: Frame = "unit") -> Tensor:
    """Normalised intrinsics of pixel ones; `frame` as in `from_normalized`."""
    scale, shift = _frame(intrinsics, image_size, frame)
    return _flipped(torch.cat((intrinsics[..., :2, :] * scale + shift, intrinsics[..., 2:, :]), dim=-2), frame)


def _frame(like: Tensor, image_size: tuple[int, int], frame: str) -> tuple[Tensor, Tensor]:
    """Factors (2, 1) of both rows and what is added (2, 3) to them (to the last column only)."""
    if frame not in FRAMES:
        raise ValueError(f"normalised intrinsics: frame must be one of {FRAMES}, got {frame!r}.")
    height, width = image_size
    short = min(height, width)
    scale = {
        "unit": (1 / width, 1 / height), "centered": (1 / width, 1 / height), "symmetric": (2 / width, 2 / height),
        "pytorch3d": (2 / short, 2 / short),
    }[frame]  # fmt: skip
    shift = {"unit": (0, 0), "centered": (0.5, 0.5), "symmetric": (1, 1), "pytorch3d": (width / short, height / short)}[frame]
    return like.new_tensor(scale)[:, None], like.new_tensor([[0, 0, -shift[0]], [0, 0, -shift[1]]])


def _flipped(intrinsics: Tensor, frame: str) -> Tensor:
    """Axes that point the other way, of the camera and of the image both: only the principal point changes sign."""
    if frame != "pytorch3d":
        return intrinsics
    return intrinsics * intrinsics.new_tensor([[1, 1, -1], [1, 1, -1], [1, 1, 1]])


# ---- what happens to the image happens to the intrinsics ------------------------------------------------------------------


def resize_intrinsics(intrinsics: Tensor, image_size: tuple[int, int], new_size: tuple[int, int]) -> Tensor:
    """After resizing (height, width) to a new (height, width): diag(s_x, s_y, 1)·K, exact with corners at integers."""
    rows = [new_size[1] / image_size[1], new_size[0] / image_size[0], 1.0]
    return intrinsics * intrinsics.new_tensor(rows)[:, None]


def crop_intrinsics(intrinsics: Tensor, top: float | Tensor, left: float | Tensor) -> Tensor:
    """After cutting `top` rows and `left` columns off (numbers, or tensors of the leading shape)."""
    return _shift(intrinsics, -left, -top)


def pad_intrinsics(intrinsics: Tensor, top: float | Tensor, left: float | Tensor) -> Tensor:
    """After putting `top` rows and `left` columns ahead of the image; padding below and to the right changes nothing."""
    return _shift(intrinsics, left, top)


def flip_intrinsics(
    intrinsics: Tensor, image_size: tuple[int, int], *, axis: Literal["horizontal", "vertical"] = "horizontal"
) -> Tensor:
    """After mirroring the image left-right (cx' = W − cx, fx' = −fx) or top-bottom; poses stay as they are.

    The negative focal length is the honest description: a mirror image cannot be had by moving a camera.
    """
    if axis not in ("horizontal", "vertical"):
        raise ValueError(f"flip_intrinsics: axis is 'horizontal' or 'vertical', got {axis!r}.")
    row = 0 if axis == "horizontal" else 1
    signs = [1.0, 1.0, 1.0]
    signs[row] = -1.0
    flipped = intrinsics * intrinsics.new_tensor(signs)[:, None]
    return _shift(flipped, *((image_size[1], 0.0) if row == 0 else (0.0, image_size[0])))


def _shift(intrinsics: Tensor, x: float | Tensor, y: float | Tensor) -> Tensor:
    moved = intrinsics.clone()
    moved[..., 0, 2] += x
    moved[..., 1, 2] += y
    return moved
