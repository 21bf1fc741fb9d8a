"""Vispe's drawn questions about places in pictures, as in training and in other sizes, lengths and rates."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.data.base import ImageData
from train.data.glyphs import ENDLESS
from train.data.sampling import Key
from vispe.data.probes import PROBES, Example, Probe
from vispe.models.vlm_parts import Sequences


class ProbeBatch(NamedTuple):
    """What a probe's task gets.

    Attributes:
        answers: (B,) int64.
        kinds: (B,) int64, which part of the accuracy each counts for.
        sequences: segments, text and pictures.
    """

    answers: Tensor
    kinds: Tensor
    sequences: Sequences


MEAN, STD = 0.3, 0.3  # of the pixels, roughly


def join(examples: Sequence[Example]) -> ProbeBatch:
    """A batch of questions of any lengths."""
    return ProbeBatch(
        torch.tensor([e.answer for e in examples]),
        torch.tensor([e.kind for e in examples]),
        Sequences(
            tuple(e.segments for e in examples), tuple(e.text for e in examples),
            tuple(((e.picture - MEAN) / STD,) for e in examples),
        ),
    )  # fmt: skip


class FreshProbe(Dataset):
    """Training questions that are new in every epoch."""

    def __init__(self, probe: Probe, length: int) -> None:
        self.probe, self.length = probe, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key) -> Example:
        return self.probe[key.epoch * self.length + key.index]


class VlmProbes(ImageData):
    """Questions about places in pictures (``vispe.data.probes``).

    Args:
        probe: ``haystack`` (right of the mark, in a video), ``relations`` (above, left, ... of the mark) or ``location``
            (on the mark, by place).
        options: Of the probe in training and evaluation: cell, faces, frames, grids, relations.
        conditions: Further evaluations, {name: changes}, reported as ``val/acc@name``. Changes are those of ``options`` that
            say how large pictures are (frames, grids), and rate, one number for every picture of schemes that have one
            (V2PE's delta, HoPE's scale); a condition with a rate is that of the others too, for which it changes nothing.
        train_length: Questions of an epoch; they are new ones in every epoch.
        val_length: Validation questions, the same in every run.
        test_length: Test questions, the same in every run.
        common: The options of every image data module; ``conditions`` stands in the place of ``eval_sizes``.
    """

    def __init__(
        self,
        *,
        probe: Literal["haystack", "relations", "location"] = "haystack",
        options: dict[str, Any] | None = None,
        conditions: dict[str, dict[str, Any]] | None = None,
        train_length: int = 51_200,
        val_length: int = 400,
        test_length: int = 1000,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.repeats != 1:
            raise ValueError("VlmProbes: every question is a new one, so repeats has no meaning; set it to 1")
        if self.eval_sizes or self.img_size is not None:
            raise ValueError("VlmProbes: sizes are conditions, {name: {grids: [[24, 24]]}}, no img_size or eval_sizes")
        if probe not in PROBES:
            raise ValueError(f"VlmProbes: probe must be one of {tuple(PROBES)}, got {probe!r}")
        self.probe, self.options = probe, dict(options or {})
        self.conditions: dict[str, dict[str, Any]] = {"": {}, **(conditions or {})}
        allowed = {"rate", "frames"} if probe == "haystack" else {"rate", "grids"}
        for name, changes in self.conditions.items():
            if unknown := set(changes) - allowed:
                raise ValueError(f"VlmProbes: condition {name!r} changes {sorted(unknown)}; it can change {sorted(allowed)}")
        self.rates = {name: changes.get("rate") for name, changes in self.conditions.items()}
        self.train_length, self.lengths = train_length, {"val": val_length, "test": test_length}
        self.kinds = self.eval_probe("val", {}).kinds

    def setup(self, stage: str) -> None:
        """Nothing is to be agreed on with the model: cells must be those of its tower, which says so if they are not."""

    def eval_probe(self, split: str, changes: dict[str, Any]) -> Probe:
        """The questions of a condition."""
        changes = {k: v for k, v in changes.items() if k != "rate"}
        return PROBES[self.probe](split, **{**self.options, **changes, "length": self.lengths[split]})

    def train_dataset(self) -> Dataset:
        return FreshProbe(PROBES[self.probe]("train", **self.options, length=ENDLESS, seed=self.seed), self.train_length)

    def _loader_options(self) -> dict[str, Any]:
        return super()._loader_options() | {"collate_fn": join}

    def _loaders(self, split: str) -> list[DataLoader]:
        return [self._eval_loader(self.eval_probe(split, changes)) for changes in self.conditions.values()]

    def val_dataloader(self) -> list[DataLoader]:
        return self._loaders("val")

    def test_dataloader(self) -> list[DataLoader]:
        return self._loaders("test")

    def predict_dataset(self) -> Dataset:
        return self.eval_probe("test", {})
