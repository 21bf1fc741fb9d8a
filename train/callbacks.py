"""Throughput, memory and unreadable samples in the log; predictions in a file."""

import csv
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info


def peak_memory_mb(device: torch.device) -> float:
    """Most memory used so far: that of the CUDA device, or the resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, KiB elsewhere


class Throughput(Callback):
    """Logs images a second over all processes, peak memory, and the number of unreadable samples."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._start, self._images = time.perf_counter(), 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restart()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restart()  # evaluation is no training time

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch[0]) * trainer.world_size
        if (trainer.fit_loop.total_batch_idx + 1) % trainer.log_every_n_steps:
            return
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        pl_module.log("train/images_per_s", self._images / elapsed, prog_bar=True)
        pl_module.log("train/peak_memory_mb", peak_memory_mb(pl_module.device))
        if corrupt := getattr(trainer.datamodule, "corrupt", None):
            pl_module.log("data/unreadable", float(corrupt.count))
        self._restart()


class PredictionFile(BasePredictionWriter):
    """Writes ``predictions.csv``: name, class, probability of the class, and the five most probable classes.

    With several processes each writes the file of its share.

    Args:
        folder: Where to write.
    """

    def __init__(self, folder: str) -> None:
        super().__init__("epoch")
        self.folder = Path(folder)

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Any, batch_indices: Any
    ) -> None:
        share = f"-rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"predictions{share}.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["name", "class", "probability", "top5"])
            for batch in filter(None, predictions):
                top = batch["prob"].topk(min(5, batch["prob"].shape[1]))
                for name, values, classes in zip(batch["name"], top.values.tolist(), top.indices.tolist(), strict=True):
                    writer.writerow([name, classes[0], f"{values[0]:.6f}", " ".join(map(str, classes))])
        rank_zero_info(f"predictions are in {path}")
