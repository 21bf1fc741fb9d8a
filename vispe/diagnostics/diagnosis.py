"""`diagnose`: everything about one model's positions, as numbers and pictures."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from . import figures
from .attention import AttentionDistance, LogitDecay, attention_distance, logit_decay
from .decodability import FEWEST, Decodability, decodability
from .equivariance import Change, equivariance
from .host import as_host, evaluating
from .images import channels_of, textures
from .padding import PaddingPattern, padding_pattern
from .relevance import Relevance, relevance
from .three_cell import ThreeCell, three_cell
from .wavelengths import Wavelengths, wavelengths

NAMES = (
    "three_cell", "equivariance", "logit_decay", "wavelengths", "attention_distance", "decodability", "padding", "relevance",
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """Results by name; None where one was not asked for, and of `wavelengths` also where an encoding has no frequencies.

    Attributes:
        title: the model, its encoding and the size of the images.
    """

    title: str
    three_cell: ThreeCell | None = None
    equivariance: dict[str, Change] | None = None
    logit_decay: LogitDecay | None = None
    wavelengths: dict[str, Wavelengths] | None = None
    attention_distance: AttentionDistance | None = None
    decodability: Decodability | None = None
    padding: PaddingPattern | None = None
    relevance: Relevance | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The results that there are."""
        return tuple(name for name in NAMES if getattr(self, name) is not None)

    def figure(self, name: str) -> Figure:
        """The picture of one result."""
        if name not in self.names:
            raise ValueError(f"Diagnosis: no result {name!r}; there are {self.names}.")
        return figures.DRAW[name](getattr(self, name), self.title)

    def numbers(self) -> dict[str, Any]:
        """Everything as plain values."""
        return _plain({"title": self.title, **{name: getattr(self, name) for name in self.names}})

    def save(self, folder: str | Path) -> list[Path]:
        """Write a picture of every result and `diagnosis.json`; refuses to replace any file.

        Returns:
            The files.
        """
        folder = Path(folder)
        pictures = {folder / f"{name}.png": name for name in self.names}
        table = folder / "diagnosis.json"
        refuse_existing([*pictures, table])
        folder.mkdir(parents=True, exist_ok=True)
        for file, name in pictures.items():
            self.figure(name).savefig(file)
        table.write_text(json.dumps(self.numbers(), indent=1) + "\n")
        return [*pictures, table]


def refuse_existing(files: Sequence[Path]) -> None:
    """An error that names the first of these files that exists."""
    for file in files:
        if file.exists():
            raise FileExistsError(f"{file} exists, and nothing is written over; choose another folder.")


def diagnose(
    model: nn.Module,
    images: Tensor | None = None,
    *,
    only: Sequence[str] = NAMES,
    size: tuple[int, int] | None = None,
    three_cell_mode: Literal["probe", "train"] = "probe",
    three_cell_images: int = 768,
    three_cell_steps: int = 500,
    target: int | None = None,
    seed: int = 0,
    title: str | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> Diagnosis:
    """What a model does with positions. It comes back as it was: mode, parameters, gradients and random numbers.

    Args:
        model: a ViT of ours, or one of timm's that `vispe.swap` can represent (it is copied).
        images: (B, C, height, width), normalised as the model expects; None draws textures that look alike everywhere, so
            that only the encoding can tell where a patch is: 16, or more where that makes fewer than 3000 patches (96 at most).
            `relevance` explains the first.
        only: some of `NAMES`.
        size: (height, width) of drawn images; None takes the model's own.
        three_cell_mode, three_cell_images, three_cell_steps: see `three_cell`.
        target: the class that `relevance` explains; None for the predicted one.
        title: the model's name on pictures; None takes that of its architecture.
        progress: called with the name of what is computed next.

    Raises:
        ValueError: a model without a form here; unknown names; images that do not fit.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise ValueError(f"diagnose: no result {unknown[0]!r}; there are {NAMES}.")
    host = as_host(model)
    weight = host.patch_embed.proj.weight
    if images is None:
        drawn = size or tuple(host.patch_embed.img_size)
        count = min(max(16, -(-3000 // math.prod(host.patch_embed.dynamic_feat_size(drawn)))), 96)
        images = textures(count, drawn, channels=channels_of(host), seed=seed)
    _check(images, weight, only)
    images = images.to(weight)
    shape = tuple(images.shape[2:])
    grid = tuple(host.patch_embed.dynamic_feat_size(shape))
    make: dict[str, Callable[[], Any]] = {
        "three_cell": lambda: three_cell(
            host, shape, mode=three_cell_mode, images=three_cell_images, steps=three_cell_steps, seed=seed
        ),
        "equivariance": lambda: equivariance(host, images[:4]),
        "logit_decay": lambda: logit_decay(host, images[:8]),
        "wavelengths": lambda: wavelengths(host, grid) or None,
        "attention_distance": lambda: attention_distance(host, images[:8]),
        "decodability": lambda: decodability(host, images),
        "padding": lambda: padding_pattern(host, shape),
        "relevance": lambda: relevance(host, images[:1], target=target),
    }
    found = {}
    with evaluating(host):
        for name in NAMES:
            if name in only:
                progress(name)
                found[name] = _on_cpu(make[name]())
    return Diagnosis(f"{title or _name(model)} ({host.encoding.spec}), {shape[0]} x {shape[1]} pixels", **found)


def _check(images: Tensor, weight: Tensor, only: Sequence[str]) -> None:
    if images.ndim != 4 or images.shape[1] != weight.shape[1]:
        raise ValueError(
            f"diagnose: images must be (B, {weight.shape[1]}, height, width), got {tuple(images.shape)}."
        )
    if "decodability" in only and images.shape[0] < FEWEST:
        raise ValueError(
            f"diagnose: decodability needs at least {FEWEST} images, got {images.shape[0]}; pass more, or leave it out."
        )


def _name(model: nn.Module) -> str:
    config = getattr(model, "pretrained_cfg", None) or {}
    return config.get("architecture") or type(model).__name__


def _on_cpu(value: Any) -> Any:
    """A result with its tensors on the CPU, where pictures are drawn."""
    if isinstance(value, Tensor):
        return value.detach().float().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{f.name: _on_cpu(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not torch.isfinite(torch.tensor(value)):
        return None  # JSON has no inf (a pair that does not turn) and no nan (pairs that masks hide)
    return value
