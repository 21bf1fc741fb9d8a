"""Posed pictures from files: cameras in the package's convention, pictures read on demand.

    posed = read_nerfstudio("scene/")          # or read_colmap, read_rig
    images, intrinsics = posed.load(size=(256, 256), views=[0, 5, 9])
    pos = camera_grid(16, 16, posed.world_to_camera[[0, 5, 9]], intrinsics, (256, 256), frame="first")

The readers refuse what they cannot represent: lenses with distortion (undistort the pictures first), rotations that are none,
and pictures of another size than their camera.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..positions.camera_checks import check_intrinsics, check_rigid
from ..positions.camera_formats import crop_intrinsics, resize_intrinsics


@dataclass(frozen=True)
class PosedImages:
    """V pictures with their cameras.

    Attributes:
        paths: of the picture files; they need not exist until they are loaded.
        world_to_camera: (V, 4, 4) float64, OpenCV axes.
        intrinsics: (V, 3, 3) float64, px of the picture as it is in its file, corners at integers.
        sizes: (height, width) of every picture.
        names: of the cameras or pictures, for messages.
        source: the file that was read.
    """

    paths: tuple[Path, ...]
    world_to_camera: Tensor
    intrinsics: Tensor
    sizes: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    source: Path

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError(f"{self.source}: holds no pictures.")
        for i, name in enumerate(self.names):
            label = f"{self.source}, {name}"
            check_rigid(self.world_to_camera[i], label)
            check_intrinsics(self.intrinsics[i], label)

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, views: Sequence[int]) -> PosedImages:
        """These pictures alone, in this order."""
        index = list(views)
        return PosedImages(
            tuple(self.paths[i] for i in index), self.world_to_camera[index], self.intrinsics[index],
            tuple(self.sizes[i] for i in index), tuple(self.names[i] for i in index), self.source,
        )  # fmt: skip

    def load(
        self,
        views: Sequence[int] | None = None,
        *,
        size: tuple[int, int] | None = None,
        background: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Pictures and the intrinsics that belong to them.

        Args:
            views: which; None for all.
            size: (height, width) in px: each is resized, keeping its aspect, until it covers that, and its middle is cut out;
                None keeps pictures as they are, which must then be of one size.
            background: grey level behind transparent pixels.

        Returns:
            (V, 3, H, W) float32 in [0, 1] and (V, 3, 3) float32 in pixels of these pictures.

        Raises:
            FileNotFoundError: a picture that is not there.
            ValueError: a picture of another size than its camera says, or of several sizes without `size`.
        """
        index = range(len(self)) if views is None else list(views)
        sizes = {self.sizes[i] for i in index}
        if size is None and len(sizes) > 1:
            raise ValueError(f"{self.source}: pictures have the sizes {sorted(sizes)}; pass size=(H, W) to bring them to one.")
        images, intrinsics = [], []
        for i in index:
            picture, k = self._read(i, background), self.intrinsics[i]
            if size is not None:
                picture, k = _fit(picture, k, tuple(size))
            images.append(torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255).permute(2, 0, 1))
            intrinsics.append(k)
        return torch.stack(images), torch.stack(intrinsics).float()

    def _read(self, i: int, background: float) -> Image.Image:
        path = self.paths[i]
        if not path.is_file():
            raise FileNotFoundError(f"{self.source}: the picture of {self.names[i]} is not there: {path}")
        with Image.open(path) as opened:
            if (opened.height, opened.width) != self.sizes[i]:
                raise ValueError(
                    f"{path}: has {opened.height}x{opened.width} px, but its camera in {self.source} is for "
                    f"{self.sizes[i][0]}x{self.sizes[i][1]}; rescale the camera, or use the pictures it was made with."
                )
            if "A" in opened.getbands() or "transparency" in opened.info:
                opened = opened.convert("RGBA")
                ground = Image.new("RGBA", opened.size, (round(255 * background),) * 3 + (255,))
                return Image.alpha_composite(ground, opened).convert("RGB")
            return opened.convert("RGB")


def _fit(picture: Image.Image, k: Tensor, size: tuple[int, int]) -> tuple[Image.Image, Tensor]:
    """Resized until it covers (height, width), its middle cut out; the intrinsics follow exactly."""
    old = (picture.height, picture.width)
    factor = max(n / o for n, o in zip(size, old))
    new = tuple(max(n, round(factor * o)) for n, o in zip(size, old))
    top, left = (new[0] - size[0]) // 2, (new[1] - size[1]) // 2
    picture = picture.resize((new[1], new[0]), Image.Resampling.BICUBIC if factor > 1 else Image.Resampling.BOX)
    picture = picture.crop((left, top, left + size[1], top + size[0]))
    return picture, crop_intrinsics(resize_intrinsics(k, old, new), top, left)


# ---- what the readers share ------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: no such file. ValueError: no JSON object in it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold one JSON object, got a {type(found).__name__}.")
    return found


def matrix(value: Any, shape: tuple[int, ...], label: str) -> Tensor:
    """A float64 tensor of nested lists of a shape."""
    try:
        found = torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{label}: must be numbers of shape {shape}, got {value!r}.") from error
    if tuple(found.shape) != shape:
        raise ValueError(f"{label}: must be of shape {shape}, got {tuple(found.shape)}.")
    return found


def refuse_distortion(values: dict[str, float], label: str) -> None:
    """Lens coefficients must all be 0."""
    bent = {name: value for name, value in values.items() if float(value) != 0}
    if bent:
        raise ValueError(
            f"{label}: the lens has distortion {bent}, which straight rays cannot follow; undistort the pictures first "
            f"(colmap image_undistorter) and read the result."
        )


def picture_size(path: Path, label: str) -> tuple[int, int]:
    """(height, width) of a picture file, without decoding it."""
    if not path.is_file():
        raise FileNotFoundError(f"{label}: gives no size, and its picture is not there to take it from: {path}")
    with Image.open(path) as opened:
        return opened.height, opened.width
