"""Samples that cannot be read: named, counted over all loader workers, and never lost in silence."""

import multiprocessing
import sys
from typing import Any, Literal

import torch
from PIL import Image
from torch.utils.data import default_collate

Policy = Literal["raise", "skip"]


class CorruptSampleError(RuntimeError):
    """A sample could not be read and the policy is to stop."""


class CorruptSamples:
    """The policy and the shared counter.

    Args:
        policy: ``raise`` stops at the first unreadable sample; ``skip`` names it, counts it and goes on.
        limit: With ``skip``, stop after this many: by then the data set is broken and not the odd file.
    """

    def __init__(self, policy: Policy = "raise", limit: int = 100) -> None:
        if policy not in ("raise", "skip"):
            raise ValueError(f"on_corrupt must be 'raise' or 'skip', got {policy!r}")
        self.policy, self.limit = policy, limit
        self._count = multiprocessing.Value("q", 0)

    @property
    def count(self) -> int:
        """Unreadable samples met so far by this process and its loader workers."""
        return self._count.value

    def report(self, name: str, error: Exception) -> None:
        """Record one sample; raises :class:`CorruptSampleError` when the policy or the limit says so."""
        with self._count.get_lock():
            self._count.value += 1
            count = self._count.value
        what = f"cannot read {name}: {type(error).__name__}: {error}"
        if self.policy == "raise":
            raise CorruptSampleError(f"{what}. Replace or remove it, or set on_corrupt to 'skip'") from error
        if count > self.limit:
            raise CorruptSampleError(f"{what}. That is number {count}, more than max_corrupt={self.limit}") from error
        # not a warning or a log record: a worker's filters and handlers may swallow those
        print(f"{what} (skipped, number {count})", file=sys.stderr, flush=True)


def collate(samples: list[Any]) -> Any:
    """Default collation without the unreadable samples (None) of an evaluation set; None when nothing is left."""
    kept = [sample for sample in samples if sample is not None]
    return default_collate(kept) if kept else None


def open_image(source: Any) -> Image.Image:
    """Decode an image file or file object completely to RGB; a truncated one raises."""
    with Image.open(source) as image:
        return image.convert("RGB")


def set_one_thread(worker: int) -> None:
    """Loader workers decode on one thread each; more would fight with the training process."""
    torch.set_num_threads(1)
