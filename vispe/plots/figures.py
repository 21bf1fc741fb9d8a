"""Pictures of an encoding, as `matplotlib.figure.Figure` objects: show them in a notebook or call `savefig`."""

from __future__ import annotations

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from torch import Tensor

from ..encodings.base import Encoding
from ..positions import Positions
from .data import decay_curve, impulse_response, signal_kind, similarity_map

INK, ACCENT, MUTED = "#222222", "#0072B2", "#8a8a8a"  # blue of the Okabe-Ito palette
HEADS = "viridis"
MEANING = {
    "logits": "similarity (logit / logit without encoding)",
    "added": "cosine similarity of added vectors",
    "impulse": "response to one token (rms over channels)",
    "none": "similarity (logit / logit without encoding)",
}


def _figure(width: float, height: float, title: str) -> Figure:
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    figure.suptitle(title, fontsize=13, color=INK)
    return figure


def _tidy(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def wavelength_plot(encoding: Encoding, grid: tuple[int, ...], *, title: str = "") -> Figure:
    """Wavelengths of all channel pairs in cells, one line a head, against the longest side of `grid`."""
    waves = encoding.wavelengths(grid)
    if waves is None:
        raise ValueError(f"wavelength_plot: {type(encoding).__name__} has no frequencies.")
    waves = waves.float().sort(dim=-1).values
    same = torch.allclose(waves.nan_to_num(posinf=0), waves[:1].nan_to_num(posinf=0), rtol=1e-3)
    waves = waves[:1] if same else waves
    figure = _figure(8, 5, title or f"{encoding.card.title}: wavelengths on a {_by(grid)} grid")
    axes = figure.subplots()
    heads, pairs = waves.shape
    colours = ScalarMappable(Normalize(0, max(heads - 1, 1)), HEADS)
    for head in range(heads):
        line = waves[head][waves[head].isfinite()]
        colour = ACCENT if heads == 1 else colours.to_rgba(head)
        axes.plot(range(1, len(line) + 1), line.numpy(), marker="o", markersize=3.5, linewidth=1, color=colour)
    still = int((~waves.isfinite()).sum())
    axes.axhline(max(grid), color=INK, linestyle="--", linewidth=1)
    axes.annotate(
        f"one turn over the grid ({max(grid)} cells)", (0.99, max(grid)), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", fontsize=10, color=INK,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if waves[waves.isfinite()].max() < 1000 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    note = f", {still} do not turn" if still else ""
    axes.set_xlabel(f"channel pair, shortest wavelength first ({pairs} a head{note})", fontsize=11)
    axes.set_ylabel("wavelength (patches)", fontsize=11)
    _tidy(axes)
    if heads > 1:
        figure.colorbar(colours, ax=axes, label="head", ticks=sorted({0, heads // 2, heads - 1}))
    return figure


def similarity_plot(encoding: Encoding, pos: Positions, query: int, *, title: str = "", panels: int = 4) -> Figure:
    """Maps of the similarity of one token to all others: the mean of all heads and the first few heads."""
    if pos.grid is None or len(pos.grid) != 2:
        raise ValueError(f"similarity_plot: draws images, needs positions of a full (H, W) grid, got grid={pos.grid}.")
    kind = signal_kind(encoding)
    values = impulse_response(encoding, pos, query) if kind == "impulse" else similarity_map(encoding, pos, query)
    maps = _panels(values, panels)
    heading = title or f"{encoding.card.title}: one patch to all others"
    figure = _figure(8, 4.6 if len(maps) <= 2 else 7.4, heading)
    note = "similarity depends on content here: shown is the response to one raised token" if kind == "impulse" else ""
    if kind != "impulse" and float(values.amax() - values.amin()) < 1e-5:
        note = "constant: with these parameters, places make no difference"
    if note:
        figure.suptitle(f"{heading}\n{note}", fontsize=12, color=INK)
    rows = 1 if len(maps) <= 2 else 2
    grid_axes = figure.subplots(rows, -(-len(maps) // rows), squeeze=False).flatten()
    limit = max(float(values.abs().max()), 1e-6)
    colour = dict(cmap="cividis", vmin=0, vmax=limit) if kind == "impulse" else dict(cmap="RdBu_r", vmin=-limit, vmax=limit)
    row, col = divmod(query, pos.grid[1])
    for axes, (name, image) in zip(grid_axes, maps):
        shown = axes.imshow(image.reshape(pos.grid).numpy(), **colour)
        axes.plot(col, row, marker="+", markersize=10, markeredgewidth=1.6, color="#111111" if kind != "impulse" else "white")
        axes.set_title(name, fontsize=11)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.set_xlabel("column (patches)", fontsize=10)
        axes.set_ylabel("row (patches)", fontsize=10)
    for axes in grid_axes[len(maps) :]:
        axes.set_visible(False)
    figure.colorbar(shown, ax=list(grid_axes), label=MEANING[kind], shrink=0.85)
    return figure


def _panels(values: Tensor, panels: int) -> list[tuple[str, Tensor]]:
    if values.shape[0] == 1 or torch.allclose(values, values[:1], atol=1e-4):
        return [("all heads" if values.shape[0] > 1 else "", values[0])]
    heads = range(min(panels - 1, values.shape[0]))
    return [(f"mean of {values.shape[0]} heads", values.mean(0)), *((f"head {h}", values[h]) for h in heads)]


def decay_plot(encoding: Encoding, pos: Positions, query: int, *, title: str = "") -> Figure:
    """Similarity against distance: the mean of all heads, its range over directions, and every head behind it."""
    decay = decay_curve(encoding, pos, query)
    figure = _figure(8, 5, title or f"{encoding.card.title}: decay with distance")
    axes = figure.subplots()
    distinct = not torch.allclose(decay.mean, decay.mean[:1], atol=1e-4)
    distance = decay.distance.numpy()
    if distinct:
        for head, line in enumerate(decay.mean):
            axes.plot(distance, line.numpy(), color=MUTED, alpha=0.45, linewidth=1, label="single heads" if head == 0 else None)
    low, high = decay.low.mean(0).numpy(), decay.high.mean(0).numpy()
    axes.fill_between(distance, low, high, color=ACCENT, alpha=0.18, linewidth=0, label="range over directions")
    name = "mean of all heads" if distinct else "mean over directions"
    axes.plot(distance, decay.mean.mean(0).numpy(), color=ACCENT, marker="o", markersize=4, linewidth=2, label=name)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("distance (patches)", fontsize=11)
    axes.set_ylabel(MEANING[signal_kind(encoding)], fontsize=11)
    axes.legend(frameon=False, fontsize=10)
    _tidy(axes)
    return figure


def _by(grid: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in grid)
