"""What all image data modules share: sizes, loaders, and agreement with the model."""

from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, IterableDataset

from train.data.corrupt import CorruptSamples, Policy, collate, set_one_thread
from train.data.images import Named
from train.data.sampling import EpochSampler, EvalSampler, ResumableLoader
from train.seeds import run_seed

Size = tuple[int, int]  # height, width


def as_size(value: int | Size) -> Size:
    """(H, W) of an edge length or a pair."""
    size = (value, value) if isinstance(value, int) else tuple(value)
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"an image size is one edge length or [height, width], got {value!r}")
    return size


class ImageData(LightningDataModule):
    """Base of the image data modules; a subclass gives the data sets.

    Args:
        img_size: Training size, an edge length or [height, width]; null takes the model's ``img_size``.
        eval_sizes: Further sizes, [height, width] each, at which every validation and test run evaluates.
        batch_size: Training images a step in each process.
        eval_batch_size: Evaluation images a step in each process; null means twice ``batch_size``.
        num_workers: Loader processes for each training process; 0 loads in the training process.
        seed: Seed of order and augmentation; null takes the run's ``seed_everything``.
        repeats: Copies of each image in a (shorter) epoch: repeated augmentation. 1 is off, DeiT uses 3.
        on_corrupt: ``raise`` stops at an unreadable sample and names it; ``skip`` names it, counts it and goes on (in
            training the next readable one takes its place, in evaluation it counts for nothing).
        max_corrupt: With ``skip``, stop after this many unreadable samples.
    """

    num_classes: int
    channels: int = 3

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] | None = None,
        eval_sizes: list[tuple[int, int]] | None = None,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        seed: int | None = None,
        repeats: int = 1,
        on_corrupt: Policy = "raise",
        max_corrupt: int = 100,
    ) -> None:
        super().__init__()
        if batch_size < 1 or repeats < 1:
            raise ValueError(f"batch_size and repeats must be at least 1, got {batch_size} and {repeats}")
        self.img_size = None if img_size is None else as_size(img_size)
        self.eval_sizes = [as_size(size) for size in eval_sizes or []]
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size or 2 * batch_size
        self.num_workers, self.repeats = num_workers, repeats
        self.seed = run_seed() if seed is None else seed
        self.corrupt = CorruptSamples(on_corrupt, max_corrupt)

    # what a subclass gives

    def train_dataset(self) -> Dataset:
        """Map-style over :class:`train.data.sampling.Key`, or iterable with ``set_position``."""
        raise TypeError(f"{type(self).__name__} has no training data")

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        """The fixed ``val`` or ``test`` samples at a size: (image, label)."""
        raise TypeError(f"{type(self).__name__} has no {split} data")

    def predict_dataset(self) -> Dataset:
        """(image, label or -1, name); the test samples by default."""
        return Named(self.eval_dataset("test", self.train_size))

    # shared

    @property
    def train_size(self) -> Size:
        """The training size, after the model's has been taken over."""
        if self.img_size is None:
            raise ValueError(f"{type(self).__name__} has no img_size and no model to take it from; set data.img_size")
        return self.img_size

    def sizes(self) -> list[Size]:
        """Evaluation sizes, the training size first."""
        return list(dict.fromkeys([self.train_size, *self.eval_sizes]))

    def setup(self, stage: str) -> None:
        """Take the size over from the model, and check that both speak of the same classes and channels."""
        model = self.trainer.lightning_module
        if self.img_size is None:
            self.img_size = as_size(model.img_size)
        for what, key in (("num_classes", "num_classes"), ("channels", "in_chans")):
            ours, its = getattr(self, what), getattr(model, key)
            if ours != its:
                raise ValueError(
                    f"{type(self).__name__} has {what} {ours}, the model {model.model!r} {its}; "
                    f"set --model.model_kwargs.{key} {ours}"
                )

    def _processes(self) -> dict[str, int]:
        if self.trainer is None:
            return {"num_replicas": 1, "rank": 0}
        return {"num_replicas": self.trainer.world_size, "rank": self.trainer.global_rank}

    def _loader_options(self) -> dict[str, Any]:
        return {
            "num_workers": self.num_workers,
            "collate_fn": collate,
            "worker_init_fn": set_one_thread,
            "pin_memory": self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        }

    def train_dataloader(self) -> DataLoader:
        dataset = self.train_dataset()
        sampler = None
        if not isinstance(dataset, IterableDataset):
            sampler = EpochSampler(dataset, **self._processes(), seed=self.seed, repeats=self.repeats)
            if len(sampler) < self.batch_size:
                raise ValueError(
                    f"{type(self).__name__}: {len(sampler)} training samples a process, fewer than one batch of "
                    f"{self.batch_size}; lower batch_size or the number of devices"
                )
        loader = ResumableLoader(
            dataset, batch_size=self.batch_size, sampler=sampler, drop_last=True, **self._loader_options()
        )
        if self.trainer is not None:
            loop = self.trainer.fit_loop
            loader.position = lambda: (loop.epoch_progress.current.processed, loop.epoch_loop.batch_progress.current.ready)
        return loader

    def _eval_loader(self, dataset: Dataset) -> DataLoader:
        sampler = None if isinstance(dataset, IterableDataset) else EvalSampler(dataset, **self._processes())
        return DataLoader(dataset, batch_size=self.eval_batch_size, sampler=sampler, **self._loader_options())

    def val_dataloader(self) -> list[DataLoader]:
        return [self._eval_loader(self.eval_dataset("val", size)) for size in self.sizes()]

    def test_dataloader(self) -> list[DataLoader]:
        return [self._eval_loader(self.eval_dataset("test", size)) for size in self.sizes()]

    def predict_dataloader(self) -> DataLoader:
        return self._eval_loader(self.predict_dataset())
