"""Accuracy against resolution: one model on a folder of images, at many sizes and with every way of extrapolation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from timm.models import VisionTransformer
from timm.models.beit import Beit
from timm.models.eva import Eva
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

from .adapters import swap
from .diagnostics.host import evaluating
from .diagnostics.images import channels_of, evaluation_transform, open_image
from .models.vit import EncodedVisionTransformer

RESIZES = ("extend", "rescale")


@dataclass(frozen=True)
class Point:
    """Of one size and method.

    Attributes:
        size: (height, width) in pixels.
        method: "none" (the model as it is), "extend", "rescale", or a method of `set_extrapolation`.
        images: counted.
        top1, top5, loss: shares in [0, 1] and mean cross-entropy; top5 of at most as many classes as there are.
        low, high: 95 % Wilson interval of top1.
        speed: images a second, of the forward passes.
    """

    size: tuple[int, int]
    method: str
    images: int
    top1: float
    low: float
    high: float
    top5: float
    loss: float
    speed: float


class Pictures(Dataset):
    """Images of a folder with the model's labels, at one size."""

    def __init__(self, samples: Sequence[tuple[str, int]], channels: int, transform: Callable) -> None:
        self.samples, self.channels, self.transform = list(samples), channels, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        path, label = self.samples[i]
        return self.transform(open_image(path, self.channels)), label


