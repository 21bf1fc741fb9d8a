"""The embedded Glyph-47 set: 47 characters in open-licence typefaces, drawn on the fly at any size."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import Dataset

from train.data.base import ImageData, Size
from train.data.sampling import Key
from train.data.stored import Stored
from vispe.data.glyphs import GlyphDataset

MEAN, STD = 0.245, 0.255  # of the pixels of the plain variant; raw [0, 1] pixels make short trainings markedly slower
ENDLESS = 2**62  # a GlyphDataset computes its samples, so its length costs nothing


class Standardised(Dataset):
    """Glyphs with pixels of about zero mean and unit deviation.

    Args:
        glyphs: A :class:`GlyphDataset` or what is stored of one, pixels in [0, 1].
    """

    def __init__(self, glyphs: Dataset) -> None:
        self.glyphs = glyphs

    def __len__(self) -> int:
        return len(self.glyphs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = self.glyphs[index]
        return (image - MEAN) / STD, label


class FreshGlyphs(Dataset):
    """Training glyphs that are new in every epoch: epoch e draws the samples e * length onwards.

    Args:
        length: Samples of an epoch.
        glyphs: An endless data set.
    """

    def __init__(self, length: int, glyphs: Dataset) -> None:
        self.length, self.glyphs = length, glyphs

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key | int) -> tuple[torch.Tensor, int]:
        return self.glyphs[key.epoch * self.length + key.index if isinstance(key, Key) else key]


class Glyphs(ImageData):
    """Glyph-47, embedded in vispe: no download. Whole font families are apart in train, val and test.

    Args:
        variant: ``plain``; ``jitter`` (any place and size); ``photo`` (photographs behind, colour; needs long training);
            ``neighbours`` (letters beside the one to read).
        channels: 1 gray, 3 colour.
        train_length: Samples of an epoch; they are new ones in every epoch.
        val_length: Validation samples, the same in every run.
        test_length: Test samples, the same in every run; meant for final tables.
        zoom: Least and greatest random zoom in training, null for none.
        eval_canvas: Evaluate the further sizes with the picture of training size pasted into a larger field, instead of
            drawn larger.
        pictures: Folder that keeps training pictures once they are drawn, for further runs of the same seed and options
            (65 MB for 64,000 gray ones of 32 px); null keeps none.
        common: The options of every image data module.
    """

    num_classes = 47

    def __init__(
        self,
        *,
        variant: Literal["plain", "jitter", "photo", "neighbours"] = "plain",
        channels: Literal[1, 3] = 1,
        train_length: int = 64_000,
        val_length: int = 2_000,
        test_length: int = 3_000,
        zoom: tuple[float, float] | None = None,
        eval_canvas: bool = False,
        pictures: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.repeats != 1:
            raise ValueError("Glyphs: every sample is a new one, so repeats has no meaning; set it to 1")
        self.channels, self.eval_canvas, self.pictures = channels, eval_canvas, pictures
        self.train_length, self.lengths = train_length, {"val": val_length, "test": test_length}
        self.train_options = {"seed": self.seed, "zoom": zoom, "variant": variant, "channels": channels}
        self.eval_options = {"variant": variant, "channels": channels}

    def train_dataset(self) -> Dataset:
        glyphs = GlyphDataset("train", size=self.train_size, length=ENDLESS, **self.train_options)
        drawn = glyphs if self.pictures is None else Stored(glyphs, Path(self.pictures))
        return FreshGlyphs(self.train_length, Standardised(drawn))

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        options = self.eval_options | {"length": self.lengths[split], "size": size}
        if self.eval_canvas and size != self.train_size:
            options |= {"size": self.train_size, "canvas": size}
        return Standardised(GlyphDataset(split, **options))
