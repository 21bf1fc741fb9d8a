"""Coordinates as in diffusers' models (0.42.1): crops of a table, spans of a resized crop, captions ahead of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .grid import Positions, custom_positions, lattice


def sd3_positions(height: int, width: int, *, max_size: int, base_size: int) -> Positions:
    """SD3: the middle of a table of max_size x max_size cells whose indices are divided by max_size / base_size.

    Raises:
        ValueError: a grid beyond the table.
    """
    if not (1 <= height <= max_size and 1 <= width <= max_size):
        raise ValueError(f"sd3_positions: a grid of {height}x{width} does not fit the table of {max_size}x{max_size}.")
    corner = torch.tensor([(max_size - height) // 2, (max_size - width) // 2])
    return custom_positions((lattice((height, width)) + corner) / (max_size / base_size))


def crop_span(start: Sequence[float], stop: Sequence[float], grid: Sequence[int]) -> list[Tensor]:
    """HunyuanDiT, CogVideoX: n coordinates an axis from start to stop, stop excluded ((n − 1) / n of it is the last)."""
    return [torch.linspace(a, b * (n - 1) / n, n) for a, b, n in zip(start, stop, grid)]


def crop_region(
    source_height: int, source_width: int, *, height: int, width: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, left), (bottom, right)) of a source that was resized to fit into a base grid, aspect kept, and centred in it."""
    if source_height / source_width > height / width:
        tall, wide = height, int(round(height / source_height * source_width))
    else:
        tall, wide = int(round(width / source_width * source_height)), width
    top, left = int(round((height - tall) / 2.0)), int(round((width - wide) / 2.0))
    return (top, left), (top + tall, left + wide)


def caption_ids(lengths: Sequence[int], grid: tuple[int, int]) -> tuple[Tensor, list[int]]:
    """Lumina2: ids (B, longest, 3) float32 of captions with their images behind, and the length of each row.

    Word j of a caption of n words is (j, 0, 0), the image's cell is (n, row, column); padding at the end of a row is 0.
    """
    cells = lattice(grid)
    joint = [n + cells.shape[0] for n in lengths]
    ids = torch.zeros(len(lengths), max(joint), 3)
    for row, n, total in zip(ids, lengths, joint):
        row[:n, 0] = torch.arange(n)
        row[n:total, 0] = n
        row[n:total, 1:] = cells
    return ids, joint