def labelled(folder: str | Path, model: nn.Module, *, classes: Sequence[str] | None = None) -> list[tuple[str, int]]:
    """(file, label) of a folder in torchvision's layout, `folder/CLASS/IMAGE`.

    Args:
        classes: names of class folders in the order of the model's outputs; None: the sorted folders are the outputs, of which
            there must then be as many.

    Raises:
        ValueError, OSError: naming the folder, its classes or the model's outputs.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"extrapolate: there is no folder of images {folder}.")
    found = ImageFolder(str(folder))
    outputs = int(getattr(model, "num_classes", 0) or 0)
    if outputs < 1:
        raise ValueError("extrapolate: the model has no classifier (num_classes=0); accuracy needs one.")
    if classes is None:
        if len(found.classes) != outputs:
            raise ValueError(
                f"extrapolate: {folder} holds {len(found.classes)} classes and the model has {outputs} outputs; name the class "
                f"folder of each output, one a line, in a --classes file."
            )
        classes = found.classes
    if len(set(classes)) != len(classes) or len(classes) > outputs:
        raise ValueError(f"extrapolate: {len(classes)} class names ({len(set(classes))} different) for {outputs} outputs.")
    number = {name: i for i, name in enumerate(classes)}
    if unknown := [name for name in found.classes if name not in number]:
        raise ValueError(f"extrapolate: the folders {unknown[:5]} of {folder} are not among the {len(classes)} class names.")
    return [(path, number[found.classes[label]]) for path, label in found.samples]


def any_size(model: nn.Module) -> nn.Module:
    """A model that takes images of every size: ours as it is, a ViT of timm as a copy that resamples its tables like timm
    (`vispe.swap`), any other as it is, since a convolutional one needs nothing."""
    if isinstance(model, EncodedVisionTransformer) or not isinstance(model, VisionTransformer | Eva | Beit):
        return model
    try:
        return swap(model, "none", start="init")
    except ValueError:
        return model  # it may take other sizes by itself (dynamic_img_size); if not, the size that fails is named


def check_method(model: nn.Module, method: str) -> None:
    """Refuse a method that this model cannot follow, before anything is evaluated."""
    if method == "none":
        return
    if not isinstance(model, EncodedVisionTransformer):
        raise ValueError(
            f"extrapolate: {method!r} changes the encoding, and {type(model).__name__} has none that can be reached; "
            f"use 'none', or a ViT of vispe, or of timm where vispe.swap can represent it."
        )
    if method in RESIZES:
        if not any(hasattr(encoding, "resize") for _, encoding in model.encoding.encodings()):
            raise ValueError(
                f"extrapolate: {method!r} needs an encoding with coordinates, and {model.encoding.spec!r} has none; use 'none'."
            )
        return
    with applied(model, method):
        pass


@contextmanager
def applied(model: nn.Module, method: str) -> Iterator[None]:
    """The model following a method, and as it was created afterwards. Extrapolation lets coordinates grow with the grid."""
    if method == "none":
        yield
        return
    try:
        model.set_coords(method if method in RESIZES else "extend")
        if method not in RESIZES:
            model.set_extrapolation(method)
        yield
    finally:
        model.set_extrapolation(None)
        model.set_coords(None)


def check_size(model: nn.Module, size: tuple[int, int]) -> None:
    """Refuse a size that the patches do not divide."""
    if min(size) < 1:
        raise ValueError(f"extrapolate: a size must be at least 1 pixel, got {size}.")
    embed = getattr(model, "patch_embed", None)
    patch = getattr(embed, "patch_size", None)
    if patch is not None and not getattr(embed, "dynamic_img_pad", False):
        patch = to_2tuple(patch)
        if any(n % p for n, p in zip(size, patch)):
            raise ValueError(f"extrapolate: size {by(size)} is no multiple of the patches of {patch[0]} x {patch[1]} pixels.")


def resolution_curves(
    model: nn.Module,
    samples: Sequence[tuple[str, int]],
    sizes: Sequence[tuple[int, int]],
    *,
    methods: Sequence[str] = ("none",),
    batch_size: int = 32,
    workers: int = 0,
    crop_pct: float | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    progress: Callable[[tuple[int, int], int], None] = lambda size, images: None,
) -> Iterator[Point]:
    """Points of every size and method, as they are finished; each image is read once a size.

    Args:
        model: any image classifier of timm; it comes back in the mode and with the settings it had.
        samples: see `labelled`.
        sizes: (height, width) in pixels.
        methods: "none", "extend", "rescale", or methods and presets of `set_extrapolation` ("ntk", "yarn", ...).
        batch_size: images at the smallest of `sizes`; larger ones take fewer, for about as many pixels a batch.
        workers: processes that read images.
        crop_pct, mean, std: instead of those of the model's configuration.
        progress: called with a size and how many images of it have been done, after every batch.

    Raises:
        ValueError: an unknown method, one that does not apply to the model, a size that it does not take.
    """
    if not samples or not sizes or not methods or batch_size < 1:
        raise ValueError("extrapolate: needs images, sizes and methods, and a batch size of at least 1.")
    net = any_size(model)
    for method in methods:
        check_method(net, method)
    for size in sizes:
        check_size(net, size)
    transforms = {size: evaluation_transform(model, size, crop_pct=crop_pct, mean=mean, std=std) for size in sizes}
    pixels = batch_size * min(math.prod(size) for size in sizes)

    def measure(size: tuple[int, int]) -> list[Point]:
        pictures = Pictures(samples, channels_of(model), transforms[size])
        loader = DataLoader(pictures, batch_size=max(1, pixels // math.prod(size)), num_workers=workers)
        counts, done = {method: _Count() for method in methods}, 0
        with evaluating(net), torch.inference_mode():
            for images, labels in loader:
                for method, count in counts.items():
                    count.add(*_predict(net, images, method, size), labels)
                done += len(labels)
                progress(size, done)
        return [count.point(size, method) for method, count in counts.items()]

    return (point for size in sizes for point in measure(size))


def _predict(net: nn.Module, images: Tensor, method: str, size: tuple[int, int]) -> tuple[Tensor, float]:
    first = next(net.parameters())
    images = images.to(first.device, first.dtype)
    start = time.perf_counter()
    with applied(net, method):
        try:
            logits = net(images).float().cpu()
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"extrapolate: {type(net).__name__} with {method!r} does not take images of {by(size)}: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
    return logits, time.perf_counter() - start


class _Count:
    def __init__(self) -> None:
        self.images = self.first = self.five = 0
        self.loss = self.seconds = 0.0

    def add(self, logits: Tensor, seconds: float, labels: Tensor) -> None:
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        self.images += len(labels)
        self.first += int(ranked[:, 0].sum())
        self.five += int(ranked.any(1).sum())
        self.loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        self.seconds += seconds

    def point(self, size: tuple[int, int], method: str) -> Point:
        n = self.images
        low, high = wilson(self.first, n)
        return Point(size, method, n, self.first / n, low, high, self.five / n, self.loss / n, n / max(self.seconds, 1e-9))


def wilson(right: int, count: int, *, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share from `right` of `count` (Wilson, JASA 22, 1927)."""
    share = right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def by(size: tuple[int, int]) -> str:
    """192 for a square, 256x320 for height x width."""
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
