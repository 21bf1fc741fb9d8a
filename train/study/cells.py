"""One cell: train it, or go on where it was stopped, test it, and add its numbers to the results file.

Its folder holds ``cell.json`` (what it is), ``checkpoints/`` and ``logs/`` of the training command, ``final.ckpt`` (weights,
when training is over) and ``rows-HASH.csv`` (numbers, when testing is over). Each file is written in one step, so that what is
there says how far the cell got, however it ended.
"""

import csv
import io
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_only

from train.checkpoint import CheckpointError, SafeCheckpointIO
from train.cli import VispeCLI, checkpoint_dir, modified
from train.files import replace
from train.study import results
from train.study.config import Cell, StudyError
from train.study.evaluate import Score, evaluate
from train.study.protocols import check_data
from train.study.results import Row

State = Literal["done", "tested", "trained", "interrupted", "new"]


class Prepared(VispeCLI):
    """The training command up to where it would run: model, data module and trainer are there."""

    def _run_subcommand(self, subcommand: str) -> None:
        return None


def state(cell: Cell, known: list[Row]) -> State:
    """How far a cell is; refuses a folder or results of another configuration."""
    path = cell.folder / "cell.json"
    final = cell.folder / "final.ckpt"
    found = json.loads(path.read_text())["training_hash"] if path.exists() else cell.training_hash()
    if found != cell.training_hash() and (saved(cell) or final.exists()):
        raise StudyError(
            f"{cell.folder} was trained under another configuration ({found}, now {cell.training_hash()}: recipe or options "
            "changed). Set another `runs` folder and another `results` name, or go back to that configuration"
        )
    if results.compare(cell.study.results_file, known, cell.encoding, cell.seed, cell.config_hash()):
        return "done"
    if rows_file(cell).exists():
        return "tested"
    if final.exists():
        return "trained"
    return "interrupted" if saved(cell) else "new"


def rows_file(cell: Cell) -> Path:
    """Where the cell keeps its own numbers."""
    return cell.folder / f"rows-{cell.config_hash()}.csv"


def saved(cell: Cell) -> list[Path]:
    """Checkpoints of an unfinished training, newest first; SLURM's own among them."""
    found = [*Path(checkpoint_dir(str(cell.folder))).glob("*.ckpt"), *cell.folder.glob("hpc_ckpt_*.ckpt")]
    return sorted(found, key=modified, reverse=True)


def run_cell(cell: Cell, say: Callable[[str], None] = print) -> None:
    """Bring a cell to ``done`` from wherever it is.

    Raises:
        StudyError: another process has the cell, or its folder or results are of another configuration.
    """
    if rank_zero_only.rank:  # a further process of a DDP training: it is needed for nothing else
        if state(cell, results.read(cell.study.results_file)) in ("new", "interrupted"):
            train(cell, say)
        return
    cell.folder.mkdir(parents=True, exist_ok=True)
    with results.lock(cell.folder / ".lock", wait=False) as mine:
        if not mine:
            raise StudyError(f"{cell.name}: another process is at work in {cell.folder}; let it finish, or end it first")
        reached = state(cell, results.read(cell.study.results_file))
        if reached in ("new", "interrupted", "trained") and not usable(cell, say):
            train(cell, say)
        if reached not in ("done", "tested"):
            replace(rows_file(cell), as_csv(test(cell)))
        if reached != "done":
            results.append(cell.study.results_file, from_csv(rows_file(cell)))
        say(f"{cell.name}: done")


# training


def usable(cell: Cell, say: Callable[[str], None]) -> bool:
    """Whether there are final weights that can be read; broken ones are put aside."""
    final = cell.folder / "final.ckpt"
    return final.exists() and not put_aside(final, say)


def put_aside(path: Path, say: Callable[[str], None]) -> bool:
    """Rename a checkpoint that cannot be read, and say so."""
    try:
        SafeCheckpointIO().load_checkpoint(path, weights_only=True)
    except CheckpointError as error:
        path.replace(path.with_name(path.name + ".broken"))
        say(f"{path.parent}: put {path.name} aside as {path.name}.broken: {str(error).partition('. Others')[0]}")
        return True
    return False


