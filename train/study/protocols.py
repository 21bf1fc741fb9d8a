"""The pictures of each protocol: drawn at other sizes, pasted into larger fields, moved, or cut."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset, Subset

from train.data.base import ImageData, as_size
from train.data.glyphs import Glyphs, Standardised
from train.data.stored import Stored
from train.seeds import mix
from train.study.config import Protocols, Size, StudyError
from vispe.data.glyphs import GlyphDataset


@dataclass(frozen=True)
class Setting:
    """One test set.

    Attributes:
        protocol: ``resize``, ``canvas``, ``shift`` or ``crop``.
        size: (height, width) in pixels of what the model sees.
        shift: (down, right) in frames.
    """

    protocol: str
    size: Size
    shift: tuple[float, float] = (0.0, 0.0)

    @property
    def option(self) -> str:
        """The text of the results file."""
        return "{:g} {:g}".format(*self.shift) if self.protocol == "shift" else ""


def settings(protocols: Protocols, train_size: Size) -> list[Setting]:
    """Every test set of a study, that of the training size first."""
    sizes = dict.fromkeys([train_size, *map(as_size, protocols.sizes)])
    found = [Setting("resize", size) for size in sizes]
    found += [Setting("canvas", as_size(size)) for size in protocols.canvas]
    found += [Setting("shift", train_size, tuple(shift)) for shift in protocols.shifts]
    return found + [Setting("crop", as_size(size)) for size in protocols.crops]


def check_data(data: ImageData, protocols: Protocols) -> None:
    """Refuse protocols that a data module cannot draw."""
    if not isinstance(data, Glyphs) and (protocols.canvas or protocols.shifts):
        raise StudyError(
            f"protocols.canvas and protocols.shifts draw scenes anew, which {type(data).__name__} cannot; leave them empty"
        )
    for size in map(as_size, [*protocols.canvas, *protocols.crops]):
        inside, outside = (data.train_size, size) if size in map(as_size, protocols.canvas) else (size, data.train_size)
        if inside[0] > outside[0] or inside[1] > outside[1]:
            raise StudyError(
                f"a canvas is at least as large as the training size {data.train_size} and a crop at most; got {size}"
            )


def dataset(data: ImageData, setting: Setting, images: int, folder: Path | None = None) -> Dataset:
    """The test pictures of a setting: (image, label), the same in every cell; drawn ones are kept in the folder."""
    drawn = data.train_size if setting.protocol in ("canvas", "shift", "crop") else setting.size
    if isinstance(data, Glyphs):
        options = data.eval_options | {"size": drawn, "shift": setting.shift, "length": images}
        if setting.protocol == "canvas":
            options["canvas"] = setting.size
        glyphs = GlyphDataset("test", **options)
        found: Dataset = Standardised(glyphs if folder is None else Stored(glyphs, folder))
    else:
        found = data.eval_dataset("test", drawn)
        found = Subset(found, range(min(images, len(found))))
    return Cropped(found, setting.size) if setting.protocol == "crop" else found


class Cropped(Dataset):
    """A window of each picture, at a place that depends on its index alone.

    Args:
        pictures: (image (C, H, W), label) each.
        size: (height, width) of the window.
    """

    def __init__(self, pictures: Dataset, size: Size) -> None:
        self.pictures, self.size = pictures, size

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = self.pictures[index][:2]
        top, left = (
            mix(index, axis) % (whole - part + 1) for axis, (whole, part) in enumerate(zip(image.shape[1:], self.size))
        )
        return image[:, top : top + self.size[0], left : left + self.size[1]], label


def batches(pictures: Dataset, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images (B, C, H, W) and labels (B,), in order."""
    for start in range(0, len(pictures), size):
        found = [pictures[i][:2] for i in range(start, min(start + size, len(pictures)))]
        yield torch.stack([image for image, _ in found]), torch.tensor([label for _, label in found])
