"""What the table scripts share: cells that are trained once, and Markdown of their numbers.

A finished cell is known by `done.json` in its folder or, where that folder is gone, by its rows in the csv beside the page. So
a table that takes hours can be made in several sittings, on several machines.
"""

from __future__ import annotations

import contextlib
import csv
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def fit(args: list[str], folder: Path) -> tuple[dict[str, float], dict]:
    """`python -m train fit` with its output in `train.log`: the metrics at its end, and steps and seconds."""
    from train.cli import main

    folder.mkdir(parents=True, exist_ok=True)
    args = ["fit", *args, "--run_dir", str(folder), "--trainer.enable_progress_bar", "false"]
    started = time.time()
    with open(folder / "train.log", "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        trainer = main(args).trainer
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    return metrics, {"steps": trainer.global_step, "seconds": round(time.time() - started)}


def finished(
    results: Iterable[Path],
    committed: Path,
    read: Callable[[list[dict[str, str]]], list[dict]],
    identity: tuple[str, ...],
) -> list[dict]:
    """Every finished cell, one each; a cell's own file goes before its rows in the csv.

    Args:
        results: The files that finished cells left.
        committed: The csv beside the page; need not exist.
        read: Makes cells, as the files hold them, of the rows of the csv.
        identity: The keys that name a cell.
    """
    rows: list[dict[str, str]] = []
    if committed.exists():
        with open(committed, newline="") as file:
            rows = list(csv.DictReader(file))
    cells = [*read(rows), *(json.loads(path.read_text()) for path in sorted(results))]
    found = {tuple(cell[key] for key in identity): cell for cell in cells}
    return [found[key] for key in sorted(found)]


def grouped(rows: list[dict[str, str]], keys: tuple[str, ...]) -> list[tuple[dict[str, str | int], list[dict[str, str]]]]:
    """Rows of one cell together, with what they have in common; whole numbers are read as such."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [({k: int(v) if v.isdecimal() else v for k, v in zip(keys, values)}, own) for values, own in found.items()]


def shown(found: dict[int, float], digits: int = 2) -> str:
    """{seed: value} as mean ± sample deviation over seeds, a single seed without one."""
    if not found:
        return "–"
    text = f"{statistics.mean(found.values()):.{digits}f}"
    return text + (f" ± {statistics.stdev(found.values()):.{digits}f}" if len(found) > 1 else "")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))
