"""WebDataset shards: tar files of images and labels, split over processes and loader workers."""

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from train.data.augment import DEFAULT, Augment
from train.data.base import ImageData, Size
from train.data.corrupt import CorruptSamples, open_image
from train.seeds import mix, seeded

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")


def read_shards(urls: list[str], corrupt: CorruptSamples) -> Iterator[tuple[Any, int, str]]:
    """(image, label, name) of each sample in the shards, in order; unreadable ones go to ``corrupt``."""
    for url in urls:
        for sample in _raw_samples(url, corrupt):
            name = f"{sample['__key__']} in {url}"
            try:
                suffix = next((s for s in IMAGE_SUFFIXES if s in sample), None)
                if suffix is None or "cls" not in sample:
                    have = sorted(k for k in sample if not k.startswith("__"))
                    raise ValueError(f"needs an image ({', '.join(IMAGE_SUFFIXES)}) and a label (cls), has {have}")
                decoded = open_image(io.BytesIO(sample[suffix])), int(sample["cls"]), name
            except Exception as error:  # a decoder may raise anything on a broken file
                corrupt.report(name, error)
                continue
            yield decoded


def _raw_samples(url: str, corrupt: CorruptSamples) -> Iterator[dict[str, Any]]:
    """Samples of one shard as bytes; a shard that breaks off is reported once, with what was read before it."""
    from webdataset.tariterators import tarfile_samples

    samples = tarfile_samples([{"url": url}])
    read = 0
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except Exception as error:  # tarfile, OSError or ValueError, from a truncated or damaged tar
            corrupt.report(f"shard {url} after {read} samples", error)
            return
        read += 1
        yield sample


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


class TrainShards(IterableDataset):
    """An endless shuffled stream cut into epochs of equally many batches on every process.

    Each (process, worker) owns a share of the shuffled shards and goes round it as often as the epoch needs. The
    order depends on the seed, the epoch and the number of processes and workers; a resumed epoch reads again what it
    had consumed (decoding it, so that broken samples count the same) and goes on from there.

    Args:
        urls: All shards.
        batches: Batches of an epoch in this process.
        batch_size: Samples of a batch.
        buffer: Size of the shuffle buffer in samples.
        transform: PIL image -> tensor.
        corrupt: What to do about unreadable samples.
        seed: Seed of order and augmentation.
        num_replicas: Number of processes.
        rank: This process.
    """

    def __init__(
        self,
        urls: list[str],
        *,
        batches: int,
        batch_size: int,
        buffer: int,
        transform: Any,
        corrupt: CorruptSamples,
        seed: int,
        num_replicas: int,
        rank: int,
    ) -> None:
        self.urls, self.batches, self.batch_size, self.buffer = urls, batches, batch_size, buffer
        self.transform, self.corrupt, self.seed = transform, corrupt, seed
        self.num_replicas, self.rank = num_replicas, rank
        self.epoch, self.first_batch = 0, 0

    def __len__(self) -> int:
        return self.batches * self.batch_size

    def set_position(self, epoch: int, skip: int) -> None:
        """The next iteration is that of ``epoch`` without its first ``skip`` samples (whole batches)."""
        self.epoch, self.first_batch = epoch, skip // self.batch_size

    def _stream(self, lane: int, lanes: int) -> Iterator[tuple[Any, int, str]]:
        from webdataset.filters import shuffle

        urls = sorted(self.urls)
        random.Random(mix(self.seed, self.epoch)).shuffle(urls)
        mine = urls[self.rank * lanes + lane :: self.num_replicas * lanes]
        turn = 0
        while True:
            samples = read_shards(mine, self.corrupt)
            rng = random.Random(mix(self.seed, self.epoch, self.rank, lane, turn))
            turn, found = turn + 1, False
            for sample in shuffle(self.buffer, initial=self.buffer, rng=rng)(samples):
                found = True
                yield sample
            if not found:
                raise RuntimeError(f"no readable sample in the shards {mine}")

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        worker, lanes = _worker()
        lane = (worker + self.first_batch) % lanes  # a loader takes its first batch from worker 0
        done = len(range(lane, self.first_batch, lanes)) * self.batch_size
        total = len(range(lane, self.batches, lanes)) * self.batch_size
        for place, (image, label, _) in enumerate(self._stream(lane, lanes)):
            if place == total:
                return
            if place >= done:
                with seeded(self.seed, self.epoch, self.rank, lane, place):
                    yield self.transform(image), label


