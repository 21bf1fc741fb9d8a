"""Which samples a process sees, in which order, and from where in the epoch."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from train.seeds import mix


class Key(NamedTuple):
    """What a dataset needs to build one training sample: ``place`` is its position in the epoch over all processes."""

    epoch: int
    place: int
    index: int


class EpochSampler(DistributedSampler):
    """Shuffled keys of one process; the order depends on the seed and the epoch only.

    Args:
        dataset: Map-style dataset.
        num_replicas: Number of processes.
        rank: This process.
        seed: Seed of the order.
        repeats: Copies of each image in an epoch (repeated augmentation, Hoffer et al. 2020). As in DeiT the epoch
            keeps its length, so that it holds 1/repeats of the images. timm's sampler of this kind has no seed and
            cannot start inside an epoch.
    """

    def __init__(self, dataset: Dataset, *, num_replicas: int, rank: int, seed: int, repeats: int = 1) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=True, seed=seed, drop_last=True)
        self.num_samples = len(dataset) // num_replicas
        self.repeats = repeats
        self.skip = 0  # samples of this process that were consumed already

    def set_position(self, epoch: int, skip: int) -> None:
        """The next iteration is that of ``epoch`` without its first ``skip`` samples."""
        self.epoch, self.skip = epoch, skip

    def __iter__(self) -> Iterator[Key]:
        total = len(self.dataset)
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        order = torch.randperm(total, generator=generator)
        order = order.repeat_interleave(self.repeats)[:total].tolist()
        for step in range(self.skip, self.num_samples):
            place = self.rank + step * self.num_replicas
            yield Key(self.epoch, place, order[place])


class EvalSampler(DistributedSampler):
    """Every sample exactly once over all processes, in order: no padding, so processes may differ by one sample."""

    def __init__(self, dataset: Dataset, *, num_replicas: int, rank: int) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)
        self.num_samples = len(range(rank, len(dataset), num_replicas))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, len(self.dataset), self.num_replicas))


class ResumableLoader(DataLoader):
    """A DataLoader that starts each epoch at the batch the training loop is at.

    ``position`` returns (epoch, first batch). It is asked at the first batch and not at ``iter()``, because the trainer
    makes the iterator before it has restored its counters.
    """

    position: Callable[[], tuple[int, int]] | None = None

    def __iter__(self) -> Iterator[Any]:
        epoch, batch = self.position() if self.position else (0, 0)
        target = self.sampler if hasattr(self.sampler, "set_position") else self.dataset
        target.set_position(epoch, batch * self.batch_size)
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save: the trainer's own counters say where the epoch is. Its presence tells it so."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore, see ``state_dict``."""
