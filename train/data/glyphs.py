"""The embedded Glyph-47 set: 47 characters in open-licence typefaces, drawn on the fly at any size."""

from typing import Any, Literal

import torch
from torch.utils.data import Dataset

from train.data.base import ImageData, Size
from train.data.sampling import Key
from vispe.data.glyphs import GlyphDataset


class FreshGlyphs(Dataset):
    """Training glyphs that are new in every epoch: epoch e draws the samples e * length onwards.

    Args:
        length: Samples of an epoch.
        glyphs: A :class:`GlyphDataset` of at least as many samples as will be drawn.
    """

    def __init__(self, length: int, glyphs: GlyphDataset) -> None:
        self.length, self.glyphs = length, glyphs

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Key) -> tuple[torch.Tensor, int]:
        return self.glyphs[key.epoch * self.length + key.index]


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
        test_length: int = 4_000,
        zoom: tuple[float, float] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.variant, self.channels, self.zoom = variant, channels, zoom
        self.lengths = {"train": train_length, "val": val_length, "test": test_length}
        if self.repeats != 1:
            raise ValueError("Glyphs: every sample is drawn anew, so repeated augmentation has no meaning; set repeats to 1")

    def train_dataset(self) -> Dataset:
        epochs = 1 if self.trainer is None else max(1, self.trainer.max_epochs or 1)
        glyphs = GlyphDataset(
            "train",
            size=self.train_size,
            length=self.lengths["train"] * epochs,
            seed=self.seed,
            variant=self.variant,
            zoom=self.zoom,
            channels=self.channels,
        )
        return FreshGlyphs(self.lengths["train"], glyphs)

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        return GlyphDataset(
            split, size=size, length=self.lengths[split], variant=self.variant, channels=self.channels
        )