class EvalShards(IterableDataset):
    """Every sample of the shards once over all processes and workers, in order: (image, label, name)."""

    def __init__(
        self, urls: list[str], *, transform: Any, corrupt: CorruptSamples, num_replicas: int, rank: int
    ) -> None:
        self.urls, self.transform, self.corrupt = sorted(urls), transform, corrupt
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self) -> Iterator[tuple[Any, int, str]]:
        worker, lanes = _worker()
        mine = self.urls[self.rank * lanes + worker :: self.num_replicas * lanes]
        for image, label, name in read_shards(mine, self.corrupt):
            yield self.transform(image), label, name


class WebDatasetData(ImageData):
    """WebDataset shards whose samples hold an image (jpg, jpeg, png or webp) and a class number (cls).

    Args:
        train_shards: Training shards, with braces: ``data/train-{000000..000146}.tar``.
        val_shards: Validation shards, likewise.
        num_classes: Number of classes.
        epoch_size: Training samples of an epoch over all processes; every process takes equally many batches.
        test_shards: Test shards; null takes the validation shards.
        buffer: Shuffle buffer of each worker, in samples.
        augment: Augmentation, interpolation, crop and normalisation.
        common: The options of every image data module.
    """

    def __init__(
        self,
        train_shards: str,
        val_shards: str,
        *,
        num_classes: int,
        epoch_size: int,
        test_shards: str | None = None,
        buffer: int = 1000,
        augment: Augment = DEFAULT,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.repeats != 1:
            raise ValueError("WebDatasetData: repeated augmentation needs random access to images; set repeats to 1")
        self.shards = {"train": train_shards, "val": val_shards, "test": test_shards or val_shards}
        self.num_classes, self.epoch_size, self.buffer, self.augment = num_classes, epoch_size, buffer, augment

    def urls(self, split: str) -> list[str]:
        """The shards of a split; all missing local ones are named in one error."""
        from webdataset.shardlists import expand_urls

        urls = expand_urls(self.shards[split])
        if missing := [url for url in urls if "://" not in url and not url.startswith("pipe:") and not Path(url).is_file()]:
            raise FileNotFoundError(f"WebDatasetData: {len(missing)} of {len(urls)} {split} shards are missing: {missing}")
        return urls

    def train_dataset(self) -> Dataset:
        processes, urls = self._processes(), self.urls("train")
        readers = processes["num_replicas"] * max(1, self.num_workers)
        if len(urls) < readers:
            raise ValueError(
                f"WebDatasetData: {len(urls)} training shards for {readers} readers (processes x workers); each needs "
                "at least one: lower num_workers or cut the data into more shards"
            )
        batches = self.epoch_size // (processes["num_replicas"] * self.batch_size)
        if batches < 1:
            raise ValueError(f"WebDatasetData: epoch_size {self.epoch_size} is less than one batch on every process")
        return TrainShards(
            urls,
            batches=batches,
            batch_size=self.batch_size,
            buffer=self.buffer,
            transform=self.augment.train(self.train_size),
            corrupt=self.corrupt,
            seed=self.seed,
            **processes,
        )

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        transform = self.augment.evaluate(size)
        return EvalShards(self.urls(split), transform=transform, corrupt=self.corrupt, **self._processes())

    def predict_dataset(self) -> Dataset:
        return self.eval_dataset("test", self.train_size)
