"""Random resize-and-crop whose place in the picture is told to the model (micro-conditioning).

    c = (top / H', left / W', S / H', S / W') of an S x S crop of a picture resized to H' x W'; (0, 0, 1, 1) is "no crop"

RPE-2D (see `random.py`) names "random resize-and-crop augmentation" and "micro-conditioning to indicate the applied cropping
pattern"; the numbers here are ours. Embedding c, and dropping it to "no crop" in training, belongs to the host
(`vispe/models/dit_parts.py`, CropEmbedder). Inference uses NO_CROP.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NO_CROP = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Crop:
    """A picture's size after resizing, and the square of `size` pixels taken from it."""

    height: int
    width: int
    top: int
    left: int
    size: int

    @property
    def condition(self) -> tuple[float, float, float, float]:
        """(top / H', left / W', S / H', S / W')."""
        return self.top / self.height, self.left / self.width, self.size / self.height, self.size / self.width


def draw_crop(height: int, width: int, *, size: int, most: float = 2.0, generator: torch.Generator | None) -> Crop:
    """The short side becomes U[S, S · most] pixels, and an S x S square is taken anywhere.

    Args:
        height, width: of the picture, in pixels.
        size: S.
        most: L / n of the positions (`RandomPositions.span`).
        generator: of the caller's own.
    """
    if min(height, width, size) < 1 or most < 1:
        raise ValueError(f"draw_crop: sizes must be at least 1 and most at least 1, got {height}, {width}, {size}, {most}.")
    draw = torch.rand(3, generator=generator, device=None if generator is None else generator.device).tolist()
    scale = size * (1 + draw[0] * (most - 1)) / min(height, width)
    tall, wide = (max(size, round(n * scale)) for n in (height, width))
    top, left = (min(int(r * (n - size + 1)), n - size) for r, n in zip(draw[1:], (tall, wide)))
    return Crop(tall, wide, top, left, size)


def resize_and_crop(image: Tensor, crop: Crop) -> Tensor:
    """Pictures (..., C, H, W) float to (..., C, S, S), bicubic with antialiasing."""
    batched = image.reshape(-1, *image.shape[-3:])
    resized = F.interpolate(batched, (crop.height, crop.width), mode="bicubic", antialias=True, align_corners=False)
    cut = resized[..., crop.top : crop.top + crop.size, crop.left : crop.left + crop.size]
    return cut.reshape(*image.shape[:-2], crop.size, crop.size)
