"""Scenes of several emoji on a grid with captions about their places, "fox left of lemon", and the swap test.

Each image comes with its caption and with the caption in which the two things of the last sentence change places, "lemon left
of fox", which is always false. Whoever knows which things are there and not where they are is right about them half of the
time: the scene with the two things exchanged is as likely, and has the same cells.
"""

import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from torch.utils.data import Dataset

from .emoji import STYLES, Captioned, EmojiAtlas, as_tensor, checked_size, checked_styles, paste
from .two_shot import uniform

# Labels of things that differ in colour and shape in every style.
THINGS = (
    "tomato", "lemon", "broccoli", "eggplant", "carrot", "penguin", "fox", "frog", "pig", "flamingo", "spouting whale",
    "octopus", "tiger", "bear", "sunflower", "rose", "cactus", "grapes", "pizza", "doughnut", "watermelon", "strawberry",
    "banana", "mushroom", "panda", "owl", "crab", "butterfly", "coconut", "cookie", "egg", "horse",
)  # fmt: skip
RELATIONS = {"left of": (0, 1), "right of": (0, -1), "above": (1, 0), "below": (-1, 0)}  # to the second thing: row, column
Split = Literal["train", "val", "test"]


class EmojiScenes(Dataset):
    """Item ``i`` is a :class:`Captioned` scene; its label is a number of its caption's text.

    An item is a function of ``(seed, split, i)`` and the options only. Every thing stands in a cell of its own, at a random
    place in it; no thing occurs twice. A sentence names two things in the same row or column; a caption of several sentences
    says each about another pair.

    Args:
        split: train, val and test scenes are drawn apart.
        styles: which drawings.
        size: px, one number or (H, W).
        grid: cells (rows, columns).
        objects: least and greatest number of things.
        sentences: least and greatest number of sentences; a scene with fewer pairs in line than drawn has all of them.
        things: how many of THINGS occur, at least ``objects[1]``.
        length: number of scenes.
        seed: another seed gives other scenes.
        atlas: another atlas file, or an opened ``EmojiAtlas``; None for the shipped one.
    """

    def __init__(
        self,
        split: Split,
        styles: Sequence[str] = STYLES,
        *,
        size: int | tuple[int, int] = 32,
        grid: tuple[int, int] = (2, 2),
        objects: tuple[int, int] = (2, 4),
        sentences: tuple[int, int] = (1, 1),
        things: int = len(THINGS),
        length: int = 2000,
        seed: int = 0,
        atlas: str | Path | EmojiAtlas | None = None,
    ) -> None:
        if split not in get_args(Split):
            raise ValueError(f"EmojiScenes: split must be one of {get_args(Split)}, got {split!r}.")
        self.atlas = atlas if isinstance(atlas, EmojiAtlas) else EmojiAtlas(atlas)
        self.styles = checked_styles("EmojiScenes", styles, self.atlas)
        self.grid = tuple(grid)
        if len(self.grid) != 2 or min(self.grid) < 1 or max(self.grid) < 2:
            raise ValueError(f"EmojiScenes: grid must be (rows, columns) with at least two cells, got {grid!r}.")
        self.size = checked_size("EmojiScenes", size, 8 * max(self.grid))
        self.objects, self.sentences = _span("objects", objects, 2), _span("sentences", sentences, 1)
        cells = self.grid[0] * self.grid[1]
        if self.objects[1] > cells or not self.objects[1] <= things <= len(THINGS):
            raise ValueError(
                f"EmojiScenes: {self.objects[1]} objects need as many cells (the grid {self.grid} has {cells}) and things "
                f"({things} of {len(THINGS)})."
            )
        if length < 1 or seed < 0:
            raise ValueError(f"EmojiScenes: length must be at least 1 and seed not negative, got {length} and {seed}.")
        self.split, self.length, self.seed = split, length, seed
        numbers = {concept.label: k for k, concept in enumerate(self.atlas.concepts)}
        self.things = [(label, numbers[label]) for label in THINGS[:things]]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Captioned:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} is outside 0..{self.length - 1} of this EmojiScenes")
        cells = self.grid[0] * self.grid[1]
        key = (self.seed, get_args(Split).index(self.split), index)
        u = iter(uniform(4 + cells + len(self.things) + 4 * cells + cells * cells, *key).tolist())
        count = _drawn(self.objects, next(u))
        sentences, light = _drawn(self.sentences, next(u)), 0.75 + 0.25 * next(u)
        spots = self._spots(count, [next(u) for _ in range(cells)])
        order = sorted(range(len(self.things)), key=[next(u) for _ in self.things].__getitem__)
        placed = [(self.things[k], spot) for k, spot in zip(order, spots)]
        canvas = np.full((*self.size, 3), light, np.float32)
        for (_, number), spot in placed:
            self._draw(canvas, number, spot, [next(u) for _ in range(4)])
        caption, swapped = self._captions(placed, sentences, list(u))
        return Captioned(as_tensor(canvas), caption, swapped, zlib.crc32(caption.encode()))

    def _spots(self, count: int, u: list[float]) -> list[tuple[int, int]]:
        """Different cells, the first two in one row or column."""
        cells = sorted(itertools.product(range(self.grid[0]), range(self.grid[1])), key=lambda c: u[c[0] * self.grid[1] + c[1]])
        first = cells[0]
        second = next(c for c in cells[1:] if c[0] == first[0] or c[1] == first[1])
        return [first, second, *(c for c in cells[1:] if c != second)][:count]

    def _draw(self, canvas: np.ndarray, number: int, spot: tuple[int, int], u: list[float]) -> None:
        """A thing at a random place of its cell, in a random style; ``u`` are four numbers."""
        edges = [(n * k // g, n * (k + 1) // g) for n, k, g in zip(self.size, spot, self.grid)]
        room = [high - low for low, high in edges]
        px = max(4, round((0.8 + 0.2 * u[0]) * min(room)))
        corner = tuple(low + round(v * (r - px)) for (low, _), r, v in zip(edges, room, u[1:3]))
        paste(canvas, self.atlas.picture(number, self.styles[int(u[3] * len(self.styles))]), corner, px)

    def _captions(self, placed: list, sentences: int, u: list[float]) -> tuple[str, str]:
        """The caption, and the one whose last sentence is swapped."""
        pairs = [p for p in itertools.permutations(placed, 2) if relation(p[0][1], p[1][1])]
        order = sorted(range(len(pairs)), key=u.__getitem__)
        said: dict[frozenset, tuple[str, str, str]] = {}
        for ((one, _), here), ((other, _), there) in (pairs[k] for k in order):
            said.setdefault(frozenset((one, other)), (one, relation(here, there), other))
        chosen = list(said.values())[:sentences]
        *before, (one, how, other) = chosen
        text = [" ".join(sentence) for sentence in before]
        return ", ".join([*text, f"{one} {how} {other}"]), ", ".join([*text, f"{other} {how} {one}"])


def relation(here: tuple[int, int], there: tuple[int, int]) -> str | None:
    """What a thing in one cell is to one in another of the same row or column, None for others."""
    step = np.sign(there[0] - here[0]), np.sign(there[1] - here[1])
    return next((name for name, way in RELATIONS.items() if way == step), None)


def _drawn(span: tuple[int, int], u: float) -> int:
    return span[0] + int(u * (span[1] - span[0] + 1))


def _span(what: str, span: tuple[int, int], least: int) -> tuple[int, int]:
    span = tuple(span)
    if len(span) != 2 or not least <= span[0] <= span[1]:
        raise ValueError(f"EmojiScenes: {what} must be (least, greatest), both at least {least}, got {span!r}.")
    return span
