"""Fashion-MNIST from files on the disk."""

from typing import Any

from torch.utils.data import Dataset
from torchvision.transforms import Compose, InterpolationMode, RandomAffine, RandomHorizontalFlip, Resize, ToTensor

from train.data.base import ImageData, Size
from train.data.images import Images
from vispe.data.fashion import fashion_mnist

HELD_OUT = 12  # the last twelfth (5,000) of the training pictures validates; the official test set stays a test set


class FashionImages(Images):
    """Pictures first ... first + length - 1 of a torchvision data set.

    Args:
        pictures: The data set of (PIL image, label).
        first: Index of the first picture.
        length: Number of pictures.
        options: Those of :class:`Images`.
    """

    def __init__(self, pictures: Dataset, first: int, length: int, **options: Any) -> None:
        super().__init__(length, **options)
        self.pictures, self.first = pictures, first

    def read(self, index: int) -> tuple[Any, int]:
        return self.pictures[self.first + index]


class FashionMNIST(ImageData):
    """Fashion-MNIST (10 classes, gray), resized from its 28 px; never downloaded.

    Args:
        root: Folder of the four idx files (gzipped or not), or torchvision's root.
        zoom: Least and greatest random zoom in training, null for none.
        hflip: Probability of a horizontal flip in training.
        common: The options of every image data module.
    """

    num_classes, channels = 10, 1

    def __init__(
        self, root: str, *, zoom: tuple[float, float] | None = None, hflip: float = 0.0, **common: Any
    ) -> None:
        super().__init__(**common)
        self.root, self.zoom, self.hflip = root, zoom, hflip

    def _resize(self, size: Size) -> list[Any]:
        return [Resize(size, InterpolationMode.BICUBIC), ToTensor()]

    def train_dataset(self) -> Dataset:
        steps = [RandomHorizontalFlip(self.hflip)] if self.hflip else []
        if self.zoom is not None:
            steps.append(RandomAffine(0, scale=self.zoom, interpolation=InterpolationMode.BILINEAR))
        pictures = fashion_mnist(self.root, train=True)
        transform = Compose([*self._resize(self.train_size)[:1], *steps, ToTensor()])
        length = len(pictures) - len(pictures) // HELD_OUT
        return FashionImages(pictures, 0, length, transform=transform, corrupt=self.corrupt, seed=self.seed)

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        pictures = fashion_mnist(self.root, train=split == "val")
        first = len(pictures) - len(pictures) // HELD_OUT if split == "val" else 0
        transform = Compose(self._resize(size))
        return FashionImages(pictures, first, len(pictures) - first, transform=transform, corrupt=self.corrupt)