def train(cell: Cell, say: Callable[[str], None]) -> None:
    """Run the training command to its end: anew, or from the newest checkpoint that can be read."""
    if not rank_zero_only.rank:
        prepare_training(cell, say)
    started = time.time()
    cli = None
    try:
        cli = VispeCLI(["fit", *cell.arguments(), "--trainer.limit_val_batches=0", "--ckpt_path=last"])
    except SystemExit as end:  # Lightning ends on SIGTERM with exit code 0, which would pass for success
        if end.code:
            raise
        raise StudyError(f"{cell.name}: training was stopped ({end!r}); start it again to go on from there") from end
    finally:
        if not rank_zero_only.rank:
            with open(cell.folder / "seconds.txt", "a") as file:
                file.write(f"{time.time() - started:.1f}\n")
    trainer = cli.trainer
    if trainer.interrupted or trainer.received_sigterm or not finished(trainer):
        raise StudyError(f"{cell.name}: training was stopped at step {trainer.global_step}; start it again to go on from there")
    trainer.save_checkpoint(cell.folder / "final.ckpt", weights_only=True)
    if torch.distributed.is_initialized():  # one process alone tests, and its metrics must not wait for the others
        torch.distributed.destroy_process_group()


def finished(trainer: Any) -> bool:
    """Whether training came to the end that its configuration sets."""
    return trainer.global_step >= trainer.estimated_stepping_batches


def prepare_training(cell: Cell, say: Callable[[str], None]) -> None:
    """Leave only checkpoints that can be read, the newest of them as the one that ``--ckpt_path last`` finds."""
    whole = [path for path in saved(cell) if not put_aside(path, say)]
    last = Path(checkpoint_dir(str(cell.folder))) / "last.ckpt"
    if whole and not any(path.name.startswith(("last", "hpc_ckpt")) for path in whole):
        shutil.copy2(whole[0], last)
    if whole:
        say(f"{cell.name}: goes on from {whole[0]}")
    path = cell.folder / "cell.json"
    if not whole or not path.exists():
        facts = {
            "encoding": cell.encoding, "seed": cell.seed, "study": cell.study.name, "training_hash": cell.training_hash(),
            "commit": results.commit(), "arguments": cell.arguments(),
        }  # fmt: skip
        replace(path, json.dumps(facts, indent=1).encode())


# testing


def test(cell: Cell) -> list[Row]:
    """Every number of a trained cell."""
    started = time.time()
    cli = Prepared(["test", *cell.arguments()])
    module, data, trainer = cli.model, cli.datamodule, cli.trainer
    content = torch.load(cell.folder / "final.ckpt", map_location="cpu", weights_only=True)
    module.load_state_dict(content["state_dict"])
    if data.img_size is None:
        data.img_size = data_size(module)
    check_data(data, cell.study.protocols)
    pictures = cell.study.folder / "pictures"
    scores = list(evaluate(module, data, trainer, cell.study.protocols, pictures=pictures))
    params = sum(p.numel() for p in module.net.parameters())
    return rows(cell, scores, params=params, size=data.train_size, seconds=time.time() - started)


def data_size(module: Any) -> tuple[int, int]:
    """The model's image size as (H, W)."""
    size = module.img_size
    return (size, size) if isinstance(size, int) else tuple(size)


def rows(cell: Cell, scores: list[Score], *, params: int, size: tuple[int, int], seconds: float) -> list[Row]:
    """The rows of the results file: one for each metric of each score, and what training and testing cost."""
    trained, now = json.loads((cell.folder / "cell.json").read_text())["commit"], results.commit()
    common = {
        "format": results.FORMAT, "encoding": cell.encoding, "seed": cell.seed, "params": params,
        "images_per_s": throughput(cell.folder), "config_hash": cell.config_hash(),
        "commit": now if trained == now else f"{trained}..{now}",
    }  # fmt: skip
    found = [
        Row(
            protocol=score.setting.protocol, size="{}x{}".format(*score.setting.size), option=score.setting.option,
            coords=score.mode.coords, method=score.mode.method, default=score.mode.default, metric=metric,
            value=round(value, 6), images=score.images, **common,
        )
        for score in scores
        for metric, value in score.values.items()
    ]  # fmt: skip
    took = {"train": sum(map(float, (cell.folder / "seconds.txt").read_text().split())), "test": seconds}
    cost = {"size": "{}x{}".format(*size), "option": "", "coords": "own", "method": "-", "default": True, "images": 0}
    found += [
        Row(protocol=part, metric="seconds", value=round(value, 1), **cost, **common) for part, value in took.items()
    ]
    return found


def throughput(folder: Path) -> float:
    """Median images a second of all log lines of the training; 0 when it was too short for one."""
    speeds = []
    for log in sorted(folder.glob("logs/version_*/metrics.csv")):
        with open(log, newline="") as file:
            speeds += [float(line["train/images_per_s"]) for line in csv.DictReader(file) if line.get("train/images_per_s")]
    return round(statistics.median(speeds), 2) if speeds else 0.0


def as_csv(found: list[Row]) -> bytes:
    """Rows with a head, as a results file of one cell."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([results.COLUMNS, *map(results.text, found)])
    return buffer.getvalue().encode()


def from_csv(path: Path) -> list[Row]:
    """The rows of a cell's own file."""
    return results.read(path)
