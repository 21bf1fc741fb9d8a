"""Training and evaluation transforms from timm."""

from dataclasses import dataclass
from typing import Any, Literal

from timm.data import create_transform
from torchvision.transforms import InterpolationMode, RandomCrop, Resize

Interpolation = Literal["bicubic", "bilinear", "random"]


@dataclass(frozen=True)
class Augment:
    """Augmentation, interpolation, crop and normalisation, made by ``timm.data.create_transform``.

    Args:
        auto_augment: timm's policy string: ``rand-m9-mstd0.5-inc1`` (RandAugment), ``3a`` (three-augment), null.
        color_jitter: Strength of brightness, contrast and saturation jitter; with RandAugment timm leaves it out.
        hflip: Probability of a horizontal flip.
        random_erasing: Probability of random erasing (pixel mode).
        scale: Least and greatest share of the image area in the random resized crop.
        ratio: Least and greatest aspect ratio of the random resized crop.
        train_crop: ``rrc`` random resized crop; ``src`` shorter edge to 1.1 times the size, then a random crop;
            ``none`` no augmentation at all.
        interpolation: Resampling filter in training.
        crop_pct: Evaluation: share of the resized image that the centre crop keeps.
        mean: Channel means of the normalisation.
        std: Channel deviations of the normalisation.
    """

    auto_augment: str | None = None
    color_jitter: float = 0.0
    hflip: float = 0.5
    random_erasing: float = 0.0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    train_crop: Literal["rrc", "src", "none"] = "rrc"
    interpolation: Interpolation = "bicubic"
    crop_pct: float = 0.875
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def train(self, size: tuple[int, int]) -> Any:
        """Augmenting transform of a PIL image to (3, H, W)."""
        transform = create_transform(
            (3, *size),
            is_training=True,
            no_aug=self.train_crop == "none",
            auto_augment=self.auto_augment,
            color_jitter=self.color_jitter or None,
            hflip=self.hflip,
            re_prob=self.random_erasing,
            re_mode="pixel",
            scale=self.scale,
            ratio=self.ratio,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
        )
        if self.train_crop == "src":  # timm offers no such crop: take the place of its random resized crop
            edge = round(1.1 * max(size))
            transform.transforms[:1] = [Resize(edge, InterpolationMode.BICUBIC), RandomCrop(size)]
        return transform

    def evaluate(self, size: tuple[int, int]) -> Any:
        """Resize and centre crop of a PIL image to (3, H, W)."""
        return create_transform(
            (3, *size), interpolation="bicubic", crop_pct=self.crop_pct, mean=self.mean, std=self.std
        )


DEFAULT = Augment()
