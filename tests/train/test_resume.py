"""A stopped and resumed run repeats the uninterrupted one, number for number."""

import csv
from pathlib import Path

import pytest
import torch
from train_helpers import Killed, command, folder_args, kill_at, losses, run, weights_of

RANDOM = [  # everything that draws random numbers, and everything that keeps a state
    "--model.model_kwargs.drop_rate=0.2",
    "--model.model_kwargs.drop_path_rate=0.2",
    "--model.mixup=0.8",
    "--model.cutmix=1.0",
    "--model.ema_decay=0.9",
    "--data.augment.auto_augment=rand-m9-mstd0.5-inc1",
    "--data.augment.random_erasing=0.5",
    "--trainer.max_epochs=2",
]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 2 epochs of 6 steps."""
    run_dir = tmp_path_factory.mktemp("whole")
    run(command("fit", run_dir, *folder_args(folder), *RANDOM))
    assert sorted(losses(run_dir)) == list(range(12))
    return run_dir


@pytest.mark.parametrize(
    ("every", "die", "more"),
    [
        ("--checkpoint.every_n_train_steps=2", 5, []),  # inside the first epoch
        ("--checkpoint.every_n_train_steps=4", 10, []),  # inside the second
        ("--checkpoint.every_n_epochs=1", 8, []),  # from the end of the first
        ("--checkpoint.every_n_train_steps=2", 5, ["--data.num_workers=2"]),
    ],
    ids=["mid-epoch-0", "mid-epoch-1", "epoch-end", "workers"],
)
def test_resumed_equals_uninterrupted(
    whole: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str, die: int, more: list[str]
) -> None:
    args = command("fit", tmp_path, *folder_args(folder), *RANDOM, every, *more)
    with monkeypatch.context() as context:
        kill_at(context, die)
        with pytest.raises(Killed):
            run(args)
    cli = run([*args, "--ckpt_path=last"])
    assert cli.trainer.global_step == 12
    second = list(csv.DictReader((tmp_path / "logs/version_1/metrics.csv").open()))
    assert int(second[0]["step"]) in (4, 6, 8) and int(second[0]["step"]) < die  # it did go on and not begin anew
    assert losses(tmp_path) == losses(whole)
    ours, reference = weights_of(tmp_path), weights_of(whole)
    assert ours.keys() == reference.keys() and any(key.startswith("ema.") for key in ours)
    for key in ours:
        assert torch.equal(ours[key], reference[key]), key


def test_the_runs_are_random_at_all(whole: Path, folder: Path, tmp_path: Path) -> None:
    run(command("fit", tmp_path, *folder_args(folder), *RANDOM, "--seed_everything=1", "--trainer.max_steps=2"))
    assert losses(tmp_path)[1] != losses(whole)[1]


def test_accumulation_and_validation_inside_an_epoch_resume(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = folder_args(folder, *RANDOM, "--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=2")
    args += ["--checkpoint.every_n_train_steps=1", "--checkpoint.save_on_train_epoch_end=false"]
    run(command("fit", tmp_path / "a", *args))
    with monkeypatch.context() as context:
        kill_at(context, 9)
        with pytest.raises(Killed):
            run(command("fit", tmp_path / "b", *args))
    run(command("fit", tmp_path / "b", *args, "--ckpt_path=last"))
    ours, reference = weights_of(tmp_path / "b"), weights_of(tmp_path / "a")
    for key in ours:
        assert torch.equal(ours[key], reference[key]), key
