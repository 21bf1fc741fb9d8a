"""Tiny images, shards and command lines for the tests of the training application."""

import csv
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from train.cli import VispeCLI, main
from train.image import ImageClassification

CLASSES = 3
NET = {"num_classes": CLASSES, "img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}


def picture(label: int, number: int, size: int = 20) -> Image.Image:
    """A noisy image whose mean colour tells its class."""
    rng = np.random.default_rng(100 * label + number)
    pixels = rng.integers(0, 120, (size, size, 3))
    pixels[..., label] += 120
    return Image.fromarray(pixels.astype(np.uint8))


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


class Killed(Exception):
    """Stands for whatever ends a process."""


def losses(run_dir: Path) -> dict[int, float]:
    """Training loss at each step, from the CSV logs of all starts; later starts win."""
    found = {}
    for log in sorted(run_dir.glob("logs/version_*/metrics.csv")):
        for row in csv.DictReader(log.open()):
            if row.get("train/loss"):
                found[int(row["step"])] = float(row["train/loss"])
    return found


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Training dies when it is about to do this step."""
    original = ImageClassification.training_step

    def training_step(self: ImageClassification, batch: object, batch_idx: int) -> torch.Tensor:
        if self.trainer.fit_loop.total_batch_idx == step:
            raise Killed
        return original(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassification, "training_step", training_step)


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    """State dict of the last checkpoint, averaged weights included."""
    return torch.load(run_dir / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
