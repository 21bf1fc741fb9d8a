"""Images for diagnostics: textures without any place of their own, or a folder of files."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def textures(count: int, size: tuple[int, int], *, channels: int = 3, seed: int = 0) -> Tensor:
    """Noise with a 1/f spectrum, (count, channels, *size) float32, mean 0 and deviation 1.

    It wraps around and looks alike everywhere, so that nothing in it tells where a patch is; what a model knows of places then
    comes from its encoding.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, channels, *size, generator=generator)
    rows, cols = torch.fft.fftfreq(size[0])[:, None], torch.fft.rfftfreq(size[1])[None]
    radius = (rows.square() + cols.square()).sqrt().clamp_min(1 / max(size))
    shaped = torch.fft.irfft2(torch.fft.rfft2(noise) / radius, s=size)
    shaped = shaped - shaped.mean((-2, -1), keepdim=True)
    return shaped / shaped.std((1, 2, 3), keepdim=True)


def load_folder(folder: Path, model: nn.Module, size: tuple[int, int], *, limit: int) -> Tensor:
    """The first `limit` image files below a folder, in the order of their names, as the model's configuration wants them."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder of images {folder}.")
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)[:limit]
    if not files:
        raise ValueError(f"{folder} holds no images ({', '.join(ENDINGS)}).")
    transform = evaluation_transform(model, size)
    return torch.stack([transform(open_image(file, channels_of(model))) for file in files])


def open_image(file: Path | str, channels: int) -> Image.Image:
    """One file, grey for models with one input channel; an unreadable one is named."""
    try:
        with Image.open(file) as image:
            return image.convert("L" if channels == 1 else "RGB")
    except OSError as error:
        raise OSError(f"cannot read the image {file}: {error}") from error


def channels_of(model: nn.Module) -> int:
    """Input channels of an image model: those of its first convolution."""
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return 3 if first is None else first.in_channels


def evaluation_transform(
    model: nn.Module,
    size: tuple[int, int],
    *,
    crop_pct: float | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
):
    """timm's evaluation transform for the model's configuration, at `size` (height, width).

    A model of one channel whose configuration has three values of mean and deviation takes their averages.
    """
    config = resolve_data_config({}, model=model)
    mean, std = mean or config["mean"], std or config["std"]
    channels = channels_of(model)
    if channels == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"images: the model takes {channels} channels, mean and std have {len(mean)} and {len(std)} values.")
    return create_transform(
        (channels, *size), interpolation=config["interpolation"], mean=mean, std=std, crop_pct=crop_pct or config["crop_pct"]
    )
