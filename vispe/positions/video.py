"""Positions of videos: frames first, then rows, then columns."""

from __future__ import annotations

import torch

from .grid import Positions, full_grid


def video_grid(
    frames: int,
    height: int,
    width: int,
    *,
    prefix: int = 0,
    train: tuple[int, int, int] | None = None,
    device: torch.device | None = None,
) -> Positions:
    """All tokens of a video of `frames` x `height` x `width` cells, frame-major, behind `prefix` tokens without a position."""
    return full_grid((frames, height, width), prefix=prefix, train=train, device=device)
