"""Latents of pictures that an autoencoder gave beforehand, so that training does not run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from train.data.base import ImageData, Size
from train.data.latent_files import LatentFiles, open_latents
from train.data.sampling import Key
from train.seeds import mix


class Latents(Dataset):
    """Some of the latents of a folder, (latent − shift) · scale.

    A picture is mirrored (where its mirror was encoded) and a posterior drawn by generators that depend on the seed and the
    place in training alone; evaluation mirrors nothing and takes means.

    Args:
        files: All latents.
        indices: Which of them.
        data: The module, with scale, shift, form, flip and seed.
    """

    def __init__(self, files: LatentFiles, indices: range | list[int], data: LatentFolder) -> None:
        self.files, self.indices, self.data = files, indices, data

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> tuple[Tensor, int]:
        drawn = isinstance(key, Key)
        index = self.indices[key.index if drawn else key]
        generator = torch.Generator().manual_seed(mix(self.data.seed, key.epoch, key.place)) if drawn else None
        flip = drawn and self.data.flip and bool(torch.rand((), generator=generator) < 0.5)
        latent, label = self.files.read(index, flip=flip)
        if not 0 <= label < self.data.num_classes:
            most = self.data.num_classes - 1
            raise ValueError(f"{self.files.name(index)}: label {label}, expected 0..{most}; set data.num_classes")
        if self.data.form == "moments":
            mean, std = latent.chunk(2)
            latent = mean if generator is None else mean + std * torch.randn(mean.shape, generator=generator)
        if not latent.isfinite().all():
            raise ValueError(f"{self.files.name(index)}: not finite; extract it again, in float32")
        return (latent - self.data.shift) * self.data.scale, label


class LatentFolder(ImageData):
    """Pre-extracted latents: shards, arrays or single files, see ``train.data.latent_files``; sizes are latent cells.

    ``root`` holds ``train/`` and ``val/``, or the files themselves; then every n-th latent is held out of training.

    Args:
        root: The folder.
        num_classes: Number of classes.
        scale: Factor of the latents, one number or one a channel; 0.18215 for raw latents of SD's autoencoder, 1 for fast-DiT's
            files, which are scaled already.
        shift: Taken off beforehand, one number or one a channel (LightningDiT: the channel means, and 1 / deviation as scale).
        form: ``latent``, or ``moments``: mean and deviation in twice the channels, drawn anew in every epoch.
        flip: Take the mirrored encoding for half of the samples where the files have one.
        val_length: Latents held out if there is no ``val/``.
        common: The options of every image data module; eval_sizes has no meaning, as latents have one size.
    """

    latent = True

    def __init__(
        self,
        root: str,
        *,
        num_classes: int = 1000,
        scale: float | list[float] = 1.0,
        shift: float | list[float] = 0.0,
        form: Literal["latent", "moments"] = "latent",
        flip: bool = True,
        val_length: int = 1000,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.eval_sizes or self.repeats != 1:
            raise ValueError("LatentFolder: latents have one size and no augmentation; leave eval_sizes and repeats")
        self.root, self.num_classes, self.form, self.flip, self.val_length = Path(root), num_classes, form, flip, val_length
        self.scale, self.shift = (self._per_channel(name, value) for name, value in (("scale", scale), ("shift", shift)))
        self._parts: dict[str, Dataset] = {}

    @staticmethod
    def _per_channel(name: str, value: float | list[float]) -> Tensor:
        found = torch.as_tensor(value, dtype=torch.float32)
        if found.ndim > 1 or (name == "scale" and (found == 0).any()):
            raise ValueError(f"LatentFolder: {name} is one number or one a channel (a scale is not 0), got {value}")
        return found if found.ndim == 0 else found.view(-1, 1, 1)

    def setup(self, stage: str) -> None:
        """Open the files, and check that they and the model speak of the same latents and classes."""
        model = self.trainer.lightning_module
        self.img_size = tuple(model.img_size) if self.img_size is None else self.img_size
        if model.num_classes not in (0, self.num_classes):
            raise ValueError(
                f"LatentFolder has {self.num_classes} classes, the model {model.num_classes}; set --data.num_classes or "
                f"--model.model_kwargs.num_classes"
            )
        self._open()
        expected = (model.in_chans * (2 if self.form == "moments" else 1), *self.img_size)
        found = self._parts["train"].files.shape
        if found != expected:
            raise ValueError(
                f"LatentFolder: {self.root} holds latents of {found} (channels, rows, columns), the model takes {expected} "
                f"(form {self.form!r}); set --model.model_kwargs.input_size and in_channels, or --data.form"
            )

    def _open(self) -> None:
        if self._parts:
            return
        if (self.root / "train").is_dir():
            train = open_latents(self.root / "train")
            val = open_latents(self.root / "val") if (self.root / "val").is_dir() else None
            if val is not None and val.shape != train.shape:
                raise ValueError(f"LatentFolder: latents of {train.shape} in train/ and of {val.shape} in val/")
        else:
            train, val = open_latents(self.root), None
        if val is not None:
            held, rest = range(len(val)), range(len(train))
        else:
            if not 1 <= self.val_length < len(train):
                raise ValueError(
                    f"LatentFolder: val_length must lie in 1..{len(train) - 1} for {len(train)} latents, got {self.val_length}"
                )
            held = [i * len(train) // self.val_length for i in range(self.val_length)]
            rest = sorted(set(range(len(train))) - set(held))
        self._parts = {"train": Latents(train, rest, self), "val": Latents(train if val is None else val, held, self)}

    def train_dataset(self) -> Dataset:
        self._open()
        return self._parts["train"]

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        self._open()
        return self._parts["val"]
