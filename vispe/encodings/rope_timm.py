"""timm's rotary embeddings: axial ("cat"), mixed, DINOv3's and interleaved MRoPE, on timm's kinds of grids.

    angle_i = Σ_a c_a · f_a,i,  c a coordinate: index, reference-scaled index, pixel in [−1, 1] or centred in [−1, 1]

Code: huggingface/pytorch-image-models, timm 1.0.31 (layers/pos_embed_sincos.py, models/eva.py). Presets are what its
released families set: "eva02" (EVA-02, and the SBB models with RoPE), "naver_axial", "naver_mixed" (arXiv 2403.13298),
"pe" and "pe_gigantic" (Perception Encoder, arXiv 2504.13181), "dinov3" (arXiv 2508.10104), "mrope" (GenLIP), and
"pixel" (timm's own default). Prefix tokens not rotated. Spatial order is row-major throughout: "xy" swaps the two
coordinates in the channels, not the tokens.
Different from timm: `freqs` of "mixed" are one parameter a layer, rows before columns (a converter's job); random draws
of the training augmentation come from the device of the positions; periods are not rounded to bfloat16 (nor are timm's;
the original's are).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..positions import Positions, Resize
from .base import Card
from .extrapolation import Series
from .rope_dinov3 import augment_at_random, check_augmentation
from .rope_mixed import draw_mixed_frequencies
from .rotary import Rotary, block_frequencies, positive, reference_indices, split_pairs

_CENTERED = {"separate": "centered", "min": "centered_min", "max": "centered_max"}
Kind = Literal["cat", "mixed", "dinov3", "mrope"]
Preset = Literal["eva02", "naver_axial", "naver_mixed", "pe", "pe_gigantic", "dinov3", "mrope", "pixel"]


@dataclass(frozen=True)
class Settings:
    """One family's settings; every one is an option of `RopeTimm`, which documents them."""

    kind: Kind = "cat"
    temperature: float = 10000.0
    bands: Literal["language", "pixel", "pixel_linear"] = "language"
    max_res: int = 224
    coords: Literal["index", "pixel", "centered"] = "index"
    indexing: Literal["ij", "xy"] = "ij"
    offset: float = 0.0
    reference: tuple[int, int] | Literal["none", "train"] = "none"
    normalize: Literal["separate", "min", "max"] = "separate"
    periods: tuple[float, float] | Literal["none"] = "none"
    sections: tuple[int, int, int] = (8, 12, 12)
    layout: Literal["interleaved", "half"] = "interleaved"
    shift: float = 0.0
    jitter: float = 1.0
    rescale: float = 1.0


PRESETS: dict[str, Settings] = {
    "eva02": Settings(reference=(16, 16)),
    "naver_axial": Settings(temperature=100.0, indexing="xy"),
    "naver_mixed": Settings(kind="mixed", temperature=10.0, indexing="xy"),
    "pe": Settings(indexing="xy", offset=1.0, reference="train"),
    "pe_gigantic": Settings(indexing="xy", reference="train"),
    "dinov3": Settings(kind="dinov3", temperature=100.0, coords="centered", layout="half"),
    "mrope": Settings(kind="mrope", layout="half"),
    "pixel": Settings(bands="pixel", coords="pixel"),
}
_CHOICES = {
    "kind": ("cat", "mixed", "dinov3", "mrope"),
    "bands": ("language", "pixel", "pixel_linear"),
    "coords": ("index", "pixel", "centered"),
    "indexing": ("ij", "xy"),
    "normalize": tuple(_CENTERED),
    "layout": ("interleaved", "half"),
}


