"""Three probes of position ids for vision-language models: pictures made of cells, a question, and an answer of one token.

Every picture is a grid of square cells, each a character of the glyph atlas on a grey tile; one tile is red, the mark. A tower
that sees cells one by one tells what is in each, and only position ids tell which is next to which.

- `Haystack`: a video of small frames; which character is right of the mark? Videos are tested far longer than trained.
- `Relations`: an image; which character is above, below, left or right of the mark? Shapes vary, so that one step up is another
  number of tokens each time.
- `Location`: an image; which character is on the mark? Nothing but its look is needed, and accuracy by place shows a bias.

Typefaces are the same in all splits: the probes ask for places, not for reading. Protocols after the project's own measurements
of V2PE's, VideoRoPE's, MRoPE-I's and CCA's claims (docs/vlm_probes.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image as Picture
from torch import Tensor
from torch.utils.data import Dataset

from ..positions.segments import Image, Segment, Text, Video
from .atlas import Atlas
from .procedural import Split
from .two_shot import uniform

VALUES = tuple("AEHKLTXZ")
WORDS = ("<see>", "<seen>", "on", "after", "above", "below", "left", "right")
VOCABULARY = (*WORDS, *VALUES)  # an answer is a token like any other
STEPS = {"above": (-1, 0), "below": (1, 0), "left": (0, -1), "right": (0, 1)}
BANDS = ("first", "second", "third", "last")  # quarters of a depth or a height


class Example(NamedTuple):
    """One question.

    Attributes:
        segments: of the sequence: the word "<see>", the picture, the words "<seen>" and the question.
        text: numbers of these words in `VOCABULARY`, (3,) int64.
        picture: (frames, 3, H, W) float32 in [0, 1].
        answer: number in `VOCABULARY` of the token behind the sequence.
        kind: number in the data set's `kinds`: which part of the accuracy it counts for.
    """

    segments: tuple[Segment, ...]
    text: Tensor
    picture: Tensor
    answer: int
    kind: int


class Scene(NamedTuple):
    """What a picture shows: values (frames, rows, columns), the marked cell, the cell asked for, the question, the kind."""

    values: np.ndarray
    mark: tuple[int, int, int]
    asked: tuple[int, int, int]
    word: str
    kind: int


class Probe(Dataset):
    """Questions that are functions of (seed, split, index) and the options.

    Args:
        split: questions of their own.
        cell: px of a cell's side.
        faces: typefaces, 1 to 35.
        length: number of questions.
        seed: another seed gives other questions.
        atlas: another atlas file, or an opened `Atlas`; None for the shipped one.
    """

    kinds: tuple[str, ...] = BANDS
    still: ClassVar[bool] = True  # an image, and not a video

    def __init__(
        self,
        split: Split,
        *,
        cell: int = 8,
        faces: int = 2,
        length: int = 1000,
        seed: int = 0,
        atlas: str | Path | Atlas | None = None,
    ) -> None:
        name = type(self).__name__
        if split not in get_args(Split):
            raise ValueError(f"{name}: split must be one of {get_args(Split)}, got {split!r}.")
        if cell < 4 or length < 1 or seed < 0:
            raise ValueError(
                f"{name}: cells have at least 4 px, length is at least 1 and seed not negative; got {cell}, {length}, {seed}."
            )
        self.split, self.cell, self.length, self.seed = split, cell, length, seed
        atlas = atlas if isinstance(atlas, Atlas) else Atlas(atlas)
        families = atlas.split["train"]
        if not 1 <= faces <= len(families):
            raise ValueError(f"{name}: faces must be 1 to {len(families)}, got {faces}.")
        self.bank = np.stack([_ink(atlas, family, cell) for family in families[:faces]])  # (faces, values, px, px)

    def scene(self, u: np.ndarray, key: tuple[int, ...]) -> Scene:
        """What is to be seen, of numbers (8,) in [0, 1) and of more from `key`."""
        raise TypeError(f"{type(self).__name__} draws no scenes; a probe must override scene().")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} is outside 0..{self.length - 1} of this {type(self).__name__}")
        key = (self.seed, get_args(Split).index(self.split), index)
        scene = self.scene(uniform(8, *key, 0), key)
        frames, rows, columns = scene.values.shape
        look = Image(rows, columns) if self.still else Video(frames, rows, columns, seconds=1.0)
        words = torch.tensor([VOCABULARY.index(w) for w in ("<see>", "<seen>", scene.word)])
        answer = VOCABULARY.index(VALUES[scene.values[scene.asked]])
        return Example((Text(1), look, Text(2)), words, self._picture(scene, key), answer, scene.kind)

    def _picture(self, scene: Scene, key: tuple[int, ...]) -> Tensor:
        """(frames, 3, H, W): light characters on dark tiles, the mark on red."""
        shape = scene.values.shape
        face, light, ink = uniform(3 * scene.values.size, *key, 2).reshape(3, *shape)
        shapes = self.bank[(face * len(self.bank)).astype(int), scene.values]  # (frames, rows, columns, px, px)
        tile = np.repeat((0.05 + 0.2 * light)[..., None], 3, axis=-1)
        tile[scene.mark] = (0.85, 0.1, 0.1)
        tile, ink = tile[..., None, None], (0.8 + 0.2 * ink)[..., None, None, None]
        cells = tile + (ink - tile) * shapes[..., None, :, :]  # (frames, rows, columns, 3, px, px)
        whole = cells.transpose(0, 3, 1, 4, 2, 5)
        return torch.from_numpy(whole.reshape(shape[0], 3, shape[1] * self.cell, -1).astype(np.float32))


class Haystack(Probe):
    """A video of 2 x 2 cells a frame, one of them marked; asked is the character right of the mark.

    Kinds are quarters of the video in which the mark is.

    Args:
        frames: one number, or (least, most) of which each video draws.
        options: see Probe.
    """

    still = False

    def __init__(self, split: Split, *, frames: int | tuple[int, int] = (1, 8), **options: object) -> None:
        super().__init__(split, **options)
        self.frames = (frames, frames) if isinstance(frames, int) else tuple(frames)
        if len(self.frames) != 2 or not 1 <= self.frames[0] <= self.frames[1]:
            raise ValueError(f"Haystack: frames is a number of at least 1 or (least, most), got {frames!r}.")

    def scene(self, u: np.ndarray, key: tuple[int, ...]) -> Scene:
        low, high = self.frames
        count = low + int(u[0] * (high - low + 1))
        frame, row = int(u[1] * count), int(u[2] * 2)
        return Scene(_values((count, 2, 2), key), (frame, row, 0), (frame, row, 1), "after", 4 * frame // count)


class Relations(Probe):
    """An image with a marked cell; asked is a neighbour of it. Kinds are the relations.

    Args:
        grids: (rows, columns) in cells of which each image draws, at least 2 x 2.
        relations: which neighbours are asked for, of "above", "below", "left" and "right".
        options: see Probe.
    """

    def __init__(
        self,
        split: Split,
        *,
        grids: Sequence[tuple[int, int]] = ((2, 2), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3), (4, 4)),
        relations: Sequence[str] = ("above", "left"),
        **options: object,
    ) -> None:
        super().__init__(split, **options)
        self.grids, self.kinds = _grids("Relations", grids, 2), tuple(relations)
        if not self.kinds or any(r not in STEPS for r in self.kinds):
            raise ValueError(f"Relations: relations are some of {tuple(STEPS)}, got {tuple(relations)}.")

    def scene(self, u: np.ndarray, key: tuple[int, ...]) -> Scene:
        rows, columns = self.grids[int(u[0] * len(self.grids))]
        kind = int(u[1] * len(self.kinds))
        down, across = STEPS[self.kinds[kind]]
        row = max(0, -down) + int(u[2] * (rows - abs(down)))  # so that the neighbour is inside
        column = max(0, -across) + int(u[3] * (columns - abs(across)))
        asked = (0, row + down, column + across)
        return Scene(_values((1, rows, columns), key), (0, row, column), asked, self.kinds[kind], kind)


class Location(Probe):
    """An image with a marked cell; asked is the character on it. Kinds are bands of rows from top to bottom.

    Args:
        grids: (rows, columns) in cells of which each image draws.
        options: see Probe.
    """

    def __init__(
        self, split: Split, *, grids: Sequence[tuple[int, int]] = ((1, 2), (2, 2), (4, 4), (6, 6)), **options: object
    ) -> None:
        super().__init__(split, **options)
        self.grids = _grids("Location", grids, 1)

    def scene(self, u: np.ndarray, key: tuple[int, ...]) -> Scene:
        rows, columns = self.grids[int(u[0] * len(self.grids))]
        mark = (0, int(u[1] * rows), int(u[2] * columns))
        return Scene(_values((1, rows, columns), key), mark, mark, "on", 4 * mark[1] // rows)


PROBES: dict[str, type[Probe]] = {"haystack": Haystack, "relations": Relations, "location": Location}


def _values(shape: tuple[int, int, int], key: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    return (uniform(count, *key, 1) * len(VALUES)).astype(int).reshape(shape)


def _grids(name: str, grids: Sequence[tuple[int, int]], least: int) -> list[tuple[int, int]]:
    found = [tuple(grid) for grid in grids]
    if not found or any(len(g) != 2 or min(g) < least for g in found):
        raise ValueError(f"{name}: grids are (rows, columns) of at least {least} cells a side, got {grids!r}.")
    return found


def _ink(atlas: Atlas, family: str, px: int) -> np.ndarray:
    """Every value in one typeface, (values, px, px) in [0, 1]."""
    faces = {}
    for glyph in atlas.glyphs(family):
        faces.setdefault(glyph.char, glyph)
    out = np.zeros((len(VALUES), px, px))
    for i, value in enumerate(VALUES):
        bitmap = atlas.bitmap(faces[value])
        scale = px / max(bitmap.size)
        small = bitmap.resize([max(1, round(n * scale)) for n in bitmap.size], Picture.Resampling.BOX)
        canvas = Picture.new("L", (px, px))
        canvas.paste(small, ((px - small.width) // 2, (px - small.height) // 2))
        out[i] = np.asarray(canvas) / 255
    return out
