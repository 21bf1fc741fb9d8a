"""Reader of camera rigs in nuScenes' terms: several cameras on one vehicle, with poses to its lidar, its body or the world."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..positions.camera_checks import check_rigid
from ..positions.camera_formats import from_colmap, from_opencv_calibration, invert_pose, make_pose
from .posed import PosedImages, matrix, picture_size, read_json

World = Literal["lidar", "ego", "global"]
PixelOrigin = Literal["corner", "centre"]


def read_rig(
    file: str | Path, *, sample: int = 0, frame: World = "lidar", pixel_origin: PixelOrigin = "corner"
) -> PosedImages:
    """Cameras of one moment.

    The JSON holds `cams`, or a list `infos` of such objects, one a moment (the fields of mmdet3d's nuScenes infos):

        {"cams": {"CAM_FRONT": {"data_path": "front.jpg", "cam_intrinsic": [[...], [...], [...]], "width": 1600, "height": 900,
                                "sensor2lidar_rotation": ..., "sensor2lidar_translation": [x, y, z]}, ...},
         "ego2global_rotation": ..., "ego2global_translation": [x, y, z]}

    `sensor2X` maps points of the camera (OpenCV axes) to X. Rotations are 3x3 matrices or quaternions w, x, y, z. "lidar" takes
    sensor2lidar; "ego" takes sensor2ego; "global" goes on by ego2global of the camera, or of the moment.

    Args:
        file: the JSON file; pictures are relative to its folder.
        sample: which of `infos`.
        frame: the world that poses count from.
        pixel_origin: whether integer pixel coordinates of the calibration are corners, or centres of pixels (then ½ is added).

    Raises:
        FileNotFoundError: no such file. IndexError: no such moment.
        ValueError: missing fields (all of them named), rotations that are none, wrong shapes.
    """
    if frame not in get_args(World) or pixel_origin not in get_args(PixelOrigin):
        raise ValueError(
            f"read_rig: frame is one of {get_args(World)} and pixel_origin of {get_args(PixelOrigin)}, got {frame!r} and "
            f"{pixel_origin!r}."
        )
    path = Path(file)
    info = _info(read_json(path), path, sample)
    cameras = info.get("cams")
    if not isinstance(cameras, dict) or not cameras:
        raise ValueError(f"{path}: has no cams.")
    poses, intrinsics, sizes, paths = [], [], [], []
    for name, camera in cameras.items():
        label = f"{path}, {name}"
        poses.append(_pose(camera, info, frame, label))
        k = matrix(_field(camera, "cam_intrinsic", label), (3, 3), f"{label}: cam_intrinsic")
        intrinsics.append(from_opencv_calibration(k) if pixel_origin == "centre" else k)
        paths.append(path.parent / _field(camera, "data_path", label))
        known = "width" in camera and "height" in camera
        sizes.append((int(camera["height"]), int(camera["width"])) if known else picture_size(paths[-1], label))
    return PosedImages(
        tuple(paths), torch.stack(poses), torch.stack(intrinsics), tuple(sizes), tuple(cameras), path
    )


def _info(data: dict[str, Any], path: Path, sample: int) -> dict[str, Any]:
    if "infos" not in data:
        if sample:
            raise IndexError(f"{path}: holds one moment, got sample={sample}.")
        return data
    if not 0 <= sample < len(data["infos"]):
        raise IndexError(f"{path}: holds {len(data['infos'])} moments, got sample={sample}.")
    return data["infos"][sample]


def _pose(camera: dict[str, Any], info: dict[str, Any], frame: World, label: str) -> Tensor:
    """world_to_camera (4, 4) float64."""
    to = _rigid(camera, "sensor2lidar" if frame == "lidar" else "sensor2ego", label)
    if frame == "global":
        owner = camera if "ego2global_rotation" in camera else info
        to = _rigid(owner, "ego2global", label) @ to
    return invert_pose(to)


def _rigid(owner: dict[str, Any], name: str, label: str) -> Tensor:
    rotation = _field(owner, f"{name}_rotation", label)
    shift = matrix(_field(owner, f"{name}_translation", label), (3,), f"{label}: {name}_translation")
    if len(rotation) == 4:
        return from_colmap(matrix(rotation, (4,), f"{label}: {name}_rotation"), shift)
    return check_rigid(make_pose(matrix(rotation, (3, 3), f"{label}: {name}_rotation"), shift), f"{label}: {name}_rotation")


def _field(owner: dict[str, Any], name: str, label: str) -> Any:
    if name not in owner:
        raise ValueError(f"{label}: has no {name}; there are {sorted(owner)}.")
    return owner[name]
