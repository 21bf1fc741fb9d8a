"""Checkpoints that a full disk or a kill cannot damage, and clear words for those that are damaged."""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read."""


class Checkpoints(ModelCheckpoint):
    """Lightning's, which keeps the last step as well when training ends between two of the steps that are saved."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.save_last and not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that the file of that name is always a whole one.

    Lightning's own writer goes through a temporary file elsewhere, and a move over file systems is a copy that can
    break off. Remote paths (``s3://...``) are left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except (OSError, RuntimeError) as error:  # torch's zip writer turns an OSError into a RuntimeError
            partial.unlink(missing_ok=True)
            kept = f"the previous {target.name} is intact" if target.exists() else "nothing was written"
            raise CheckpointError(f"cannot save the checkpoint {target}: {_cause(error)}; {kept}") from error

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        with readable(path):
            return super().load_checkpoint(path, map_location, weights_only)


def _cause(error: BaseException) -> BaseException:
    """The OSError behind torch's complaint about its zip file, if there is one."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return seen or error


class readable:
    """Context in which the many exceptions of a truncated file become one :class:`CheckpointError` that names it."""

    def __init__(self, path: Any) -> None:
        self.path = Path(str(path))

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        broken = (EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError)
        if not isinstance(error, broken) or isinstance(error, (CheckpointError, FileNotFoundError, PermissionError)):
            return
        size = self.path.stat().st_size if self.path.is_file() else 0
        others = sorted(str(p) for p in self.path.parent.glob("*.ckpt") if p.resolve() != self.path.resolve())
        raise CheckpointError(
            f"cannot read the checkpoint {self.path} ({size:,} bytes): it is truncated or no checkpoint ({error}). "
            f"Others beside it: {', '.join(others) or 'none'}"
        ) from error
