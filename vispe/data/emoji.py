"""Emoji-CLIP: 1,553 emoji in four drawing styles with their names and keywords, as pairs of an image and a caption.

The atlas is built by ``scripts/build_emoji.py``; ``EMOJI.md`` beside this file tells what is in it, whose work the drawings
and names are, and their licences. Scenes of several emoji with captions about their places are in ``emoji_scenes.py``.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from .atlas import AtlasError
from .two_shot import uniform

SHIPPED = Path(__file__).with_name("emoji.zip")
STYLES = ("twemoji", "fluent-emoji-flat", "fluent-emoji", "noto")
Concepts = Literal["all", "train", "val", "test"]
Captions = Literal["label", "tags", "drawn"]
Place = Literal["centre", "random"]


class Concept(NamedTuple):
    """What an emoji shows: name in the atlas, code points, label, keywords and group by Unicode CLDR."""

    name: str
    code: str
    label: str
    tags: tuple[str, ...]
    group: str


class Captioned(NamedTuple):
    """An image (3, H, W) float32 in [0, 1], its caption, the caption with two things swapped ("" without), and a label that
    only items with the same caption's meaning share."""

    image: Tensor
    caption: str
    swapped: str
    label: int


class EmojiAtlas:
    """Reads the atlas; the sheet of a style is decoded when first asked for, then kept (26 MB each).

    A pickled copy carries the path and the index, not the decoded sheets.

    Args:
        path: the zip file; the shipped one when None.

    Raises:
        AtlasError: no such file, a damaged one, or an index of an unknown format.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else SHIPPED
        index = json.loads(self._read("index.json"))
        if index.get("format") != 1:
            raise self._error(f"its format is {index.get('format')!r}, this version of vispe reads format 1")
        self.size, self.columns = index["size"], index["columns"]
        self.styles: tuple[str, ...] = tuple(index["styles"])
        self.concepts = [
            Concept(e["name"], e["code"], e["label"], tuple(e["tags"]), e["group"]) for e in index["emoji"]
        ]
        self._sheets: dict[str, Image.Image] = {}

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_sheets": {}}

    def _error(self, what: str) -> AtlasError:
        return AtlasError(
            f"emoji atlas {self.path}: {what}. Reinstall vispe to get the shipped atlas back, or build it anew with "
            "scripts/build_emoji.py from a clone of the repository."
        )

    def _read(self, name: str) -> bytes:
        if not self.path.is_file():
            raise self._error("no such file")
        try:
            with zipfile.ZipFile(self.path) as z:
                return z.read(name)
        except (zipfile.BadZipFile, KeyError, OSError, EOFError) as e:
            raise self._error(f"cannot read {name} ({e}); the file is damaged") from e

    def picture(self, concept: int, style: str) -> Image.Image:
        """One emoji, RGBA, ``size`` px on each side."""
        if style not in self.styles:
            raise ValueError(f"EmojiAtlas: style must be one of {self.styles}, got {style!r}.")
        if style not in self._sheets:
            data = self._read(f"{style}.webp")
            try:
                self._sheets[style] = Image.open(io.BytesIO(data)).convert("RGBA")
            except (OSError, ValueError) as e:
                raise self._error(f"cannot decode {style}.webp ({e}); the file is damaged") from e
        top, left = self.size * (concept // self.columns), self.size * (concept % self.columns)
        return self._sheets[style].crop((left, top, left + self.size, top + self.size))

    def numbers(self, concepts: Concepts | Sequence[Concepts]) -> list[int]:
        """Concepts of one or several parts: a tenth is for validation, another for the test, the others for training."""
        parts = (concepts,) if isinstance(concepts, str) else tuple(concepts)
        if not parts or set(parts) - set(get_args(Concepts)):
            raise ValueError(f"EmojiAtlas: concepts must be some of {get_args(Concepts)}, got {concepts!r}.")
        part = {0: "val", 5: "test"}
        return [k for k in range(len(self.concepts)) if {"all", part.get(k % 10, "train")} & set(parts)]


class EmojiPairs(Dataset):
    """Item ``i`` is a :class:`Captioned` emoji; its label is the number of the concept.

    An item is a function of ``(seed, i)`` and the options only. Items go through the styles of a concept, then through the
    concepts, and begin anew after ``len(styles) * number of concepts``, with other places and captions if those are random.

    Args:
        styles: which drawings: "twemoji", "fluent-emoji-flat", "fluent-emoji", "noto".
        concepts: "all", or one or several of the parts "train", "val", "test" (see ``EmojiAtlas.numbers``).
        size: px, one number or (H, W).
        caption: "label" ("dog face"), "tags" (label and all keywords), "drawn" (label and some keywords in any order).
        place: "centre", or "random": size, place, and brightness of the background vary.
        length: number of items; None for each pair once.
        seed: another seed gives other places and captions.
        atlas: another atlas file, or an opened ``EmojiAtlas``; None for the shipped one.
    """

    def __init__(
        self,
        styles: Sequence[str] = STYLES,
        *,
        concepts: Concepts | Sequence[Concepts] = "all",
        size: int | tuple[int, int] = 32,
        caption: Captions = "label",
        place: Place = "centre",
        length: int | None = None,
        seed: int = 0,
        atlas: str | Path | EmojiAtlas | None = None,
    ) -> None:
        self.atlas = atlas if isinstance(atlas, EmojiAtlas) else EmojiAtlas(atlas)
        self.styles = checked_styles("EmojiPairs", styles, self.atlas)
        self.size = checked_size("EmojiPairs", size)
        if caption not in get_args(Captions) or place not in get_args(Place):
            raise ValueError(
                f"EmojiPairs: caption must be one of {get_args(Captions)} and place one of {get_args(Place)}, got "
                f"{caption!r} and {place!r}."
            )
        self.numbers = self.atlas.numbers(concepts)
        self.length = len(self.numbers) * len(self.styles) if length is None else length
        if self.length < 1 or seed < 0:
            raise ValueError(f"EmojiPairs: length must be at least 1 and seed not negative, got {length} and {seed}.")
        self.caption, self.place, self.seed = caption, place, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Captioned:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} is outside 0..{self.length - 1} of this EmojiPairs")
        pair = index % (len(self.numbers) * len(self.styles))
        number, style = self.numbers[pair // len(self.styles)], self.styles[pair % len(self.styles)]
        concept = self.atlas.concepts[number]
        u = uniform(5 + len(concept.tags), self.seed, index).tolist()
        edge, shift, light = (1.0, (0.5, 0.5), 1.0) if self.place == "centre" else (0.7 + 0.3 * u[0], u[1:3], 0.6 + 0.4 * u[3])
        canvas = np.full((*self.size, 3), light, np.float32)
        px = max(4, round(edge * min(self.size)))
        top, left = (round(s * (n - px)) for s, n in zip(shift, self.size))
        paste(canvas, self.atlas.picture(number, style), (top, left), px)
        return Captioned(as_tensor(canvas), self._caption(concept, u[4:]), "", number)

    def _caption(self, concept: Concept, u: list[float]) -> str:
        if self.caption == "label":
            return concept.label
        tags = list(concept.tags)
        if self.caption == "drawn":  # u[0]: how many; the others: which, in what order
            order = sorted(range(len(tags)), key=lambda k: u[1 + k])
            tags = [tags[k] for k in order[: int(u[0] * (len(tags) + 1))]]
        return ", ".join([concept.label, *tags])


def paste(canvas: np.ndarray, picture: Image.Image, corner: tuple[int, int], px: int) -> None:
    """Lay an RGBA picture, reduced to px x px, over float32 (H, W, 3) in [0, 1] with its upper left at (row, column)."""
    small = np.asarray(premultiplied(picture).resize((px, px), Image.Resampling.BOX), np.float32) / 255
    top, left = corner
    part = canvas[top : top + px, left : left + px]
    part *= 1 - small[..., 3:]
    part += small[..., :3]


def premultiplied(picture: Image.Image) -> Image.Image:
    """Colours times opacity, so that what a transparent pixel hides does not come out when pixels are averaged."""
    pixels = np.array(picture)
    pixels[..., :3] = (pixels[..., :3] * pixels[..., 3:].astype(np.uint16) + 127) // 255
    return Image.fromarray(pixels)


def as_tensor(canvas: np.ndarray) -> Tensor:
    """(H, W, 3) to (3, H, W), in steps of 1/255."""
    return torch.from_numpy(np.round(canvas.clip(0, 1) * 255).transpose(2, 0, 1) / 255).float().contiguous()


def checked_styles(what: str, styles: Sequence[str], atlas: EmojiAtlas) -> tuple[str, ...]:
    """The styles, which the atlas must have."""
    styles = (styles,) if isinstance(styles, str) else tuple(styles)
    if not styles or set(styles) - set(atlas.styles):
        raise ValueError(f"{what}: styles must be some of {atlas.styles}, got {styles}.")
    return styles


def checked_size(what: str, size: int | tuple[int, int], least: int = 8) -> tuple[int, int]:
    """(H, W)."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < least:
        raise ValueError(f"{what}: size must be one number or (H, W), each at least {least} px, got {size!r}.")
    return pair
