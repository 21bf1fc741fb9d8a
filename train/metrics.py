"""Accuracy at several sizes and coordinate conventions in one evaluation run."""

from collections.abc import Iterator

import torch
from torch import nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy


def label(stage: str, metric: str, *, size: tuple[int, ...], train_size: tuple[int, ...], coords: str | None) -> str:
    """``val/top1`` at the train size, ``val/top1@48x64`` elsewhere, ``/rescale`` appended for a convention."""
    at = "" if size == train_size else "@" + "x".join(map(str, size))
    return f"{stage}/{metric}{at}" + (f"/{coords}" if coords else "")


class Accuracies(nn.Module):
    """top-1, top-5 and loss for each (size, coordinates).

    The counts are summed over processes when a value is computed, so that it is exact however the samples are split.

    Args:
        num_classes: Number of classes.
        sizes: Evaluation sizes, the training size first; one for each loader.
        coords: Coordinate conventions, None for the encoding's own.
        groups: {metric: group of each class}: accuracies that count a class of the right group as right.
    """

    def __init__(
        self,
        num_classes: int,
        sizes: list[tuple[int, ...]],
        coords: list[str | None],
        groups: dict[str, list[int]] | None = None,
    ) -> None:
        super().__init__()
        self.sizes, self.coords, self.groups = sizes, coords, groups or {}
        self.top1, self.top5, self.loss = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for name in self.groups:
            setattr(self, name, nn.ModuleList(MeanMetric() for _ in range(len(sizes) * len(coords))))
        for _ in range(len(sizes) * len(coords)):
            self.top1.append(MulticlassAccuracy(num_classes, average="micro"))
            self.top5.append(MulticlassAccuracy(num_classes, average="micro", top_k=min(5, num_classes)))
            self.loss.append(MeanMetric())

    def update(self, size: int, coords: int, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: logits (B, C), labels (B,)."""
        slot = size * len(self.coords) + coords
        self.top1[slot].update(logits, labels)
        self.top5[slot].update(logits, labels)
        self.loss[slot].update(nn.functional.cross_entropy(logits, labels), weight=len(labels))
        for name, group in self.groups.items():
            of = torch.tensor(group, device=labels.device)
            getattr(self, name)[slot].update((of[logits.argmax(-1)] == of[labels]).float())

    def results(self, stage: str) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, value) of everything counted; empties the counters. A collective call: every process must make it."""
        for s, size in enumerate(self.sizes):
            for c, coords in enumerate(self.coords):
                slot = s * len(self.coords) + c
                for metric in ("top1", "top5", "loss", *self.groups):
                    counter = getattr(self, metric)[slot]
                    name = label(stage, metric, size=size, train_size=self.sizes[0], coords=coords)
                    yield name, counter.compute()
                    counter.reset()
