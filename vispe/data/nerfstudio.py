"""Reader of `transforms.json`, the form of nerfstudio, instant-ngp and the synthetic NeRF scenes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..positions.camera_checks import check_rigid
from ..positions.camera_formats import from_opengl, make_intrinsics
from .posed import PosedImages, matrix, picture_size, read_json, refuse_distortion

PINHOLES = ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "PERSPECTIVE")  # without distortion all the same
BENT = ("k1", "k2", "k3", "k4", "p1", "p2")
ENDINGS = ("", ".png", ".jpg", ".jpeg")


def read_nerfstudio(folder: str | Path, *, file: str = "transforms.json") -> PosedImages:
    """Pictures and cameras of a folder with a `transforms.json`.

    Poses there are camera-to-world with OpenGL axes (`transform_matrix`); intrinsics are `fl_x`, `fl_y`, `cx`, `cy`, `w`, `h`,
    for all frames or in each, or the horizontal angle `camera_angle_x`. `file_path` may lack its ending.

    Args:
        folder: the folder, or the JSON file itself.
        file: its name in the folder, e.g. "transforms_train.json".

    Raises:
        FileNotFoundError: no such file, or no picture to take a size from.
        ValueError: camera models other than a pinhole, distortion, missing intrinsics, poses that are not rigid.
    """
    path = Path(folder)
    path = path / file if path.is_dir() or not path.suffix else path
    data = read_json(path)
    frames = data.get("frames")
    if not isinstance(frames, list) or not frames:
        raise ValueError(f"{path}: has no frames.")
    found = [_frame(frame, data, path, i) for i, frame in enumerate(frames)]
    return PosedImages(
        tuple(f[0] for f in found), torch.stack([f[1] for f in found]), torch.stack([f[2] for f in found]),
        tuple(f[3] for f in found), tuple(str(frame["file_path"]) for frame in frames), path,
    )  # fmt: skip


def _frame(frame: dict[str, Any], data: dict[str, Any], path: Path, i: int) -> tuple[Path, Tensor, Tensor, tuple[int, int]]:
    label = f"{path}, frame {i}"
    for key in ("file_path", "transform_matrix"):
        if key not in frame:
            raise ValueError(f"{label}: has no {key}.")
    values = {**data, **frame}
    model = values.get("camera_model", "OPENCV")
    if model not in PINHOLES:
        raise ValueError(f"{label}: unknown camera_model {model!r}; {PINHOLES} are read, undistort pictures of other lenses.")
    refuse_distortion({name: values.get(name, 0) for name in BENT}, label)
    picture = _picture(path.parent / frame["file_path"])
    size = (int(values["h"]), int(values["w"])) if "h" in values and "w" in values else picture_size(picture, label)
    pose = matrix(frame["transform_matrix"], (4, 4), f"{label}: transform_matrix")
    return picture, from_opengl(check_rigid(pose, f"{label}: transform_matrix")), _intrinsics(values, size, label), size


def _intrinsics(values: dict[str, Any], size: tuple[int, int], label: str) -> Tensor:
    height, width = size
    if "fl_x" in values:
        fx = float(values["fl_x"])
    elif "camera_angle_x" in values:
        fx = width / 2 / math.tan(float(values["camera_angle_x"]) / 2)
    else:
        raise ValueError(f"{label}: has neither fl_x nor camera_angle_x, and so no focal length.")
    if "fl_y" in values:
        fy = float(values["fl_y"])
    else:
        fy = height / 2 / math.tan(float(values["camera_angle_y"]) / 2) if "camera_angle_y" in values else fx
    cx, cy = float(values.get("cx", width / 2)), float(values.get("cy", height / 2))
    return make_intrinsics(*(torch.tensor(v, dtype=torch.float64) for v in (fx, fy, cx, cy)))


def _picture(path: Path) -> Path:
    """The file, with the ending that it has on disk where the JSON leaves it out."""
    return next((p for end in ENDINGS if (p := path.with_name(path.name + end)).is_file()), path)
