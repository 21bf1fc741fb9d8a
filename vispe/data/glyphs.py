"""Glyph-47: 47 classes of characters in 53 real typefaces, composed on the fly and rendered at any size."""

import difflib
import operator
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from .atlas import CLASSES, Atlas, Glyph, class_of
from .render import Draw, Variant, View, beside, draw, log_uniform, luma, place, render_colour, render_gray

Split = Literal["train", "val", "test"]
LENGTHS = {"train": 30000, "val": 2000, "test": 3000}  # defaults


class GlyphDataset(Dataset):
    """One character a picture; item ``i`` is ``(float32 (C, H, W) in [0, 1], label 0..46)``.

    The label of item ``i`` is ``i % 47`` (balanced), its name ``dataset.classes[label]``. A picture is a
    function of ``(seed, split, index)`` and of the options only: no global random state, no time, no worker
    or rank. It is the same bit for bit in every process, so that an evaluation set is fixed, and a ``length``
    as large as the whole run gives training samples that never repeat.

    Splits keep whole typeface families apart: 35 in ``train``, 6 in ``val``, 12 in ``test`` (see GLYPHS.md).
    Choose and tune on ``val``; **``test`` is for final tables only**, otherwise it stops being a test.

    All random draws are stated in frames, so index ``i`` is the same scene at every size, and a larger picture
    shows more of it (the atlas holds glyphs of 96 px; beyond 128 px little that is new appears). With
    ``size=(H, W)`` the frame fills the shorter side, centred, and the longer side shows more background: a wider
    field of view, nothing is stretched.

    Variants:
        plain: bright glyph, about centred, on a dark background with a faint photographic texture and mild
            noise.
        jitter: the same, smaller (longest side 0.45 to 0.9 of the frame) and anywhere in the frame.
        neighbours: the same with a letter to the left and one to the right, cut off by the frame; the label
            is that of the central one, so that place matters.
        photo: any colour, lighter or darker than a photograph or a gradient behind it (use ``channels=3``).
            Coloured variants like this were not learnt from scratch within 80,000 samples by a 1 M parameter
            ViT: it is meant for larger runs, not for the budgets of the demo.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        size: px, one number for a square or ``(H, W)``; 4 to 1024.
        length: number of items; 30000, 2000 and 3000 for the three splits when None.
        seed: another seed gives other scenes from the same families.
        variant: see above.
        zoom: ``(lo, hi)``: magnify each scene about the frame's centre by a log-uniform factor (training
            augmentation; (0.7, 1.4) is usual, large glyphs are then cut off). None: no zoom.
        channels: 1 (luma of coloured pictures) or 3 (grey pictures repeated).
        canvas: ``(H, W)``: paste the picture of ``size``, unchanged, at a random place of a larger field
            which goes on with the scene's background; items are then (C, *canvas).
        shift: (dy, dx) in frames: move the picture down and right, to test on shifted input.
        atlas: another atlas file, or an opened ``Atlas``; None for the shipped one.

    Raises:
        ValueError: an unknown split or variant, or an option out of its range.
        AtlasError: the atlas file is missing or damaged.
        IndexError: an index outside ``0 <= i < length``.
    """

    classes = CLASSES

    def __init__(
        self,
        split: Split,
        *,
        size: int | tuple[int, int] = 32,
        length: int | None = None,
        seed: int = 0,
        variant: Variant = "plain",
        zoom: tuple[float, float] | None = None,
        channels: Literal[1, 3] = 1,
        canvas: tuple[int, int] | None = None,
        shift: tuple[float, float] = (0.0, 0.0),
        atlas: str | Path | Atlas | None = None,
    ):
        self.split = _one_of("split", split, get_args(Split))
        self.variant = _one_of("variant", variant, get_args(Variant))
        self.size = _size("size", size)
        self.length = _integer("length", LENGTHS[split] if length is None else length, low=1)
        self.seed = _integer("seed", seed, low=0)
        self.zoom = None if zoom is None else _zoom(zoom)
        if channels not in (1, 3):
            raise ValueError(f"channels: got {channels!r}, expected 1 (grey) or 3 (RGB)")
        self.channels = channels
        self.canvas = None if canvas is None else _size("canvas", canvas)
        if self.canvas and (self.canvas[0] < self.size[0] or self.canvas[1] < self.size[1]):
            raise ValueError(f"canvas {self.canvas} is smaller than size {self.size}; expected at least size")
        self.shift = _pair("shift", shift, -1.0, 1.0)
        self.atlas = atlas if isinstance(atlas, Atlas) else Atlas(atlas)
        self.families = tuple(self.atlas.split[split])
        self._choices = _by_label(self.atlas, self.families)

    def __len__(self) -> int:
        return self.length

    @property
    def labels(self) -> np.ndarray:
        """Labels of all items, int64 (length,)."""
        return np.arange(self.length) % len(CLASSES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = self.render(index)
        return torch.from_numpy(image).float().div_(255), label

    def render(self, index: int) -> tuple[np.ndarray, int]:
        """The item as bytes: ``(uint8 (C, H, W), label)``."""
        index = self._check_index(index)
        label = index % len(CLASSES)
        d = draw(self.seed, get_args(Split).index(self.split), index)
        glyphs = self._scene(d, label)
        zoom = log_uniform(d.u["zoom"], *self.zoom) if self.zoom else 1.0
        (h, w), scale = self.size, min(self.size)
        view = View(h, w, scale, (h - scale) / 2, (w - scale) / 2, zoom, self.shift)
        image = self._picture(d, glyphs, view)
        if self.canvas:
            top = int(d.u["canvas_y"] * (self.canvas[0] - h + 1))
            left = int(d.u["canvas_x"] * (self.canvas[1] - w + 1))
            wide = View(*self.canvas, scale, top + view.top, left + view.left, zoom, self.shift)
            field = self._picture(d, glyphs, wide)
            field[:, top : top + h, left : left + w] = image
            image = field
        return image, label

    def glyph(self, index: int) -> Glyph:
        """Which typeface family, face and character item ``index`` shows."""
        index = self._check_index(index)
        d = draw(self.seed, get_args(Split).index(self.split), index)
        return self._scene(d, index % len(CLASSES))[0].glyph

    def cached(self) -> "CachedGlyphs":
        """All items rendered once into memory as bytes, for a set that is read many times (evaluation)."""
        return CachedGlyphs(self)

    def _check_index(self, index: int) -> int:
        index = operator.index(index)
        if not 0 <= index < self.length:
            raise IndexError(f"index {index} is outside 0..{self.length - 1} of this GlyphDataset")
        return index

    def _scene(self, d: Draw, label: int) -> list:
        faces = _pick(_pick(self._choices[label], d.u["family"]), d.u["face"])
        main = place(d, _pick(faces, d.u["char"]), self.variant)
        if self.variant != "neighbours":
            return [main]
        out = [main]
        for side in ("left", "right"):
            # any character of the same face; all 36 digits and capitals are there in every face
            other = int(36 * d.u[f"{side}_char"])
            same = [f for f in self._choices[other] if f[0][0].family == main.glyph.family][0]
            face = [f for f in same if f[0].face == main.glyph.face][0]
            out.append(beside(d, main, face[0], side))
        return out

    def _picture(self, d: Draw, glyphs: list, view: View) -> np.ndarray:
        if self.variant == "photo":
            image = render_colour(self.atlas, d, glyphs, view)
            if self.channels == 3:
                return np.ascontiguousarray(image.transpose(2, 0, 1))
            return np.floor(luma(image.astype(np.float32)) + np.float32(0.5)).astype(np.uint8)[None]
        image = render_gray(self.atlas, d, glyphs, view)[None]
        return image if self.channels == 1 else np.repeat(image, 3, axis=0)


class CachedGlyphs(Dataset):
    """The items of a :class:`GlyphDataset`, held in memory as bytes (1 kB a grey picture of 32 px)."""

    classes = CLASSES

    def __init__(self, dataset: GlyphDataset):
        images = [dataset.render(i)[0] for i in range(len(dataset))]
        self.images = torch.from_numpy(np.stack(images))  # uint8 (N, C, H, W)
        self.labels = dataset.labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside 0..{len(self) - 1} of this CachedGlyphs")
        return self.images[index].float().div_(255), int(self.labels[index])


def _by_label(atlas: Atlas, families: Sequence[str]) -> list[list[list[list[Glyph]]]]:
    """``[label][family][face][character]``; a family or face without the class is left out of its list."""
    table = [[] for _ in CLASSES]
    for family in families:
        faces = [defaultdict(list) for _ in CLASSES]
        for glyph in atlas.glyphs(family):
            faces[class_of(glyph.char)][glyph.face].append(glyph)
        for label, found in enumerate(faces):
            if found:
                table[label].append(list(found.values()))
    return table


def _pick(items: Sequence, u: float):
    return items[int(u * len(items))]


def _one_of(what: str, got: str, allowed: tuple[str, ...]) -> str:
    if got in allowed:
        return got
    near = difflib.get_close_matches(str(got), allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what}: got {got!r}, expected one of {', '.join(map(repr, allowed))}{hint}")


def _integer(what: str, got: int, *, low: int, high: int = 2**62) -> int:
    if isinstance(got, bool) or not hasattr(got, "__index__") or not low <= operator.index(got) <= high:
        upper = f" and at most {high}" if high < 2**62 else ""
        raise ValueError(f"{what}: got {got!r}, expected an integer of at least {low}{upper}")
    return operator.index(got)


def _size(what: str, got: int | tuple[int, int]) -> tuple[int, int]:
    sides = tuple(got) if isinstance(got, (tuple, list)) else (got, got)
    if len(sides) != 2:
        raise ValueError(f"{what}: got {got!r}, expected one integer or (height, width)")
    return tuple(_integer(what, s, low=4, high=1024) for s in sides)


def _pair(what: str, got: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    good = isinstance(got, (tuple, list)) and len(got) == 2 and all(isinstance(v, (int, float)) for v in got)
    if not good or not all(low <= v <= high for v in got):
        raise ValueError(f"{what}: got {got!r}, expected two numbers from {low} to {high}")
    return (float(got[0]), float(got[1]))


def _zoom(got: tuple[float, float]) -> tuple[float, float]:
    low, high = _pair("zoom", got, 0.1, 10.0)
    if low > high:
        raise ValueError(f"zoom: got {got!r}, expected (lo, hi) with lo <= hi")
    return (low, high)
