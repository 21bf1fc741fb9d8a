"""The generalised Hilbert curve: a path through every cell of any rectangle, neighbours on it being neighbours in the image.

Algorithm: jakubcerveny/gilbert at 9b080a7 (2-D; the one that LOOPE cites), which runs along the longer side, splits long
blocks in two and others in three, and makes odd halves even; odd sizes may contain one diagonal step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _half(n: int, direction: complex) -> int:
    """Half of a side; of an odd one, the smaller part lies ahead where the direction is positive."""
    return n // 2 if direction.real + direction.imag > 0 else (n + 1) // 2


def _even(half: int, n: int) -> int:
    return half + half % 2 if n > 2 else half


def _walk(path: list[complex], at: complex, along: complex, length: int, across: complex, width: int) -> None:
    """Append the cells (column + i · row) of a block: from `at`, `length` cells along, `width` across, ending along."""
    if width == 1 or length == 1:
        step = along if width == 1 else across
        path.extend(at + step * i for i in range(length * width))
    elif 2 * length > 3 * width:
        cut = _even(_half(length, along), length)
        _walk(path, at, along, cut, across, width)
        _walk(path, at + along * cut, along, length - cut, across, width)
    else:
        cut, middle = _even(_half(width, across), width), _half(length, along)
        _walk(path, at, across, cut, along, middle)
        _walk(path, at + across * cut, along, length, across, width - cut)
        _walk(path, at + along * (length - 1) + across * (cut - 1), -across, cut, -along, length - middle)


# An operator of its own, so that compilers and exporters see one node whose grid may be symbolic.
@torch.library.custom_op("vispe::gilbert_order", mutates_args=())
def gilbert_order(height: int, width: int) -> Tensor:
    """When the curve visits each cell: (height · width) int64, row-major, from 0 in the top left cell. On the CPU."""
    path: list[complex] = []
    if width >= height:
        _walk(path, 0, 1, width, 1j, height)
    else:
        _walk(path, 0, 1j, height, 1, width)
    cells = torch.tensor([int(p.imag) * width + int(p.real) for p in path])
    return torch.empty_like(cells).scatter_(0, cells, torch.arange(len(path)))


@gilbert_order.register_fake
def _(height: int, width: int) -> Tensor:
    return torch.empty(height * width, dtype=torch.int64)
