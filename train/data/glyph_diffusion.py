"""Glyph-47 as diffusion models take it: pixels in [-1, 1]."""

from typing import Any, Literal

import torch
from torch.utils.data import Dataset

from train.data.base import Size
from train.data.glyphs import ENDLESS, FreshGlyphs, Glyphs
from vispe.data.glyphs import GlyphDataset


class Signed(Dataset):
    """Pixels from [0, 1] to [-1, 1]."""

    def __init__(self, images: Dataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = self.images[index]
        return 2 * image - 1, label


class GlyphDiffusion(Glyphs):
    """Glyph-47 with pixels in [-1, 1]; no download. Whole font families are apart in train, val and test.

    Args:
        variant: ``plain``; ``jitter`` (any place and size); ``photo``; ``neighbours``.
        channels: 1 gray, 3 colour.
        train_length: Samples of an epoch; they are new ones in every epoch.
        val_length: Validation samples, the same in every run; they give the loss.
        test_length: Test samples, the same in every run.
        common: The options of every image data module.
    """

    latent = False

    def __init__(
        self,
        *,
        variant: Literal["plain", "jitter", "photo", "neighbours"] = "plain",
        channels: Literal[1, 3] = 1,
        train_length: int = 64_000,
        val_length: int = 470,
        test_length: int = 940,
        **common: Any,
    ) -> None:
        super().__init__(
            variant=variant, channels=channels, train_length=train_length, val_length=val_length, test_length=test_length,
            **common,
        )  # fmt: skip

    def setup(self, stage: str) -> None:
        """Take the size over from the model, and check that both speak of the same channels and classes."""
        model = self.trainer.lightning_module
        if self.img_size is None:
            self.img_size = tuple(model.img_size)
        if model.in_chans != self.channels or model.num_classes not in (0, self.num_classes):
            raise ValueError(
                f"GlyphDiffusion has {self.channels} channels and {self.num_classes} classes, the model {model.model!r} takes "
                f"{model.in_chans} and {model.num_classes}; set --model.model_kwargs.in_channels {self.channels} and "
                f"--model.model_kwargs.num_classes {self.num_classes} (0 for an unconditional model)"
            )

    def train_dataset(self) -> Dataset:
        glyphs = GlyphDataset("train", size=self.train_size, length=ENDLESS, **self.train_options)
        return FreshGlyphs(self.train_length, Signed(glyphs))

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        return Signed(GlyphDataset(split, size=size, length=self.lengths[split], **self.eval_options))
