"""Pairs of an image and a caption: what their data modules share, and files on a disk."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from train.data.augment import Augment
from train.data.base import ImageData, Size, as_size
from train.data.corrupt import open_image
from train.data.images import Images
from train.data.sampling import Key

CLIP = Augment(
    hflip=0.0, scale=(0.9, 1.0), crop_pct=1.0,
    mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711),
)  # fmt: skip


class Pair(NamedTuple):
    """An image (3, H, W), token ids (context,) of its caption and of the swapped one ((0,) without), and the caption's label:
    pairs of one label are right for each other. Collated, each has a batch dimension ahead."""

    image: Tensor
    ids: Tensor
    swapped: Tensor
    label: int


class Tokenised(Dataset):
    """Token ids instead of captions; a caption that does not fit is an error that names the item, nothing is cut off.

    Args:
        captioned: Items ``(image, caption, swapped caption or "", label)``, or None for an unreadable one.
        context_length: Most tokens.
        what: What to call the data in messages.
        mean: Of the pixels.
        std: Of the pixels.
    """

    def __init__(self, captioned: Dataset, context_length: int, what: str, *, mean: float = 0.0, std: float = 1.0) -> None:
        self.captioned, self.context_length, self.what = captioned, context_length, what
        self.mean, self.std = mean, std

    def __len__(self) -> int:
        return len(self.captioned)

    def __getitem__(self, key: Key | int) -> Pair | None:
        from vispe.models.clip_text import tokenize

        item = self.captioned[key]
        if item is None:
            return None
        image, caption, swapped, label = item
        try:
            ids = tokenize([caption, swapped] if swapped else [caption], self.context_length)
        except ValueError as error:
            raise ValueError(f"{self.what}, item {key.index if isinstance(key, Key) else key}: {error}") from error
        return Pair((image - self.mean) / self.std, ids[0], ids[1] if swapped else ids[0, :0], label)


class ImageTextData(ImageData):
    """Base of the data modules of images and captions, whose context is the model's."""

    def setup(self, stage: str) -> None:
        """Take the image size over from the model, and check that both speak of the same channels."""
        model = self.trainer.lightning_module
        if not hasattr(model, "context"):
            raise ValueError(f"{type(self).__name__}: {type(model).__name__} has no text tower; use ContrastiveClip")
        if self.img_size is None:
            self.img_size = as_size(model.img_size)
        if self.channels != model.in_chans:
            raise ValueError(f"{type(self).__name__} has {self.channels} channels, the image tower {model.in_chans}")

    @property
    def context(self) -> int:
        """Most tokens of a caption."""
        return self.trainer.lightning_module.context

    def predict_dataloader(self) -> DataLoader:
        raise ValueError(f"{type(self).__name__}: there are no classes to predict; `test` gives retrieval and the swap test")


class CaptionedFolder(ImageTextData):
    """Image files with a caption each: ``root/train.tsv`` and ``root/val.tsv`` with lines ``FILE<tab>CAPTION``.

    Files are relative to ``root``. ``test.tsv``, where there is one, else ``val.tsv`` serves for the test.

    Args:
        root: The folder of the lists.
        augment: Augmentation, interpolation, crop and normalisation; by default CLIP's.
        common: The options of every image data module.
    """

    def __init__(self, root: str, *, augment: Augment = CLIP, **common: Any) -> None:
        super().__init__(**common)
        self.root, self.augment = Path(root), augment

    def _pairs(self, split: str, transform: Any) -> Dataset:
        path = self.root / f"{split}.tsv"
        if split == "test" and not path.is_file():
            path = self.root / "val.tsv"
        files = CaptionedFiles(path, transform=transform, corrupt=self.corrupt, seed=self.seed)
        return Tokenised(files, self.context, str(path))

    def train_dataset(self) -> Dataset:
        return self._pairs("train", self.augment.train(self.train_size))

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        return self._pairs(split, self.augment.evaluate(size))


class CaptionedFiles(Images):
    """Items ``(image, caption, "", label)`` of a list of files; equal captions have equal labels.

    Args:
        path: Lines ``FILE<tab>CAPTION``, files relative to the list's folder.
        options: Those of :class:`Images`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"CaptionedFolder: no file {path}; expected lines FILE<tab>CAPTION")
        self.samples = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            name, tab, caption = line.partition("\t")
            if line.strip() and not (tab and name.strip() and caption.strip()):
                raise ValueError(f"{path}, line {number}: expected FILE<tab>CAPTION, got {line[:60]!r}")
            if line.strip():
                self.samples.append((path.parent / name.strip(), caption.strip()))
        labels = {caption: k for k, caption in enumerate(dict.fromkeys(caption for _, caption in self.samples))}
        self.labels = [labels[caption] for _, caption in self.samples]
        if not self.samples:
            raise ValueError(f"CaptionedFolder: {path} holds no pair")
        super().__init__(len(self.samples), **options)

    def read(self, index: int) -> tuple[Any, int]:
        return open_image(self.samples[index][0]), index

    def name(self, index: int) -> str:
        return str(self.samples[index][0])

    def __getitem__(self, key: Key | int) -> tuple[torch.Tensor, str, str, int] | None:
        sample = super().__getitem__(key)
        if sample is None:
            return None
        image, index = sample
        return image, self.samples[index][1], "", self.labels[index]
