"""Two processes over gloo: different samples, equal weights, and the metrics of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from train_helpers import command, folder_args, run, write_shard

REPOSITORY = Path(__file__).parents[2]
TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]


def two_processes(args: list[str], run_dir: Path) -> list[dict]:
    """What both processes report."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    program = REPOSITORY / "tests/train/ddp_program.py"
    done = subprocess.run(
        [sys.executable, str(program), *args], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((run_dir / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_agree_with_one(folder: Path, tmp_path: Path) -> None:
    data = folder_args(folder, "--data.eval_batch_size=2", "--data.eval_sizes=[[16,24]]", "--model.ema_decay=0.5")
    args = command("fit", tmp_path, *data, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2")
    ranks = two_processes([*args, *TWO], tmp_path)
    assert [len(rank["seen"]) for rank in ranks] == [8, 8] and ranks[0]["steps"] == 2
    assert not set(ranks[0]["seen"]) & set(ranks[1]["seen"])
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["metrics"] == ranks[1]["metrics"] and "val/top1@16x24" in ranks[0]["metrics"]
    # 9 images do not divide by 2: a padded sampler would count one of them twice
    alone = run(
        command("validate", tmp_path / "one", *data, "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt"))
    ).trainer.callback_metrics
    for name, value in ranks[0]["metrics"].items():
        assert value == pytest.approx(float(alone[name]), rel=1e-6), name


def test_shards_give_every_process_equally_many_steps(tmp_path: Path) -> None:
    for shard, count in enumerate((2, 9)):  # unequal shards, one for each process
        write_shard(tmp_path / f"train-{shard}.tar", range(20 * shard, 20 * shard + count))
    write_shard(tmp_path / "val-0.tar", range(100, 105))  # one shard: the second process has nothing to evaluate
    args = command(
        "fit", tmp_path, "--data=WebDatasetData", f"--data.train_shards={tmp_path}/train-{{0..1}}.tar",
        f"--data.val_shards={tmp_path}/val-0.tar", "--data.num_classes=3", "--data.epoch_size=16", "--data.batch_size=2",
        "--trainer.max_epochs=1",
    )  # fmt: skip
    ranks = two_processes([*args, *TWO], tmp_path)
    assert [rank["steps"] for rank in ranks] == [4, 4]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["metrics"] == ranks[1]["metrics"] and 0 <= ranks[0]["metrics"]["val/top1"] <= 1
