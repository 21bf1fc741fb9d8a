"""Checkpoints survive a full disk and a kill; damaged ones are named."""

import errno
import os
from pathlib import Path

import pytest
import torch
from train_helpers import command, folder_args, run

from train.checkpoint import CheckpointError, SafeCheckpointIO

FIRST, SECOND = {"weight": torch.zeros(1000)}, {"weight": torch.ones(1000)}


def test_round_trip_leaves_nothing_else(tmp_path: Path) -> None:
    SafeCheckpointIO().save_checkpoint(FIRST, tmp_path / "new" / "a.ckpt")
    assert torch.equal(SafeCheckpointIO().load_checkpoint(tmp_path / "new" / "a.ckpt")["weight"], FIRST["weight"])
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.ckpt"]


class FullDisk:
    """A file that takes 300 bytes."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "wb")
        self.room = 300

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, path = SafeCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint(FIRST, path)
    monkeypatch.setattr("train.checkpoint.open", lambda file, mode: FullDisk(file), raising=False)
    with pytest.raises(CheckpointError, match="last.ckpt.*the previous last.ckpt is intact"):
        io.save_checkpoint(SECOND, path)
    with pytest.raises(CheckpointError, match="other.ckpt.*nothing was written"):
        io.save_checkpoint(SECOND, tmp_path / "other.ckpt")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.equal(io.load_checkpoint(path)["weight"], FIRST["weight"])


def test_kill_during_the_write_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, path = SafeCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint(FIRST, path)

    def die(state: object, file: object) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", die)
    with pytest.raises(KeyboardInterrupt):
        io.save_checkpoint(SECOND, path)
    monkeypatch.undo()
    assert torch.equal(io.load_checkpoint(path)["weight"], FIRST["weight"])


def test_full_disk_in_a_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--trainer.max_epochs=2", "--trainer.limit_val_batches=0")
    run([*args, "--checkpoint.every_n_train_steps=4", "--trainer.max_steps=4"])
    before = (tmp_path / "checkpoints/last.ckpt").read_bytes()
    monkeypatch.setattr("train.checkpoint.open", lambda file, mode: FullDisk(file), raising=False)
    with pytest.raises(CheckpointError, match="No space left"):
        run([*args, "--checkpoint.every_n_train_steps=4", "--ckpt_path=last"])
    monkeypatch.undo()
    assert (tmp_path / "checkpoints/last.ckpt").read_bytes() == before
    run([*args, "--ckpt_path=last"])


@pytest.mark.parametrize("how", ["path", "last", "init_from"])
def test_truncated_checkpoint_is_named(folder: Path, tmp_path: Path, how: str) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--trainer.max_steps=1", "--trainer.limit_val_batches=0")
    run(args)
    last = tmp_path / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:5000])
    option = {"path": f"--ckpt_path={last}", "last": "--ckpt_path=last", "init_from": f"--model.init_from={last}"}[how]
    if how == "init_from":
        with pytest.raises(ValueError, match=r"last.ckpt \(5000 bytes\).*truncated"):
            run([*args, option, "--run_dir", str(tmp_path / "other")])
        return
    with pytest.raises(CheckpointError, match=r"last.ckpt \(5,000 bytes\).*truncated.*epoch=0000-step=00000001.ckpt"):
        run([*args, option])


def test_missing_weights_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file nowhere.safetensors"):
        run(command("fit", tmp_path, *folder_args(folder), "--model.init_from=nowhere.safetensors"))


@pytest.mark.parametrize(("steps", "every"), [(5, 2), (4, 2), (1, 50)], ids=["between", "on", "before the first"])
def test_the_last_step_is_kept_wherever_training_ends(folder: Path, tmp_path: Path, steps: int, every: int) -> None:
    end = [f"--trainer.max_steps={steps}", f"--checkpoint.every_n_train_steps={every}", "--trainer.limit_val_batches=0"]
    cli = run(command("fit", tmp_path, *folder_args(folder), *end))
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == cli.trainer.global_step == steps
    for key, value in cli.model.state_dict().items():
        assert torch.equal(last["state_dict"][key], value), key
    assert [p.name for p in (tmp_path / "checkpoints").glob("last*")] == ["last.ckpt"]
