"""Reader and writer of COLMAP's text form: cameras.txt and images.txt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..positions.camera_formats import from_colmap, make_intrinsics, to_colmap
from .posed import PosedImages, refuse_distortion

MODELS = {  # parameters in their order; those behind the first four are distortion
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
}
PLACES = (".", "sparse/0", "sparse", "colmap/sparse/0")


def read_colmap(folder: str | Path, *, images: str | Path = "images") -> PosedImages:
    """Pictures and cameras of a reconstruction in text form, sorted by picture name.

    Args:
        folder: holds cameras.txt and images.txt, itself or in sparse/0. A binary model becomes text by
            `colmap model_converter --output_type TXT`.
        images: the folder of the pictures, relative to `folder`.

    Raises:
        FileNotFoundError: a file that is not there.
        ValueError: an unknown camera model, distortion, a broken line (with its number).
    """
    root = Path(folder)
    place = next((root / p for p in PLACES if (root / p / "cameras.txt").is_file()), None)
    if place is None:
        binary = any((root / p / "cameras.bin").is_file() for p in PLACES)
        hint = " There is a binary one: run colmap model_converter --output_type TXT." if binary else ""
        raise FileNotFoundError(f"{root}: no cameras.txt in it or in {', '.join(PLACES[1:])}.{hint}")
    cameras = _cameras(place / "cameras.txt")
    path = place / "images.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    found = []
    for number, fields in _image_lines(path):
        try:
            pose = torch.tensor([float(f) for f in fields[1:8]], dtype=torch.float64)
            camera, name = int(fields[8]), " ".join(fields[9:])
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}, line {number}: must be IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME.") from error
        if camera not in cameras:
            raise ValueError(f"{path}, line {number}: camera {camera} is not in cameras.txt, which has {sorted(cameras)}.")
        found.append((name, from_colmap(pose[:4], pose[4:]), *cameras[camera]))
    if not found:
        raise ValueError(f"{path}: holds no pictures.")
    names, poses, intrinsics, sizes = zip(*sorted(found, key=lambda item: item[0]))
    paths = tuple(root / images / name for name in names)
    return PosedImages(paths, torch.stack(poses), torch.stack(intrinsics), tuple(sizes), tuple(names), path)


def write_colmap(posed: PosedImages, folder: str | Path) -> None:
    """Write cameras.txt (one PINHOLE camera a picture), images.txt and an empty points3D.txt; pictures stay where they are.

    Names are the file names of the pictures.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cameras = ["# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]"]
    images = ["# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME"]
    quaternions, translations = to_colmap(posed.world_to_camera.double())
    for i, (k, (height, width)) in enumerate(zip(posed.intrinsics.double().tolist(), posed.sizes)):
        numbers = " ".join(repr(v) for v in (k[0][0], k[1][1], k[0][2], k[1][2]))
        cameras.append(f"{i + 1} PINHOLE {width} {height} {numbers}")
        pose = " ".join(repr(v) for v in (*quaternions[i].tolist(), *translations[i].tolist()))
        images += [f"{i + 1} {pose} {i + 1} {posed.paths[i].name}", ""]
    for name, lines in (("cameras", cameras), ("images", images), ("points3D", [])):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _cameras(path: Path) -> dict[int, tuple[Tensor, tuple[int, int]]]:
    """{CAMERA_ID: (intrinsics, (height, width))}."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        label = f"{path}, line {number}"
        if len(fields) < 5:
            raise ValueError(f"{label}: must be CAMERA_ID MODEL WIDTH HEIGHT PARAMS, got {line!r}.")
        model = fields[1]
        if model not in MODELS:
            raise ValueError(f"{label}: unknown camera model {model!r}; {tuple(MODELS)} are read, undistort other lenses.")
        names = MODELS[model]
        if len(fields) - 4 != len(names):
            raise ValueError(f"{label}: {model} has the parameters {names}, got {len(fields) - 4} numbers.")
        values = dict(zip(names, (float(f) for f in fields[4:])))
        refuse_distortion({n: v for n, v in values.items() if n[0] in "kp"}, label)
        fx, fy = values.get("fx", values.get("f")), values.get("fy", values.get("f"))
        numbers = (torch.tensor(v, dtype=torch.float64) for v in (fx, fy, values["cx"], values["cy"]))
        found[int(fields[0])] = (make_intrinsics(*numbers), (int(fields[3]), int(fields[2])))
    return found


def _image_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The first line of every two, with its number; the second, of points, may be empty."""
    points = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        if points:
            points = False
        elif line.strip():
            points = True
            yield number, line.split()
