"""Image folders in the ImageNet layout."""

from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from train.data.augment import DEFAULT, Augment
from train.data.base import ImageData, Size
from train.data.classes import ClassFolders
from train.data.images import FileImages, Named


class ImageFolderData(ClassFolders, ImageData):
    """Any image folder in the ImageNet layout: ``root/train/CLASS/*.jpg`` and ``root/val/CLASS/*.jpg``.

    Args:
        root: The folder that holds ``train`` and ``val`` (and ``test``, else ``val`` serves for it).
        augment: Augmentation, interpolation, crop and normalisation.
        predict_dir: A folder of images, at any depth and without labels, for ``predict``; null predicts the test split.
        common: The options of every image data module.
    """

    item = "IMAGE"

    def __init__(
        self, root: str, *, augment: Augment = DEFAULT, predict_dir: str | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        self.root, self.augment, self.predict_dir = Path(root), augment, predict_dir

    def _images(self, split: str, transform: Any) -> FileImages:
        folder = ImageFolder(str(self.split_dir(split)))  # names an empty class folder by itself
        labels = {name: label for label, name in enumerate(self.classes)}
        if unknown := sorted(set(folder.classes) - set(labels)):
            raise ValueError(f"ImageFolderData: classes {unknown} of {folder.root} are not in {self.root / 'train'}")
        samples = [(path, labels[folder.classes[label]]) for path, label in folder.samples]
        return FileImages(samples, transform=transform, corrupt=self.corrupt, seed=self.seed)

    def train_dataset(self) -> Dataset:
        return self._images("train", self.augment.train(self.train_size))

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        return self._images(split, self.augment.evaluate(size))

    def predict_dataset(self) -> Dataset:
        if self.predict_dir is None:
            return super().predict_dataset()
        paths = sorted(str(p) for p in Path(self.predict_dir).rglob("*") if p.suffix.lower() in IMG_EXTENSIONS)
        if not paths:
            raise FileNotFoundError(f"ImageFolderData: no image in predict_dir {self.predict_dir}")
        transform = self.augment.evaluate(self.train_size)
        return Named(FileImages([(path, -1) for path in paths], transform=transform, corrupt=self.corrupt))
