"""Boxes around a drawn rig of four cameras, for 3-D detection."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.data.base import ImageData, Size
from train.data.glyphs import ENDLESS
from train.data.images import Named
from train.data.sampling import Key
from vispe.data.rig_scenes import RigScenes


class Rig(NamedTuple):
    """What a detection task gets.

    Attributes:
        images: (B, 4, 3, H, W) in [0, 1].
        depth: (B, 4, H, W) metres, exact.
        object: (B, 4, H, W) int64, class of the box that is seen, -1 elsewhere.
        world_to_camera: (B, 4, 4, 4) from the rig's axes.
        intrinsics: (B, 4, 3, 3) in pixels.
        boxes: (B, classes, 7): centre, sides, yaw.
        present: (B, classes) bool.
    """

    images: Tensor
    depth: Tensor
    object: Tensor
    world_to_camera: Tensor
    intrinsics: Tensor
    boxes: Tensor
    present: Tensor


class RigViews(Dataset):
    """Scenes as `Rig`; a training set is new in every epoch."""

    def __init__(self, scenes: RigScenes, length: int) -> None:
        self.scenes, self.length = scenes, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key | int) -> Rig:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Key | int]) -> list[Rig]:
        numbers = [key.epoch * self.length + key.index if isinstance(key, Key) else key for key in keys]
        scene = self.scenes.batch(numbers)
        return [Rig(*item) for item in zip(*(scene[name].unbind(0) for name in Rig._fields))]


class RigData(ImageData):
    """Coloured boxes on a plane around four cameras (``vispe.data.RigScenes``), whose poses and lenses vary.

    Args:
        presence: Probability of each class.
        reach: Least and greatest distance of a box in metres.
        train_length: Scenes of an epoch; they are new ones in every epoch.
        val_length: Validation scenes, the same in every run.
        test_length: Test scenes, the same in every run.
        common: The options of every image data module, but eval_sizes and repeats.
    """

    num_classes = len(RigScenes.classes)

    def __init__(
        self,
        *,
        presence: float = 0.75,
        reach: tuple[float, float] = (2.5, 9.0),
        train_length: int = 4_800,
        val_length: int = 96,
        test_length: int = 256,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.repeats != 1 or self.eval_sizes:
            raise ValueError("RigData: every scene is a new one of one size; leave repeats at 1 and eval_sizes empty")
        self.options = {"presence": presence, "reach": tuple(reach)}
        self.train_length, self.lengths = train_length, {"val": val_length, "test": test_length}

    def setup(self, stage: str) -> None:
        """Take the size over from the model."""
        if self.img_size is None:
            self.img_size = tuple(self.trainer.lightning_module.img_size)

    def train_dataset(self) -> Dataset:
        scenes = RigScenes("train", size=self.train_size, length=ENDLESS, seed=self.seed, **self.options)
        return RigViews(scenes, self.train_length)

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        length = self.lengths[split]
        return RigViews(RigScenes(split, size=tuple(size), length=length, **self.options), length)

    def val_dataloader(self) -> DataLoader:
        return self._eval_loader(self.eval_dataset("val", self.train_size))

    def test_dataloader(self) -> DataLoader:
        return self._eval_loader(self.eval_dataset("test", self.train_size))

    def predict_dataset(self) -> Dataset:
        return Named(self.eval_dataset("test", self.train_size))


def as_maps(depth: Tensor, noise: float, generator: torch.Generator | None = None) -> Tensor:
    """Depth times exp(noise · N(0, 1)), independent in every cell."""
    if not noise:
        return depth
    drawn = torch.randn(depth.shape, generator=generator, device="cpu").to(depth)
    return depth * torch.exp(noise * drawn)
