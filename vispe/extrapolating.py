"""What `vispe extrapolate` does: accuracy of a model at other resolutions, as a table, a CSV file and a picture."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .converting import parse_kwargs
from .curves import Point, by, labelled, resolution_curves
from .opening import add_model_options, open_model
from .plots.figures import INK, MUTED

COLUMNS = ("model", "height", "width", "method", "images", "top1", "top1_low", "top1_high", "top5", "loss", "images_per_second")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#555555", "#882255")
MARKS = "osD^vPX*"


def add_parser(commands: Any) -> None:
    """The command's options, under the subparsers of `vispe`."""
    one = commands.add_parser("extrapolate", help="accuracy of your model at other resolutions, on your images")
    add_model_options(one)
    one.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="images in FOLDER/CLASS/IMAGE")
    one.add_argument("--sizes", nargs="+", required=True, metavar="SIZE", help="pixels: 224, or HEIGHTxWIDTH as in 256x320")
    one.add_argument(
        "--method", nargs="+", default=["none"], metavar="METHOD",
        help="none (as it is), extend, rescale, pi, ntk, by_parts, yarn or a preset of set_extrapolation (none)",
    )  # fmt: skip
    one.add_argument("--classes", type=Path, metavar="FILE", help="class folder of each output, one a line (sorted folders)")
    one.add_argument("--batch-size", type=int, default=32, help="images at the smallest size (32)")
    one.add_argument("--workers", type=int, default=0, help="processes that read images (0: this one)")
    one.add_argument("--limit", type=int, help="only so many images, spread evenly over the folder")
    one.add_argument("--crop-pct", type=float, help="share that the centre crop keeps (the model's own)")
    one.add_argument("--mean", type=float, nargs="+", help="channel means of the normalisation (the model's own)")
    one.add_argument("--std", type=float, nargs="+", help="channel deviations of the normalisation (the model's own)")
    one.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (cpu)")
    one.add_argument("--out", type=Path, help="folder of curves.csv and curves.png (default: vispe-extrapolate/MODEL)")
    one.set_defaults(run=extrapolate_command)


def extrapolate_command(args: argparse.Namespace) -> int:
    sizes = [parse_size(text) for text in args.sizes]
    _unique("--sizes", sizes), _unique("--method", args.method)
    name = Path(args.model).stem if Path(args.model).exists() else args.model.replace("/", "_").replace(":", "_")
    folder = args.out or Path("vispe-extrapolate") / name
    table_file, picture_file = folder / "curves.csv", folder / "curves.png"
    for file in (table_file, picture_file):
        if file.exists():
            raise FileExistsError(f"extrapolate: {file} exists, and nothing is written over; choose another --out.")
    model = open_model(
        args.model, weights=args.weights, kwargs=parse_kwargs(args.model_kwargs), pretrained=args.pretrained
    ).to(checked_device(args.device))
    samples = spread(labelled(args.data, model, classes=read_classes(args.classes)), args.limit)
    progress = _progress()
    bars = {size: progress.add_task(by(size), total=len(samples)) for size in sizes}
    curves = resolution_curves(
        model, samples, sizes, methods=args.method, batch_size=args.batch_size, workers=args.workers, crop_pct=args.crop_pct,
        mean=_tuple(args.mean), std=_tuple(args.std), progress=lambda size, done: progress.update(bars[size], completed=done),
    )  # fmt: skip
    with progress:
        points = list(curves)
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(table_file, name, points)
    curve_figure(points, title=f"{name}: accuracy against resolution", train=train_size(model)).savefig(picture_file)
    Console(width=None if sys.stdout.isatty() else 140).print(curve_table(points, name))
    print(f"wrote {table_file}\nwrote {picture_file}")
    return 0


def parse_size(text: str) -> tuple[int, int]:
    """(height, width) from "224" or "256x320"."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"extrapolate: a size is a number of pixels, or HEIGHTxWIDTH as in 256x320; got {text!r}.")
    return int(parts[0]), int(parts[-1])


def read_classes(file: Path | None) -> list[str] | None:
    """Names of class folders, one a line; empty lines at the end do not count."""
    if file is None:
        return None
    names = [line.strip() for line in file.read_text().rstrip().splitlines()]
    if not all(names):
        raise ValueError(f"extrapolate: line {names.index('') + 1} of {file} is empty; every output needs a name.")
    return names


def spread(samples: list[tuple[str, int]], limit: int | None) -> list[tuple[str, int]]:
    """`limit` samples at equal distances, since folders are sorted by class."""
    if limit is None or limit >= len(samples):
        return samples
    if limit < 1:
        raise ValueError(f"extrapolate: --limit must be at least 1, got {limit}.")
    return [samples[i * len(samples) // limit] for i in range(limit)]


def checked_device(name: str):
    """A torch device that exists here."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name} is not usable: {str(error).splitlines()[0]}") from error
    return device


