"""`make demo`: train three small ViTs on the embedded glyphs, test each beyond its training size, and show the result.

Two one-thread processes train side by side (faster than one process with two threads) through the real command line,
`python -m train fit`; then `python -m train validate` reads unseen typefaces at larger and non-square sizes, with
coordinates that extend beyond the training grid and with coordinates rescaled onto it. Everything lands in
`runs/demo/<time>/`: logs, checkpoints, `accuracy.png`, and a self-contained `report.html`.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from train.report import Curve, print_table, write_html, write_picture

CONFIGS = Path("configs/glyphs")
SIZES = [(32, 32), (48, 48), (64, 64), (32, 48)]
IMAGES = 1000  # validation images for each size
RUNS = {"learned": "learned_sincos", "rope_axial": "rope_axial", "comrope": "comrope"}  # name: file in configs/glyphs
# How each run's coordinates grow by default, and the other way, which is tested with the same weights.
CONVENTIONS = {"learned": ["resampled"], "rope_axial": ["extend", "rescale"], "comrope": ["rescale", "extend"]}


@dataclass
class Job:
    """One training process and where it writes."""

    name: str
    folder: Path
    process: subprocess.Popen
    log: Path

    def newest(self) -> dict[str, str]:
        """The last row of the run's metrics that has a training loss."""
        for path in sorted(self.folder.glob("logs/version_*/metrics.csv"), reverse=True):
            with open(path, newline="") as file:
                rows = [row for row in csv.DictReader(file) if row.get("train/loss")]
            if rows:
                return rows[-1]
        return {}


def start(name: str, folder: Path, steps: int) -> Job:
    """Begin training one encoding in a process of its own, its output in a file."""
    folder.mkdir(parents=True)
    command = [
        *train("fit", name), "--run_dir", str(folder),
        "--trainer.max_steps", str(steps), "--trainer.log_every_n_steps", "10",
        "--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "0",
    ]  # fmt: skip
    log = folder / "train.log"
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=one_thread())
    return Job(name, folder, process, log)


def train(subcommand: str, name: str) -> list[str]:
    """The command line of one run, options still to follow."""
    configs = ("--config", str(CONFIGS / "base.yaml"), "--config", str(CONFIGS / f"{RUNS[name]}.yaml"))
    return [sys.executable, "-m", "train", subcommand, *configs]


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}


def finish(job: Job) -> None:
    """Stop the demo with the end of the log when a training run failed."""
    if job.process.returncode:
        tail = "\n".join(job.log.read_text(errors="replace").splitlines()[-25:])
        raise SystemExit(f"training {job.name} failed ({job.process.returncode}); {job.log} ends with\n{tail}")


def train_all(root: Path, steps: int, side_by_side: int, console: Console) -> None:
    """Train every run, a few at a time, with a bar for each."""
    columns = (
        TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[info]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    waiting, running, told = list(RUNS)[::-1], [], time.monotonic()  # the slowest first: it ends with the others
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        bars = {name: progress.add_task(name, total=steps, info="waiting", start=False) for name in RUNS}
        while waiting or running:
            while waiting and len(running) < side_by_side:
                name = waiting.pop(0)
                running.append(start(name, root / name, steps))
                progress.start_task(bars[name])
                progress.update(bars[name], info="starting")
            time.sleep(1.0)
            for job in list(running):
                done = job.process.poll() is not None
                row = job.newest()
                if row:
                    info = f"loss {float(row['train/loss']):.2f}"
                    info += f", {float(row['train/images_per_s']):.0f} img/s" if row.get("train/images_per_s") else ""
                    progress.update(bars[job.name], completed=int(row["step"]) + 1, info=info)
                    if not console.is_terminal and time.monotonic() - told > 15:  # no moving bars in a log file
                        lines = (f"{t.description} {t.completed:.0f}/{t.total:.0f} {t.fields['info']}" for t in progress.tasks)
                        console.print("   ".join(lines))
                        told = time.monotonic()
                if done:
                    finish(job)
                    progress.update(bars[job.name], completed=steps)
                    progress.stop_task(bars[job.name])
                    running.remove(job)


def measure(name: str, folder: Path) -> list[Curve]:
    """Accuracy at every size: one curve, or two (extended and rescaled coordinates) for a rotary encoding."""
    default, *others = CONVENTIONS[name]
    command = [
        *train("validate", name), "--run_dir", str(folder), "--ckpt_path", str(folder / "checkpoints" / "last.ckpt"),
        "--data.eval_sizes", str([list(size) for size in SIZES[1:]]), "--data.val_length", str(IMAGES),
        "--model.eval_coords", str(others), "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip
    log = folder / "validate.log"
    with open(log, "w") as file:
        job = Job(name, folder, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=one_thread()), log)
    job.process.wait()
    finish(job)
    path = sorted(folder.glob("validate/version_*/metrics.csv"))[-1]
    with open(path, newline="") as file:
        row = {key: value for row in csv.DictReader(file) for key, value in row.items() if value}
    curves = []
    for convention in (default, *others):
        points = {}
        for height, width in SIZES:
            at = "" if (height, width) == SIZES[0] else f"@{height}x{width}"
            points[height, width] = 100 * float(row[f"val/top1{at}" + ("" if convention == default else f"/{convention}")])
        curves.append(Curve(name, convention, points))
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m train.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=900, help="training steps of each model, 32 images each")
    parser.add_argument("--side-by-side", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--out", type=Path, default=None, help="a new folder (default: runs/demo/<time>)")
    args = parser.parse_args()
    console = Console()
    root = args.out or Path("runs/demo") / time.strftime("%Y%m%d-%H%M%S")
    if root.exists():
        raise SystemExit(f"{root} exists; nothing is overwritten, give a new folder by --out")
    started = time.perf_counter()
    console.print(
        f"Training {', '.join(RUNS)} on Glyph-47 (47 characters, 32 px, unseen typefaces for testing), "
        f"{args.steps} steps of 32 images each, into {root}"
    )
    train_all(root, args.steps, args.side_by_side, console)
    with console.status(f"testing at {', '.join(f'{h}x{w}' for h, w in SIZES)}"):
        with ThreadPoolExecutor(args.side_by_side) as pool:
            curves = [curve for found in pool.map(lambda name: measure(name, root / name), RUNS) for curve in found]
    minutes = (time.perf_counter() - started) / 60
    print_table(curves, console)
    picture = write_picture(curves, root / "accuracy.png", train_size=SIZES[0])
    report = write_html(curves, picture, root / "report.html", steps=args.steps, minutes=minutes)
    console.print(f"{minutes:.1f} minutes. Picture: {picture}   Report: {report}")


if __name__ == "__main__":
    main()
