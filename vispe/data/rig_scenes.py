"""Coloured boxes around a rig of four cameras: views, depth, boxes and cameras, all exact, for 3-D detection.

    scenes = RigScenes("val", length=96)
    scene = scenes[0]                  # images (4, 3, 24, 48), boxes (4, 7), present (4,), ...

The world is that of the rig: z up, origin on the ground between the cameras. A camera looks outwards at 0, 90, 180 and 270
degrees (± 0.45 rad), 0.5 m from the axis and 1.5 m high, with focal lengths and principal points of its own in every scene, so
that knowing the number of a camera is not knowing where it looks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..positions.camera_formats import make_intrinsics
from ..positions.rays import look_at
from .procedural import Procedural, Split, between, float32, normal
from .raytrace import Solids, render

CLASSES = ("red", "green", "blue", "yellow")
COLOURS = ((0.9, 0.15, 0.1), (0.15, 0.8, 0.2), (0.15, 0.25, 0.95), (0.95, 0.85, 0.1))
BOX, CAMERA = 7, 8  # uniform numbers of each
BASE = (24, 48)  # px that the jitter of the principal point is for
FAR = 30.0  # metres; depth ends here


class RigScenes(Procedural):
    """Item ``i`` is a dictionary of one scene, a function of (seed, split, index) and the options.

    ======================  ==================  ==============================================================
    ``images``              (4, 3, H, W)        colours in [0, 1]
    ``depth``               (4, H, W)           z in the camera's axes in metres, at most 30, which the sky has too
    ``object``              (4, H, W) int64     class of the box that is seen, -1 elsewhere
    ``world_to_camera``     (4, 4, 4)           OpenCV axes, from the rig's axes
    ``intrinsics``          (4, 3, 3)           px, corners at integers
    ``boxes``               (4, 7)              one of each class: centre, size along its own axes, yaw in (−π, π]
    ``present``             (4,) bool           whether the box of the class is in the scene
    ======================  ==================  ==============================================================

    Args:
        split: another split has other scenes.
        size: px, (H, W); other sizes show the same scene with other pixels.
        presence: probability of each class.
        reach: least and greatest distance of a box's centre from the origin.
        length: scenes.
        seed: another seed has other scenes.
    """

    classes = CLASSES
    numbers = len(CLASSES) * BOX + 4 * CAMERA

    def __init__(
        self,
        split: Split = "train",
        *,
        size: tuple[int, int] = BASE,
        presence: float = 0.75,
        reach: tuple[float, float] = (2.5, 9.0),
        length: int = 4800,
        seed: int = 0,
    ) -> None:
        super().__init__(split, size=size, length=length, seed=seed)
        if not 0 < presence <= 1 or not 1.5 <= reach[0] <= reach[1]:
            raise ValueError(
                f"RigScenes: presence must be in (0, 1] and reach increase from 1.5 on, got {presence} and {tuple(reach)}."
            )
        self.presence, self.reach = presence, tuple(reach)

    def draw(self, u: np.ndarray) -> dict[str, Tensor]:
        boxes, cameras = np.split(u, [len(CLASSES) * BOX], axis=-1)
        boxes, present = self._boxes(boxes.reshape(len(u), len(CLASSES), BOX))
        pose, intrinsics = self._cameras(cameras.reshape(len(u), 4, CAMERA))
        yaw = boxes[..., 6:]
        seen = boxes[..., :6] * np.where(present[..., None], 1.0, [1.0] * 3 + [0.0] * 3)  # size 0 is not there
        none = torch.zeros(len(u), 0, 4)
        solids = Solids(
            none, none[..., :3], float32(np.concatenate((seen, np.cos(yaw), np.sin(yaw)), axis=-1)),
            torch.tensor(COLOURS).expand(len(u), -1, -1),
        )  # fmt: skip
        images, depth, number = render(solids, pose, intrinsics, self.size)
        depth = torch.where(depth == 0, FAR, depth.clamp(max=FAR))
        return {
            "images": images, "depth": depth, "object": number, "world_to_camera": pose, "intrinsics": intrinsics,
            "boxes": float32(boxes), "present": torch.from_numpy(present),
        }  # fmt: skip

    def _boxes(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        azimuth, distance = 2 * np.pi * b[..., 1], between(b[..., 2], *self.reach)
        size = between(b[..., 3:6], 0.8, 1.6)
        centre = np.stack((distance * np.cos(azimuth), distance * np.sin(azimuth), size[..., 2] / 2), axis=-1)
        yaw = np.pi * (1 - 2 * b[..., 6:7])
        return np.concatenate((centre, size, yaw), axis=-1), b[..., 0] < self.presence

    def _cameras(self, c: np.ndarray) -> tuple[Tensor, Tensor]:
        yaw = np.arange(4) * np.pi / 2 + between(c[..., 0], -0.45, 0.45)
        pitch = between(c[..., 1], -0.085, 0.085)
        out = 0.5 + between(c[..., 2], -0.15, 0.15)
        eye = np.stack((out * np.cos(yaw), out * np.sin(yaw), np.full_like(yaw, 1.5)), axis=-1)
        ahead = np.stack((np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch)), axis=-1)
        height, width = self.size
        focal = float32(width * between(c[..., 3], 0.42, 0.70))
        jitter = normal(c[..., 4:8]) * [2.0 * width / BASE[1], 1.0 * height / BASE[0]]
        middle = float32(jitter + [width / 2, height / 2])
        intrinsics = make_intrinsics(focal, focal, middle[..., 0], middle[..., 1])
        return look_at(torch.from_numpy(eye), torch.from_numpy(eye + ahead)), intrinsics