def train_size(model: Any) -> tuple[int, int] | None:
    """Pixels that the model was made for, where it says so."""
    embed = getattr(model, "patch_embed", None)
    if hasattr(model, "train_grid") and embed is not None:
        return tuple(n * p for n, p in zip(model.train_grid, embed.patch_size))
    size = getattr(embed, "img_size", None)
    return tuple(size) if size is not None else None


def write_csv(file: Path, name: str, points: Sequence[Point]) -> None:
    """All points; an existing file is refused."""
    with file.open("x", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for p in points:
            shares = (f"{x:.6f}" for x in (p.top1, p.low, p.high, p.top5, p.loss))
            writer.writerow((name, *p.size, p.method, p.images, *shares, f"{p.speed:.2f}"))


def curve_table(points: Sequence[Point], name: str) -> Table:
    """top-1 in per cent with its interval, a line a size, a column a method."""
    methods = list(dict.fromkeys(p.method for p in points))
    table = Table(
        title=f"{name}: top-1 accuracy in % on {points[0].images} images", caption="95 % Wilson intervals"
    )
    table.add_column("size", justify="right", style="bold")
    for method in methods:
        table.add_column(method, justify="right")
    for size in dict.fromkeys(p.size for p in points):
        row = {p.method: f"{100 * p.top1:.1f} ({100 * p.low:.1f}–{100 * p.high:.1f})" for p in points if p.size == size}
        table.add_row(by(size), *(row[method] for method in methods))
    return table


def curve_figure(points: Sequence[Point], *, title: str, train: tuple[int, int] | None = None) -> Figure:
    """Accuracy against the root of the pixels: a line through square sizes, lone marks for others."""
    figure = Figure(figsize=(8, 5), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=13, color=INK, pad=12)
    for i, method in enumerate(dict.fromkeys(p.method for p in points)):
        own = sorted((p for p in points if p.method == method), key=lambda p: math.prod(p.size))
        square = [p for p in own if p.size[0] == p.size[1]]
        style = dict(color=COLOURS[i % len(COLOURS)], marker=MARKS[i % len(MARKS)], markersize=5.5)
        axes.plot([p.size[0] for p in square], [100 * p.top1 for p in square], label=method, linewidth=1.8, **style)
        axes.fill_between(
            [p.size[0] for p in square], [100 * p.low for p in square], [100 * p.high for p in square], color=style["color"],
            alpha=0.12, linewidth=0,
        )  # fmt: skip
        lone = [p for p in own if p not in square]
        places = [math.sqrt(math.prod(p.size)) for p in lone]
        axes.plot(
            places, [100 * p.top1 for p in lone], linestyle="", fillstyle="none", label=None if square else method, **style
        )
    for area in {math.prod(p.size) for p in points if p.size[0] != p.size[1]}:
        text = ", ".join(dict.fromkeys(by(p.size) for p in points if math.prod(p.size) == area and p.size[0] != p.size[1]))
        axes.annotate(text, (math.sqrt(area), 0.01), xycoords=("data", "axes fraction"), rotation=90, fontsize=9, color=MUTED,
                      ha="right", va="bottom")  # fmt: skip
    if train is not None:
        axes.axvline(math.sqrt(math.prod(train)), color=MUTED, linestyle="--", linewidth=1, zorder=0)
        axes.annotate(" trained", (math.sqrt(math.prod(train)), 1.0), xycoords=("data", "axes fraction"), fontsize=9, va="top",
                      color=MUTED)  # fmt: skip
    axes.set_xlabel("image side (pixels; root of the area where not square, open marks)", fontsize=11)
    axes.set_ylabel("top-1 accuracy (%), 95 % interval", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.7)
    axes.legend(frameon=False, fontsize=10)
    return figure


def _progress() -> Progress:
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def _unique(option: str, values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"extrapolate: {option} names something twice: {values}.")


def _tuple(values: list[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)