class RopeTimm(Rotary):
    """A rotary embedding of timm, by the family that uses it; any option given replaces the preset's.

    Args:
        preset: the family.
        kind: "cat" axial, "mixed" learned vectors, "dinov3" periods, "mrope" rows and columns strided through the pairs.
        temperature: base of the frequencies or periods.
        bands: of "cat", "language" temperature^(−i/m), or "pixel" π · (1 .. max_res / 2), logarithmic or linear.
        max_res: largest resolution of the pixel bands.
        coords: cell "index", "pixel" from −1 at the first to 1 at the last cell, "centered" cell centres in [−1, 1].
        indexing: "ij" rows first in the channels, "xy" columns first ("mixed" keeps rows first in `freqs`).
        offset: added to index and centred cells.
        reference: (rows, columns) that index grids are scaled to, "train" for the train grid, "none" for no scaling.
        normalize: denominator of centred grids.
        periods: of "dinov3", (first, last) in place of the temperature.
        sections: of "mrope", (frames, rows, columns); frames' pairs do not turn in an image.
        layout: channel pairs.
        shift, jitter, rescale: augmentation of the coordinates in training, see RopeDinov3.
        resize: None for the family's: "rescale" where coordinates are relative to the image, else "extend".

    Attributes:
        freqs: of "mixed" only, (H, 2, head_dim / 2) radians per cell.
    """

    card = Card(
        title="timm's RoPE",
        family="rotary",
        axes=(2,),
        injection=("qk",),
        formula="angle_i = sum_a c_a f_a,i",
        paper="https://arxiv.org/abs/2403.13298",
        year=2024,
        code="huggingface/pytorch-image-models",
        licence="Apache-2.0",
        cases=18,
        relative=True,
    )
    no_decay = ("freqs",)
    neutral_zeros = ("freqs",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        preset: Preset = "eva02",
        kind: Kind | None = None,
        temperature: float | None = None,
        bands: Literal["language", "pixel", "pixel_linear"] | None = None,
        max_res: int | None = None,
        coords: Literal["index", "pixel", "centered"] | None = None,
        indexing: Literal["ij", "xy"] | None = None,
        offset: float | None = None,
        reference: tuple[int, int] | Literal["none", "train"] | None = None,
        normalize: Literal["separate", "min", "max"] | None = None,
        periods: tuple[float, float] | Literal["none"] | None = None,
        sections: tuple[int, int, int] | None = None,
        layout: Literal["interleaved", "half"] | None = None,
        shift: float | None = None,
        jitter: float | None = None,
        rescale: float | None = None,
        resize: Resize | None = None,
    ) -> None:
        if preset not in PRESETS:
            raise ValueError(f"rope_timm: preset must be one of {tuple(PRESETS)}, got {preset!r}.")
        given = dict(
            kind=kind, temperature=temperature, bands=bands, max_res=max_res, coords=coords, indexing=indexing, offset=offset,
            reference=reference, normalize=normalize, periods=periods, sections=sections, layout=layout, shift=shift,
            jitter=jitter, rescale=rescale,
        )  # fmt: skip
        settings = settle(PRESETS[preset], given)
        own = "extend" if settings.coords == "index" and settings.reference == "none" else "rescale"
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=own if resize is None else resize)
        split_pairs("rope_timm", self.head_dim, 1 if settings.kind == "mrope" else 2)
        self.settings, self.layout, self.default_resize = settings, settings.layout, own
        self.per_layer = settings.kind == "mixed"
        self.freqs = nn.Parameter(torch.empty(num_heads, 2, self.head_dim // 2)) if self.per_layer else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.freqs is not None:
            with torch.no_grad():
                theta, device = self.settings.temperature, self.freqs.device
                self.freqs.copy_(draw_mixed_frequencies(self.num_heads, 2, self.head_dim, theta, device))

    def frequencies(self) -> Tensor:
        s, count = self.settings, self.head_dim // 4
        if self.freqs is not None:
            return self.freqs.float()
        if s.kind == "mrope":
            return strided_frequencies(self.head_dim // 2, s.temperature, s.sections)
        if s.kind == "dinov3":
            freqs = 2 * math.pi / _periods(count, s)
        else:
            freqs = _bands(count, s)
        blocks = block_frequencies(freqs, 2)
        return blocks.flip(1) if s.indexing == "xy" else blocks

    def series(self) -> tuple[Series, ...] | None:
        s, count = self.settings, self.head_dim // 4
        if s.kind == "mrope":
            return (Series(s.temperature, self.head_dim // 2),) * 2
        if s.kind == "cat" and s.bands == "language":
            return (Series(s.temperature, count),) * 2
        if s.kind == "dinov3" and isinstance(s.periods, str):
            return (Series(s.temperature, count, 2 * math.pi),) * 2
        if s.kind == "dinov3":
            low, high = s.periods
            return (Series((high / low) ** (count / max(count - 1, 1)), count, 2 * math.pi / low),) * 2
        return None  # learned ("mixed"), or bands that rise with the index

    def cell(self, train: tuple[int, ...]) -> tuple[float, ...]:
        s = self.settings
        if s.coords == "centered":
            size = {"separate": train, "min": (min(train),) * 2, "max": (max(train),) * 2}[s.normalize]
            return tuple(2 / n for n in size)
        if s.coords == "pixel":
            return tuple(2 / max(n - 1, 1) for n in train)
        return (1.0, 1.0) if isinstance(s.reference, str) else tuple(r / n for r, n in zip(s.reference, train))

    def places(self, pos: Positions) -> Tensor:
        s = self.settings
        if pos.units == "custom":
            return pos.coords
        if s.coords == "centered":
            moved = replace(pos, coords=pos.coords + s.offset)
            return moved.to(_CENTERED[s.normalize], self.resize)
        if s.coords == "pixel":
            size = pos.extent if self.resize == "rescale" else pos.train
            return torch.stack([2 * c / max(n - 1, 1) - 1 for c, n in zip(pos.coords.unbind(-1), size)], dim=-1)
        if s.reference == "none" and self.resize == "extend":
            return pos.coords + s.offset
        return reference_indices(pos, self.resize, None if isinstance(s.reference, str) else s.reference, offset=s.offset)

    def coordinates(self, pos: Positions) -> Tensor:
        s, coords = self.settings, self.places(pos)
        if not self.training or (s.shift == 0 and s.jitter == 1 and s.rescale == 1):
            return coords
        return augment_at_random(coords, shift=s.shift, jitter=s.jitter, rescale=s.rescale)


def settle(preset: Settings, given: dict[str, Any]) -> Settings:
    """The preset with the given options in it, checked."""
    s = replace(preset, **{k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None})
    for field in fields(s):
        value = getattr(s, field.name)
        if field.name in _CHOICES and value not in _CHOICES[field.name]:
            raise ValueError(f"rope_timm: {field.name} must be one of {_CHOICES[field.name]}, got {value!r}.")
    positive("rope_timm", "temperature", s.temperature)
    check_augmentation("rope_timm", s.shift, s.jitter, s.rescale)
    if s.reference not in ("none", "train") and (isinstance(s.reference, str) or len(s.reference) != 2):
        raise ValueError(f"rope_timm: reference must be (rows, columns), 'train' or 'none', got {s.reference!r}.")
    if s.kind in ("mixed", "mrope") and s.coords != "index":
        raise ValueError(f"rope_timm: {s.kind!r} counts cells; coords must be 'index', got {s.coords!r}.")
    if s.kind == "mixed" and s.layout == "half" or s.kind == "mrope" and (s.layout != "half" or s.indexing != "ij"):
        raise ValueError(
            f"rope_timm: 'mixed' needs layout 'interleaved', 'mrope' layout 'half' and indexing 'ij'; got kind {s.kind!r}, "
            f"layout {s.layout!r}, indexing {s.indexing!r}."
        )
    return s


def _bands(count: int, s: Settings) -> Tensor:
    """Frequencies of one axis, (count,) float32."""
    if s.bands == "language":
        return s.temperature ** -(torch.arange(count, dtype=torch.float32) / count)
    if s.bands == "pixel_linear":
        return math.pi * torch.linspace(1.0, s.max_res / 2, count)
    return math.pi * 2 ** torch.linspace(0, math.log2(s.max_res) - 1, count)


def _periods(count: int, s: Settings) -> Tensor:
    """DINOv3's periods of one axis, (count,) float32."""
    if isinstance(s.periods, str):
        return s.temperature ** (torch.arange(count, dtype=torch.float32) / count)
    low, high = s.periods
    return low * (high / low) ** torch.linspace(0, 1, count)


def strided_frequencies(pairs: int, temperature: float, sections: Sequence[int]) -> Tensor:
    """(1, [row, col], pairs): 1, 4, 7, ... below 3 · rows turn with the row, 2, 5, 8, ... below 3 · columns with the column."""
    place = torch.arange(pairs)
    freqs = temperature ** -(place.float() / pairs)
    owners = [(place % 3 == axis) & (place < 3 * sections[axis]) for axis in (1, 2)]
    return torch.stack([freqs * owner for owner in owners])[None]
