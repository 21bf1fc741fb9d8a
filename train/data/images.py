"""Map-style data sets over images and labels, with seeded augmentation."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from train.data.corrupt import CorruptSamples, open_image
from train.data.sampling import Key
from train.seeds import seeded


class Images(Dataset):
    """Reads, augments and labels images; a subclass says how one is read.

    Args:
        length: Number of samples.
        transform: Image -> tensor.
        corrupt: What to do about unreadable samples.
        seed: Seed of the augmentation, which depends on it, the epoch and the place in the epoch alone.
    """

    def __init__(
        self, length: int, *, transform: Callable[[Any], Any], corrupt: CorruptSamples, seed: int = 0
    ) -> None:
        self.length, self.transform, self.corrupt, self.seed = length, transform, corrupt, seed

    def read(self, index: int) -> tuple[Any, int]:
        """(image, label); may raise on an unreadable sample."""
        raise TypeError(f"{type(self).__name__} does not say how a sample is read")

    def name(self, index: int) -> str:
        """What to call the sample in messages and predictions."""
        return str(index)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key | int) -> tuple[Any, int] | None:
        if not isinstance(key, Key):
            sample = self._try(key)
            return None if sample is None else (self.transform(sample[0]), sample[1])
        index = key.index
        while (sample := self._try(index)) is None:  # ends: CorruptSamples stops at its limit
            index = (index + 1) % self.length
        with seeded(self.seed, key.epoch, key.place):
            return self.transform(sample[0]), sample[1]

    def _try(self, index: int) -> tuple[Any, int] | None:
        try:
            return self.read(index)
        except Exception as error:  # a decoder may raise anything on a broken file
            self.corrupt.report(self.name(index), error)
            return None


class FileImages(Images):
    """Image files.

    Args:
        samples: (path, label) pairs.
        options: Those of :class:`Images`.
    """

    def __init__(self, samples: list[tuple[str, int]], **options: Any) -> None:
        super().__init__(len(samples), **options)
        self.samples = samples

    def read(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return open_image(path), label

    def name(self, index: int) -> str:
        return self.samples[index][0]


class Named(Dataset):
    """Adds the name to each sample of a data set: its ``name(index)``, or the index."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int, str] | None:
        sample = self.dataset[index]
        name = self.dataset.name(index) if hasattr(self.dataset, "name") else str(index)
        return None if sample is None else (*sample, name)
