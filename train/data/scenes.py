"""Views of vispe's drawn scenes for view synthesis, in the frame of training and in others."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.data.base import ImageData, Size
from train.data.glyphs import ENDLESS
from train.data.images import Named
from train.data.sampling import Key
from vispe.data.procedural import apart
from vispe.data.scenes import Scenes

CHANGES = ("frame", "focal_spread", "roll", "distance", "inputs", "size")


class Views(NamedTuple):
    """What a view synthesis task gets.

    Attributes:
        images: (B, Vin, 3, H, W) in [0, 1].
        targets: (B, Vout, 3, H, W).
        world_to_camera: (B, Vin + Vout, 4, 4), input views first.
        intrinsics: (B, Vin + Vout, 3, 3) in pixels.
    """

    images: Tensor
    targets: Tensor
    world_to_camera: Tensor
    intrinsics: Tensor


class SceneViews(Dataset):
    """Scenes as `Views`; a training set is new in every epoch.

    Args:
        scenes: Their first cameras take the input views.
        inputs: How many.
        length: Scenes of an epoch.
    """

    def __init__(self, scenes: Scenes, inputs: int, length: int) -> None:
        self.scenes, self.inputs, self.length = scenes, inputs, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key | int) -> Views:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Key | int]) -> list[Views]:
        numbers = [key.epoch * self.length + key.index if isinstance(key, Key) else key for key in keys]
        scene = self.scenes.batch(numbers)
        images = scene["images"]
        found = {"images": images[:, : self.inputs], "targets": images[:, self.inputs :]}
        found |= {name: scene[name] for name in ("world_to_camera", "intrinsics")}
        return [Views(**item) for item in apart(found)]


class NvsScenes(ImageData):
    """Spheres and boxes seen from all around (``vispe.data.Scenes``): some views are given, others are to be rendered.

    Args:
        inputs: Given views of a scene.
        targets: Views to render; the same cameras whatever the number of given ones in evaluation.
        frame: What poses count from: ``canonical`` (the first given camera), ``random``, ``far`` or ``world``.
        focal_spread: Focal lengths vary by exp(U(-a, a)); 0 is one for all.
        roll: Cameras turn about their axis by up to this angle in radians.
        distance: Least and greatest distance of cameras.
        spheres: Spheres in a scene.
        boxes: Boxes in a scene.
        conditions: Further evaluations on the same scenes, {name: changes}, reported as ``val/psnr@name``. Changes are any of
            frame, focal_spread, roll, distance, inputs (more or fewer given views) and size ([height, width]).
        train_length: Scenes of an epoch; they are new ones in every epoch.
        val_length: Validation scenes, the same in every run.
        test_length: Test scenes, the same in every run.
        common: The options of every image data module; ``conditions`` stands in the place of ``eval_sizes``.
    """

    def __init__(
        self,
        *,
        inputs: int = 2,
        targets: int = 1,
        frame: Literal["canonical", "random", "far", "world"] = "canonical",
        focal_spread: float = 0.0,
        roll: float = 0.0,
        distance: tuple[float, float] = (2.6, 3.4),
        spheres: int = 3,
        boxes: int = 0,
        conditions: dict[str, dict[str, Any]] | None = None,
        train_length: int = 9_600,
        val_length: int = 96,
        test_length: int = 256,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.repeats != 1:
            raise ValueError("NvsScenes: every scene is a new one, so repeats has no meaning; set it to 1")
        if self.eval_sizes:
            raise ValueError("NvsScenes: other sizes are conditions, {name: {size: [height, width]}}, no eval_sizes")
        if inputs < 1 or targets < 1:
            raise ValueError(f"NvsScenes: needs at least 1 given view and 1 target, got {inputs} and {targets}")
        self.inputs, self.targets = inputs, targets
        self.options = {
            "frame": frame, "focal_spread": focal_spread, "roll": roll, "distance": tuple(distance), "spheres": spheres,
            "boxes": boxes,
        }  # fmt: skip
        self.conditions: dict[str, dict[str, Any]] = {"": {}, **(conditions or {})}
        for name, changes in self.conditions.items():
            if unknown := set(changes) - set(CHANGES):
                raise ValueError(f"NvsScenes: condition {name!r} changes {sorted(unknown)}; it can change {CHANGES}")
        self.train_length, self.lengths = train_length, {"val": val_length, "test": test_length}

    def setup(self, stage: str) -> None:
        """Take the size over from the model."""
        if self.img_size is None:
            size = self.trainer.lightning_module.img_size
            self.img_size = (size, size) if isinstance(size, int) else tuple(size)

    def cameras(self, inputs: int) -> list[int]:
        """Which cameras of a scene are given and which are asked for: the targets are those of training."""
        first = list(range(self.inputs))
        more = range(self.inputs + self.targets, inputs + self.targets)
        return [*first[:inputs], *more, *range(self.inputs, self.inputs + self.targets)]

    def train_dataset(self) -> Dataset:
        views = self.cameras(self.inputs)
        scenes = Scenes("train", size=self.train_size, views=views, length=ENDLESS, seed=self.seed, **self.options)
        return SceneViews(scenes, self.inputs, self.train_length)

    def eval_dataset(self, split: str, size: Size, **changes: Any) -> Dataset:
        inputs = changes.pop("inputs", self.inputs)
        options = self.options | changes | {"length": self.lengths[split]}
        return SceneViews(Scenes(split, size=tuple(size), views=self.cameras(inputs), **options), inputs, self.lengths[split])

    def _loaders(self, split: str) -> list[DataLoader]:
        return [
            self._eval_loader(self.eval_dataset(split, **{"size": self.train_size} | changes))
            for changes in self.conditions.values()
        ]

    def val_dataloader(self) -> list[DataLoader]:
        return self._loaders("val")

    def test_dataloader(self) -> list[DataLoader]:
        return self._loaders("test")

    def predict_dataset(self) -> Dataset:
        return Named(self.eval_dataset("test", self.train_size))


def to_uint8(image: Tensor) -> Tensor:
    """(3, H, W) in [0, 1] to (H, W, 3) uint8."""
    return (image.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
