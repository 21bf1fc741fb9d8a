"""Two-Shot motion: clips of two shots whose class is which motions they show, and in which order.

A clip cuts from one shot to another in its middle. In each shot a sprite moves over a background in one of five ways; the
class is the pair of motions (10) times their order (2). Both shots are drawn alike, so a model that sees which tokens there
are but not when they come can tell the pair and not the order: without positions in time the best accuracy is 50 %.

Sprites are coloured tiles with a character of the glyph atlas on them, which shows their orientation; backgrounds are the
atlas' photographs. Typeface families and photographs are apart in train, val and test.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from .atlas import Atlas

Split = Literal["train", "val", "test"]
Pace = Literal["denser", "longer"]
MOTIONS = ("right", "left", "down", "grow", "turn")
CLASSES = tuple(order for pair in itertools.combinations(MOTIONS, 2) for order in (pair, pair[::-1]))
STEPS = 3  # of the motion in a shot of 4 frames
# One uniform number in [0, 1) for each name and shot. Append only: the position of a name decides its value.
SLOTS = "family glyph side y x travel photo crop crop_y crop_x flip gain hue tile_light ink_hue ink_light angle".split()


class TwoShot(Dataset):
    """Item ``i`` is ``(float32 (3, frames, H, W) in [0, 1], label 0..19)``; the label is ``i % 20``.

    A clip is a function of ``(seed, split, index)`` and the options only, and the same scene at every size and number of
    frames: a larger picture shows it with more pixels, and a wider one more of the background.

    Args:
        split: which sprites and backgrounds.
        size: px, one number or (H, W).
        frames: even; each half is one shot. Models are usually trained at 8.
        pace: what more frames mean. "denser": the same motion seen more often. "longer": the same steps from frame to
            frame, so that the motion goes further.
        length: number of clips.
        seed: another seed gives other clips.
        atlas: another atlas file, or an opened ``Atlas``; None for the shipped one.

    Raises:
        ValueError: an option out of its range.
        IndexError: an index outside ``0 <= i < length``.
    """

    classes = CLASSES

    def __init__(
        self,
        split: Split,
        *,
        size: int | tuple[int, int] = 32,
        frames: int = 8,
        pace: Pace = "denser",
        length: int = 2000,
        seed: int = 0,
        atlas: str | Path | Atlas | None = None,
    ) -> None:
        if split not in get_args(Split):
            raise ValueError(f"TwoShot: split must be one of {get_args(Split)}, got {split!r}.")
        if pace not in get_args(Pace):
            raise ValueError(f"TwoShot: pace must be one of {get_args(Pace)}, got {pace!r}.")
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        if len(self.size) != 2 or min(self.size) < 8:
            raise ValueError(f"TwoShot: size must be one number or (H, W), each at least 8 px, got {size!r}.")
        if frames < 4 or frames % 2:
            raise ValueError(f"TwoShot: frames must be even and at least 4, two shots of the same length, got {frames}.")
        if length < 1 or seed < 0:
            raise ValueError(f"TwoShot: length must be at least 1 and seed not negative, got {length} and {seed}.")
        self.split, self.frames, self.pace, self.length, self.seed = split, frames, pace, length, seed
        self.atlas = atlas if isinstance(atlas, Atlas) else Atlas(atlas)
        self._glyphs = [self.atlas.glyphs(family) for family in self.atlas.split[split]]
        chosen = [k for k in range(self.atlas.num_textures) if (k % 5 == 0) == (split != "train")]
        self._photos = [Image.fromarray(self.atlas.texture(k)[..., :3].astype(np.uint8)) for k in chosen]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} is outside 0..{self.length - 1} of this TwoShot")
        label = index % len(CLASSES)
        key = (self.seed, get_args(Split).index(self.split), index)
        numbers = uniform(2 * len(SLOTS), *key)
        shots = [
            self._shot(motion, dict(zip(SLOTS, part.tolist(), strict=True)))
            for motion, part in zip(CLASSES[label], numbers.reshape(2, -1))
        ]
        clip = torch.cat(shots, dim=1)
        return (clip.clamp(0, 1) * 255).round() / 255, label

    def _shot(self, motion: str, u: dict[str, float]) -> Tensor:
        """(3, frames / 2, H, W)."""
        count = self.frames // 2
        progress = torch.arange(count) / (count - 1) if self.pace == "denser" else torch.arange(count) / STEPS
        progress = progress - progress.mean()  # the middle of the motion lies in the middle of the shot
        background = self._background(u)
        side = 0.5 + 0.15 * u["side"]  # of the shorter edge
        sprite = self._sprite(u, max(8, round(side * min(self.size))))
        layer = F.grid_sample(
            sprite.expand(count, -1, -1, -1), _grid(motion, progress, side, u, self.size), mode="bilinear",
            padding_mode="zeros", align_corners=False,
        )  # fmt: skip
        colour, alpha = layer[:, :3], layer[:, 3:]  # colour is multiplied by alpha already
        return (background * (1 - alpha) + colour).transpose(0, 1)

    def _background(self, u: dict[str, float]) -> Tensor:
        """A part of a photograph, (3, H, W)."""
        photo = self._photos[int(u["photo"] * len(self._photos))]
        height, width = self.size
        edge = photo.height * (0.4 + 0.6 * u["crop"]) / max(height, width)
        rows, columns = edge * height, edge * width
        top, left = u["crop_y"] * (photo.height - rows), u["crop_x"] * (photo.width - columns)
        box = (left, top, left + columns, top + rows)
        image = photo.resize((width, height), Image.Resampling.BILINEAR, box=box)
        if u["flip"] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return _pixels(image) * (0.5 + 0.5 * u["gain"])

    def _sprite(self, u: dict[str, float], px: int) -> Tensor:
        """(1, 4, px, px): a tile with a character on it, colours multiplied by opacity."""
        glyphs = self._glyphs[int(u["family"] * len(self._glyphs))]
        bitmap = self.atlas.bitmap(glyphs[int(u["glyph"] * len(glyphs))])
        scale = 0.8 * px / max(bitmap.size)
        inner = bitmap.resize([max(1, round(n * scale)) for n in bitmap.size], Image.Resampling.BILINEAR)
        ink = Image.new("L", (px, px))
        ink.paste(inner, ((px - inner.width) // 2, (px - inner.height) // 2))
        ink = _pixels(ink)
        tile = _colour(u["hue"], 0.35 + 0.5 * u["tile_light"])
        other = _colour(u["hue"] + 0.3 + 0.4 * u["ink_hue"], 0.95 if u["tile_light"] < 0.5 else 0.1 * u["ink_light"])
        colour = tile * (1 - ink) + other * ink
        opaque = torch.ones(1, px, px)
        return torch.cat((colour, opaque))[None]


def uniform(count: int, *key: int) -> np.ndarray:
    """Numbers in [0, 1) from a key of non-negative integers: raw words of PCG64, which numpy keeps from version to version."""
    words = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _grid(motion: str, progress: Tensor, side: float, u: dict[str, float], size: tuple[int, int]) -> Tensor:
    """Where in the sprite, in [-1, 1], each pixel of each frame lies: (frames, H, W, 2), x first."""
    zeros, travel = torch.zeros_like(progress), progress * (0.3 + 0.1 * u["travel"])
    dy = travel if motion == "down" else zeros
    dx = {"right": travel, "left": -travel}.get(motion, zeros)
    grown = side * 2 ** (progress * (1 + 0.4 * u["travel"])) if motion == "grow" else zeros + side
    turned = progress * math.radians(75 + 30 * u["travel"]) if motion == "turn" else zeros
    turned = turned + (u["angle"] - 0.5) * 0.2
    height, width = size
    y = (torch.arange(height) + 0.5 - height / 2) / min(size) - 0.2 * (u["y"] - 0.5)
    x = (torch.arange(width) + 0.5 - width / 2) / min(size) - 0.2 * (u["x"] - 0.5)
    y = (y - dy[:, None])[:, :, None] / (0.5 * grown[:, None, None])
    x = (x - dx[:, None])[:, None, :] / (0.5 * grown[:, None, None])
    cos, sin = turned.cos()[:, None, None], turned.sin()[:, None, None]
    return torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1)  # clockwise, y points down


def _pixels(image: Image.Image) -> Tensor:
    """(C, H, W) float32 in [0, 1]."""
    pixels = torch.from_numpy(np.array(image)).float() / 255
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def _colour(hue: float, light: float) -> Tensor:
    """A colour of a hue on the circle [0, 1), (3, 1, 1)."""
    waves = [0.5 + 0.5 * math.cos(2 * math.pi * (hue - k / 3)) for k in range(3)]
    return torch.tensor([light * (0.3 + 0.7 * wave) for wave in waves])[:, None, None]
