"""The committed table of docs/glyphs.md: a few encodings, three seeds each, on Glyph-47's test typefaces.

    python scripts/glyph_table.py --runs runs/glyph_table            # trains what is missing, then writes the table
    python scripts/glyph_table.py --runs runs/glyph_table --only-table

Every cell is one `python -m train fit` and one `python -m train test` under configs/glyphs/base.yaml and the file of its
encoding. Finished cells are kept, so the script can be stopped and started again. Two one-thread processes run side by side.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CONFIGS = Path("configs/glyphs")
SIZES = [(32, 32), (48, 48), (64, 64), (96, 96), (32, 48)]
IMAGES = 1000  # test images for each size
ROTARY = ["extend", "rescale"]  # its own convention, and the other one with the same weights
CELLS: dict[str, tuple[str, list[str]]] = {  # name: (file in configs/glyphs, coordinate conventions)
    "none": ("none", ["-"]),
    "learned, std .02": ("learned", ["-"]),
    "learned, sin-cos start": ("learned_sincos", ["-"]),
    "rope_axial": ("rope_axial", ROTARY),
    "rope_mixed": ("rope_mixed", ROTARY),
}


def run(command: list[str], log: Path) -> None:
    """One process on one thread, its output in a file; the end of the file is the error message."""
    with open(log, "w") as file:
        code = subprocess.call(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    if code:
        raise RuntimeError(f"{' '.join(command)} failed; {log} ends with\n{log.read_text()[-2000:]}")


def cell(name: str, seed: int, samples: int, folder: Path) -> None:
    """Train and test one encoding under one seed; leaves `done.json` with every metric."""
    done = folder / "done.json"
    if done.exists():
        return
    config, conventions = CELLS[name]
    common = ["--config", str(CONFIGS / "base.yaml"), "--config", str(CONFIGS / f"{config}.yaml")]
    common += ["--seed_everything", str(seed), "--run_dir", str(folder), "--data.train_length", str(samples)]
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "0"]
    trained = folder / "trained"
    if not trained.exists():  # a run that was stopped goes on from its newest checkpoint, if it has one
        run([sys.executable, "-m", "train", "fit", *common, *quiet, "--ckpt_path", "last"], folder / "train.log")
        trained.touch()
    sizes = str([list(size) for size in SIZES[1:]])
    test = ["--ckpt_path", str(folder / "checkpoints" / "last.ckpt"), "--data.eval_sizes", sizes]
    test += ["--data.test_length", str(IMAGES)]
    test += ["--model.eval_coords", str(conventions[1:])]
    run([sys.executable, "-m", "train", "test", *common, *quiet, *test], folder / "test.log")
    with open(sorted(folder.glob("test/version_*/metrics.csv"))[-1], newline="") as file:
        metrics = {key: float(value) for row in csv.DictReader(file) for key, value in row.items() if value}
    seconds = time.time() - started
    done.write_text(json.dumps({"encoding": name, "seed": seed, "seconds": seconds, "metrics": metrics}, indent=1))


def rows(runs: Path) -> list[dict]:
    """One row for each encoding, seed, convention and size."""
    found = []
    for path in sorted(runs.glob("*/done.json")):
        result = json.loads(path.read_text())
        default, *_ = CELLS[result["encoding"]][1]
        for convention in CELLS[result["encoding"]][1]:
            for height, width in SIZES:
                at = "" if (height, width) == SIZES[0] else f"@{height}x{width}"
                key = f"test/top1{at}" + ("" if convention == default else f"/{convention}")
                found.append(
                    dict(
                        encoding=result["encoding"], coords=convention, seed=result["seed"],
                        size=f"{height}x{width}", top1=round(100 * result["metrics"][key], 2),
                    )  # fmt: skip
                )
    return found


def markdown(table: list[dict]) -> str:
    """Mean and sample standard deviation over seeds."""
    sizes = [f"{h}x{w}" for h, w in SIZES]
    lines = ["| encoding | positions | seeds | " + " | ".join(sizes) + " |", "|---" * (3 + len(sizes)) + "|"]
    for name, (_, conventions) in CELLS.items():
        for convention in conventions:
            own = [row for row in table if row["encoding"] == name and row["coords"] == convention]
            values = [[row["top1"] for row in own if row["size"] == size] for size in sizes]
            if own:
                cells = [f"{statistics.mean(v):.1f} ± {statistics.stdev(v) if len(v) > 1 else 0:.1f}" for v in values]
                lines.append(f"| {name} | {convention} | {len(values[0])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/glyph_table"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=64000, help="training samples of each run")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--only-table", action="store_true", help="train nothing, print what is finished")
    parser.add_argument("--csv", type=Path, default=None, help="also write every row there")
    args = parser.parse_args()
    if not args.only_table:
        jobs = [(name, seed) for seed in args.seeds for name in CELLS]
        with ThreadPoolExecutor(args.side_by_side) as pool:
            futures = [
                pool.submit(cell, name, seed, args.samples, args.runs / f"{name.replace(' ', '_').replace(',', '')}-{seed}")
                for name, seed in jobs
            ]
            for (name, seed), future in zip(jobs, futures):
                future.result()
                print(f"{name}, seed {seed}: done", flush=True)
    table = rows(args.runs)
    print(markdown(table))
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(table[0]))
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
