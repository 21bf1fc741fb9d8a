"""Accuracy against resolution: as a table in the terminal, as a picture, and as a page in one file."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

Size = tuple[int, int]  # height, width in pixels
COLOURS = {"learned": "#0072B2", "rope_axial": "#D55E00", "comrope": "#009E73"}  # Okabe-Ito, told apart by all eyes


@dataclass(frozen=True)
class Curve:
    """Top-1 accuracy in percent of one trained model, at several sizes, under one coordinate convention."""

    name: str
    coords: str  # "extend", "rescale", or "resampled" for a learned table
    top1: dict[Size, float]

    @property
    def label(self) -> str:
        return {
            "extend": f"{self.name}, extended positions",
            "rescale": f"{self.name}, rescaled positions",
            "resampled": f"{self.name}, resampled table",
        }[self.coords]


def print_table(curves: list[Curve], console: Console) -> None:
    """Rows are curves, columns are sizes; the best of each column is bold."""
    sizes = list(curves[0].top1)
    table = Table(title="Top-1 accuracy (%) on unseen typefaces, trained at {}x{}".format(*sizes[0]))
    table.add_column("encoding, positions")
    for size in sizes:
        table.add_column("{}x{}".format(*size), justify="right")
    best = {size: max(curve.top1[size] for curve in curves) for size in sizes}
    for curve in curves:
        cells = [f"[bold]{v:.1f}[/]" if v == best[s] else f"{v:.1f}" for s, v in curve.top1.items()]
        table.add_row(curve.label, *cells)
    console.print(table)


def write_picture(curves: list[Curve], path: Path, *, train_size: Size) -> Path:
    """Accuracy against scale for square sizes, and bars for the non-square one, as PNG."""
    square = [size for size in curves[0].top1 if size[0] == size[1]]
    other = [size for size in curves[0].top1 if size[0] != size[1]]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for curve in curves:
        style = {"extend": "--", "rescale": "-", "resampled": "-"}[curve.coords]
        marker = {"extend": "s", "rescale": "o", "resampled": "^"}[curve.coords]
        left.plot(
            [size[0] / train_size[0] for size in square], [curve.top1[size] for size in square],
            style, marker=marker, color=COLOURS.get(curve.name), label=curve.label,
        )  # fmt: skip
    left.set(xlabel=f"test resolution / training resolution ({train_size[0]} px)", ylabel="top-1 accuracy (%)")
    left.set_ylim(0, 100)
    left.set_xticks([size[0] / train_size[0] for size in square])
    left.grid(alpha=0.3)
    left.legend(fontsize=8)
    labels = [curve.label.replace(", ", "\n") for curve in curves]
    hatches = {"extend": "//", "rescale": "", "resampled": ""}
    for size in other[:1]:
        bars = right.barh(
            labels, [curve.top1[size] for curve in curves], color=[COLOURS.get(curve.name) for curve in curves],
            hatch=[hatches[curve.coords] for curve in curves], edgecolor="white",
        )  # fmt: skip
        right.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
        right.set(xlabel="top-1 accuracy (%)", xlim=(0, 110), title="{}x{} px, non-square".format(*size))
    right.invert_yaxis()
    right.tick_params(axis="y", labelsize=8)
    figure.savefig(path, dpi=140)
    return path


def write_html(curves: list[Curve], picture: Path, path: Path, *, steps: int, minutes: float) -> Path:
    """Table and picture in one file that needs nothing else."""
    sizes = list(curves[0].top1)
    image = base64.b64encode(picture.read_bytes()).decode()
    head = "".join(f"<th>{h}&times;{w}</th>" for h, w in sizes)
    rows = "".join(
        f"<tr><td>{html.escape(curve.label)}</td>{''.join(f'<td>{v:.1f}</td>' for v in curve.top1.values())}</tr>"
        for curve in curves
    )
    page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>vispe demo</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse}}td,th{{padding:.3rem .8rem;border-bottom:1px solid #ccc;text-align:right}}
td:first-child,th:first-child{{text-align:left}}img{{max-width:100%}}</style>
<h1>Which positional encoding survives a larger image?</h1>
<p>Three ViTs (6 blocks, 128 channels, patch 4) trained at {sizes[0][0]}&times;{sizes[0][1]} pixels for {steps} steps of
32 images on Glyph-47, then tested on typefaces that were not in training. Same weights in the two rows of a rotary encoding:
extended positions count on beyond the training grid, rescaled positions squeeze the larger grid onto it.</p>
<table><tr><th>top-1 accuracy (%)</th>{head}</tr>{rows}</table>
<p><img alt="accuracy against resolution" src="data:image/png;base64,{image}"></p>
<p>One seed and a short schedule: two seeds of one encoding differ by several points here, so gaps inside that spread prove
nothing. The whole demo took {minutes:.1f} minutes.</p></html>
"""
    path.write_text(page, encoding="utf-8")
    return path
