"""Tiny images, shards and command lines for the tests of the training application."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from train.cli import VispeCLI, main

CLASSES = 3
NET = {"num_classes": CLASSES, "img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}


def picture(label: int, number: int, size: int = 20) -> Image.Image:
    """A noisy image whose mean colour tells its class."""
    rng = np.random.default_rng(100 * label + number)
    pixels = rng.integers(0, 120, (size, size, 3))
    pixels[..., label] += 120
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet layout: 3 classes, 8 training and 3 validation images each."""
    root = tmp_path_factory.mktemp("images")
    for split, count in (("train", 8), ("val", 3)):
        for label in range(CLASSES):
            place = root / split / f"c{label}"
            place.mkdir(parents=True)
            for number in range(count):
                picture(label, number + (1000 if split == "val" else 0)).save(place / f"{number}.png")
    return root


def write_shard(path: Path, numbers: range, *, broken: tuple[int, ...] = ()) -> None:
    """A tar of png and cls members; the numbers in ``broken`` hold no image."""
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            label = number % CLASSES
            buffer = io.BytesIO()
            picture(label, number).save(buffer, "png")
            data = b"no image" if number in broken else buffer.getvalue()
            for suffix, content in (("png", data), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{number:04d}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four training shards of 6 samples, two validation shards of 4 and 5."""
    root = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        write_shard(root / f"train-{shard}.tar", range(6 * shard, 6 * shard + 6))
    write_shard(root / "val-0.tar", range(100, 104))
    write_shard(root / "val-1.tar", range(104, 109))
    return root


def net_args(**changes: object) -> list[str]:
    """Command-line arguments of a tiny model."""
    return [f"--model.model_kwargs.{k}={v}" for k, v in (NET | changes).items()]


def command(kind: str, run_dir: Path, *more: str, model: str = "vit_ti_learned") -> list[str]:
    """A quiet one-process command line without data."""
    return [
        kind, "--run_dir", str(run_dir), "--model", "ImageClassification", "--model.model", model, *net_args(),
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", *more,
    ]  # fmt: skip


def folder_args(root: Path, *more: str) -> list[str]:
    """Image folder arguments: 24 images, 6 batches of 4."""
    return ["--data", "ImageFolderData", "--data.root", str(root), "--data.batch_size", "4", *more]


def run(args: list[str]) -> VispeCLI:
    """The command line in this process."""
    return main(args)
