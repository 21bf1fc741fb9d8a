"""Positions of the patches of an image together with key points of what it shows (landmarks of a face, joints of a body)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from .grid import Positions


@dataclass(frozen=True)
class KeypointPositions(Positions):
    """Positions of patches and the key points of each image.

    Attributes:
        keypoints: (B or 1, K, 2) float32, row and column as fractions of the image's height and width.
    """

    keypoints: Tensor | None = None


def with_keypoints(
    pos: Positions,
    keypoints: Tensor,
    *,
    order: Literal["xy", "yx"] = "xy",
    outside: Literal["raise", "allow"] = "raise",
) -> KeypointPositions:
    """Positions that carry key points.

    Args:
        pos: positions of a grid (patch_grid), all of it or part of it.
        keypoints: (B, K, 2) or (K, 2), fractions of the image in [0, 1].
        order: "xy" (column first, as detectors give them) or "yx".
        outside: "raise" refuses points outside the image; "allow" takes them (faces that a crop cuts off).

    Raises:
        ValueError: missing key points (None or NaN), pixel coordinates, half precision, another shape, a batch that fits
            neither 1 nor that of the positions.
    """
    if pos.axes != 2:
        raise ValueError(f"with_keypoints: needs positions with rows and columns (2 axes), got {pos.axes} axes.")
    if order not in ("xy", "yx") or outside not in ("raise", "allow"):
        raise ValueError(f"with_keypoints: order is 'xy' or 'yx', outside 'raise' or 'allow', got {order!r} and {outside!r}.")
    if not isinstance(keypoints, Tensor):
        raise ValueError(f"with_keypoints: key points are missing, got {keypoints!r}; pass a float tensor (B, K, 2) in [0, 1].")
    if keypoints.ndim not in (2, 3) or keypoints.shape[-1] != 2 or not keypoints.is_floating_point():
        raise ValueError(
            f"with_keypoints: needs a float tensor (B, K, 2) or (K, 2), got {tuple(keypoints.shape)} {keypoints.dtype}."
        )
    if keypoints.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"with_keypoints: {keypoints.dtype} cannot hold positions; pass float32 key points.")
    points = keypoints.float() if keypoints.ndim == 3 else keypoints.float()[None]
    if 1 not in (points.shape[0], pos.coords.shape[0]) and points.shape[0] != pos.coords.shape[0]:
        raise ValueError(
            f"with_keypoints: key points of {points.shape[0]} images, positions of {pos.coords.shape[0]}; pass as many of both."
        )
    if not torch.compiler.is_compiling():
        check_inside(points, outside)
    known = {f.name: getattr(pos, f.name) for f in fields(pos) if f.name != "keypoints"}
    return KeypointPositions(**known, keypoints=points.flip(-1) if order == "xy" else points)


def check_inside(points: Tensor, outside: Literal["raise", "allow"]) -> None:
    """Refuse key points that are missing (NaN, infinite) or, unless allowed, outside [0, 1]."""
    broken = int((~points.isfinite()).any(-1).sum())
    if broken:
        raise ValueError(f"with_keypoints: {broken} key points are missing (NaN or inf); fill them in or drop their images.")
    away = int(((points < 0) | (points > 1)).any(-1).sum())
    if away and outside == "raise":
        raise ValueError(
            f"with_keypoints: {away} key points lie outside the image, values from {points.min():.4g} to {points.max():.4g} "
            f"for [0, 1]; divide pixel coordinates by width and height, or pass outside='allow'."
        )
