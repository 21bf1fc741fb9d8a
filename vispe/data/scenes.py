"""Spheres and boxes on a checkered ground, seen by cameras around them: views, depth and cameras, all exact.

    scenes = Scenes("val", views=3, size=32, length=96)
    scene = scenes[0]                  # images (3, 3, 32, 32), world_to_camera (3, 4, 4), intrinsics (3, 3, 3), ...
    many = scenes.batch(range(16))     # the same with a first axis of 16

Made for comparing camera encodings without downloads: the world's frame is an option, so that the same pictures come with other
numbers for their cameras. Cameras look at the middle from an azimuth all around, elevation 0.35 to 0.85 rad and the given
distance; a shorter edge of R px has the focal length 1.1·R·exp(U(−a, a)).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..positions.boxes import box_corners
from ..positions.camera_formats import invert_pose, make_intrinsics, make_pose, rotate
from ..positions.rays import look_at
from .procedural import Procedural, Split, between, float32, normal, rotations
from .raytrace import Solids, render

Frame = Literal["canonical", "random", "far", "world"]
SOLIDS = 8  # most spheres, and most boxes, of a scene
CAMERAS = 64  # a scene has this many cameras, of which any may be asked for
FRAME, SPHERE, BOX, CAMERA = 9, 6, 9, 11  # uniform numbers of each; changing one changes every scene
SPREAD = {"random": 2.0, "far": 10.0}  # of the translation of the world's frame


class Scenes(Procedural):
    """Item ``i`` is a dictionary of one scene, a function of (seed, split, index) and the options.

    ======================  ==================  ===========================================================
    ``images``              (V, 3, H, W)        colours in [0, 1]
    ``depth``               (V, H, W)           z in the camera's axes; 0 in the sky
    ``world_to_camera``     (V, 4, 4)           OpenCV axes, in the chosen frame
    ``intrinsics``          (V, 3, 3)           px, corners at integers
    ``spheres``             (K, 4)              centre in the chosen frame, and radius
    ``boxes``               (M, 8, 3)           corners in the chosen frame
    ======================  ==================  ===========================================================

    Args:
        split: another split has other scenes.
        size: px, one number or (H, W).
        views: how many cameras, or which of the scene's 64 cameras in which order; the same number is the same camera whatever
            else is asked for.
        spheres, boxes: how many of each, up to 8.
        frame: what the poses count from. "canonical": the first camera asked for. "random": another rotation in each scene,
            and a translation of 2·N(0, 1) along each axis. "far": the same rotations, translations 10·N(0, 1). "world": z up,
            ground at z = 0.
        focal_spread: a in the focal length; 0 gives every camera the same.
        roll: cameras turn about their axis by U(−roll, roll) rad.
        distance: least and greatest distance of a camera.
        length: scenes.
        seed: another seed has other scenes.

    Raises:
        ValueError: an option out of its range.
        IndexError: an index outside ``0 <= i < length``.
    """

    def __init__(
        self,
        split: Split = "train",
        *,
        size: int | tuple[int, int] = 32,
        views: int | Sequence[int] = 3,
        spheres: int = 3,
        boxes: int = 0,
        frame: Frame = "canonical",
        focal_spread: float = 0.0,
        roll: float = 0.0,
        distance: tuple[float, float] = (2.6, 3.4),
        length: int = 9600,
        seed: int = 0,
    ) -> None:
        super().__init__(split, size=size, length=length, seed=seed)
        if frame not in get_args(Frame):
            raise ValueError(f"Scenes: frame must be one of {get_args(Frame)}, got {frame!r}.")
        self.views = tuple(range(views)) if isinstance(views, int) else tuple(int(v) for v in views)
        if not self.views or len(set(self.views)) < len(self.views) or not 0 <= min(self.views) <= max(self.views) < CAMERAS:
            raise ValueError(f"Scenes: views must be 1 to {CAMERAS} or a list of different numbers below that, got {views!r}.")
        if not (0 <= spheres <= SOLIDS and 0 <= boxes <= SOLIDS and spheres + boxes > 0):
            raise ValueError(f"Scenes: 0 to {SOLIDS} spheres and boxes, not both 0, got {spheres} and {boxes}.")
        if focal_spread < 0 or roll < 0 or not 1.5 <= distance[0] <= distance[1]:
            raise ValueError(
                f"Scenes: focal_spread and roll must not be negative, and distance increase from 1.5 on, outside every solid; "
                f"got {focal_spread}, {roll} and {tuple(distance)}."
            )
        self.spheres, self.boxes, self.frame = spheres, boxes, frame
        self.focal_spread, self.roll, self.distance = focal_spread, roll, tuple(distance)
        self.numbers = FRAME + SOLIDS * (SPHERE + BOX) + (max(self.views) + 1) * CAMERA

    def draw(self, u: np.ndarray) -> dict[str, Tensor]:
        frame, spheres, boxes, cameras = np.split(u, np.cumsum([FRAME, SOLIDS * SPHERE, SOLIDS * BOX]), axis=-1)
        solids = self._solids(
            spheres.reshape(-1, SOLIDS, SPHERE)[:, : self.spheres], boxes.reshape(-1, SOLIDS, BOX)[:, : self.boxes]
        )
        pose, intrinsics = self._cameras(cameras.reshape(len(u), -1, CAMERA)[:, list(self.views)])
        images, depth, _ = render(solids, pose, intrinsics, self.size)
        base = self._base(frame, pose)  # (S, 4, 4) float64, from the generator's world to the chosen frame
        back = invert_pose(base)[:, None]
        centres = rotate(base[:, None, :3, :3], solids.spheres[..., :3].double()) + base[:, None, :3, 3]
        yaw = torch.atan2(solids.boxes[..., 7], solids.boxes[..., 6])
        corners = box_corners(solids.boxes[..., :3], solids.boxes[..., 3:6], -yaw)
        corners = rotate(base[:, None, None, :3, :3], corners.double()) + base[:, None, None, :3, 3]
        return {
            "images": images, "depth": depth, "world_to_camera": (pose.double() @ back).float(), "intrinsics": intrinsics,
            "spheres": torch.cat((centres.float(), solids.spheres[..., 3:]), dim=-1), "boxes": corners.float(),
        }  # fmt: skip

    def _solids(self, s: np.ndarray, b: np.ndarray) -> Solids:
        radius = between(s[..., 2], 0.25, 0.45)
        spheres = np.stack((between(s[..., 0], -0.8, 0.8), between(s[..., 1], -0.8, 0.8), radius, radius), axis=-1)
        side, yaw = between(b[..., 2:5], 0.3, 0.7), 2 * np.pi * b[..., 5]
        where = (between(b[..., 0], -0.8, 0.8), between(b[..., 1], -0.8, 0.8), side[..., 2] / 2)
        boxes = np.concatenate((np.stack(where, axis=-1), side, np.stack((np.cos(yaw), np.sin(yaw)), axis=-1)), axis=-1)
        colours = [float32(between(c, 0.2, 1.0)) for c in (s[..., 3:], b[..., 6:])]
        return Solids(float32(spheres), colours[0], float32(boxes), colours[1], ground_radius=3.0)

    def _cameras(self, c: np.ndarray) -> tuple[Tensor, Tensor]:
        """Poses (S, V, 4, 4) in the generator's world and intrinsics (S, V, 3, 3)."""
        azimuth, elevation = 2 * np.pi * c[..., 0], between(c[..., 1], 0.35, 0.85)
        level = np.cos(elevation)
        eye = np.stack((level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)), axis=-1)
        eye = eye * between(c[..., 2], *self.distance)[..., None]
        target = 0.1 * normal(c[..., 3:9]) + [0.0, 0.0, 0.2]
        pose = look_at(torch.from_numpy(eye), torch.from_numpy(target))
        if self.roll:
            pose = (_about_z(between(c[..., 10], -self.roll, self.roll)) @ pose.double()).float()
        height, width = self.size
        focal = float32(1.1 * min(self.size) * np.exp(between(c[..., 9], -self.focal_spread, self.focal_spread)))
        return pose, make_intrinsics(focal, focal, width / 2, height / 2)

    def _base(self, u: np.ndarray, pose: Tensor) -> Tensor:
        if self.frame == "world":
            return torch.eye(4, dtype=torch.float64).expand(len(u), 4, 4)
        if self.frame == "canonical":
            return pose[:, 0].double()
        shift = SPREAD[self.frame] * normal(u[..., 3:9])
        return make_pose(torch.from_numpy(rotations(u[..., :3])), torch.from_numpy(shift))


def _about_z(angle: np.ndarray) -> Tensor:
    cos, sin, zero = np.cos(angle), np.sin(angle), np.zeros_like(angle)
    turn = np.stack((np.stack((cos, -sin, zero), -1), np.stack((sin, cos, zero), -1), np.stack((zero, zero, zero + 1), -1)), -2)
    return make_pose(torch.from_numpy(turn), torch.zeros(*angle.shape, 3, dtype=torch.float64))
