"""A picture of each diagnosis, as `matplotlib.figure.Figure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..plots.figures import ACCENT, HEADS, INK, MUTED
from .attention import AttentionDistance, LogitDecay
from .decodability import Decodability
from .equivariance import Change
from .padding import PaddingPattern
from .relevance import Relevance
from .three_cell import ThreeCell
from .wavelengths import Wavelengths

SECOND = "#D55E00"  # vermilion of the Okabe-Ito palette


def _figure(title: str, heading: str, *, width: float = 8, height: float = 5) -> Figure:
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    figure.suptitle(f"{heading}\n", fontsize=13, color=INK)
    figure.text(0.5, 0.945 if height >= 4.5 else 0.925, title, ha="center", va="top", fontsize=9.5, color=MUTED)
    return figure


def _tidy(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def three_cell_figure(found: ThreeCell, title: str) -> Figure:
    """Bars of the six questions against guessing."""
    how = "linear probe of the frozen model" if found.mode == "probe" else "a trained copy"
    figure = _figure(title, f"Three-cell experiment: {100 * float(found.accuracy.mean()):.1f} % right ({how})")
    axes = figure.subplots()
    values = (100 * found.accuracy).tolist()
    axes.barh(range(len(values)), values, color=[ACCENT] * 3 + [SECOND] * 3, height=0.65)
    for i, value in enumerate(values):
        axes.text(value - 1, i, f"{value:.0f}", ha="right", va="center", color="white", fontsize=10)
    axes.axvline(50, color=INK, linestyle="--", linewidth=1)
    axes.annotate("guessing", (50, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9.5)
    axes.set_yticks(range(len(values)), found.questions, fontsize=10)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("right answers on held-out images (%)", fontsize=11)
    _tidy(axes)
    return figure


def equivariance_figure(found: dict[str, Change], title: str) -> Figure:
    """Relative errors of every change on a logarithmic axis."""
    figure = _figure(title, "What shifting and scaling change (relative error; 0: equivariant)")
    axes = figure.subplots()
    floor = 1e-7
    parts = (("features", ACCENT, -0.25), ("logits", SECOND, 0.0), ("scores", "#009E73", 0.25))
    for part, colour, off in parts:
        points = [(i, getattr(change, part)) for i, change in enumerate(found.values()) if getattr(change, part) is not None]
        places = [i + off for i, _ in points]
        axes.barh(places, [max(v, floor) for _, v in points], height=0.22, left=floor / 10, color=colour, label=LABEL[part])
        for place, (_, value) in zip(places, points):
            text = f"{value:.2g}" if value >= floor else "0" if value == 0 else f"< {floor:g}"
            axes.text(max(value, floor) * 1.15, place, text, va="center", fontsize=9, color=INK)
    axes.set_xscale("log")
    axes.set_xlim(floor / 10, 60)
    axes.set_yticks(range(len(found)), found, fontsize=11)
    axes.invert_yaxis()
    axes.set_xlabel("‖changed − original‖ / ‖original‖", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3)
    _tidy(axes)
    return figure


LABEL = {"features": "patch features", "logits": "output", "scores": "attention logits, block 0"}


def decay_figure(found: LogitDecay, title: str) -> Figure:
    """One line a layer, the mean of its heads."""
    figure = _figure(title, f"Attention logits against distance: slope {float(found.slope.mean()):.2g} a patch")
    axes = figure.subplots()
    colours = _layers(len(found.mean))
    for i, line in enumerate(found.mean.nanmean(1)):
        axes.plot(found.distance.numpy(), line.numpy(), color=colours.to_rgba(i), linewidth=1.3, marker="o", markersize=3)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("distance between query and key (patches)", fontsize=11)
    axes.set_ylabel("attention logit − mean of its query", fontsize=11)
    _tidy(axes)
    _bar(figure, axes, colours, len(found.mean))
    return figure


def wavelengths_figure(found: dict[str, Wavelengths], title: str) -> Figure:
    """Wavelengths of every layer and head, sorted, against the longest side of the grid."""
    figure = _figure(title, "Wavelengths against the grid", height=5 if len(found) == 1 else 4.6 * len(found))
    for axes, (name, waves) in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found.items()):
        layers, heads, pairs = waves.patches.shape
        colours = _layers(layers)
        for i, layer in enumerate(waves.patches.sort(-1).values):
            for line in layer:
                line = line[line.isfinite()]
                axes.plot(range(1, len(line) + 1), line.numpy(), color=colours.to_rgba(i), linewidth=0.8, alpha=0.8)
        longest = max(waves.grid)
        axes.axhline(longest, color=INK, linestyle="--", linewidth=1)
        axes.annotate(
            f"one turn over the grid ({longest} patches)", (0.99, longest), xycoords=("axes fraction", "data"), va="bottom",
            ha="right", fontsize=9.5, color=INK,
        )  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        share = 100 * float(waves.longer.mean())
        axes.set_xlabel(f"channel pair, shortest first; {share:.0f} % make less than one turn over the grid", fontsize=11)
        axes.set_ylabel("wavelength (patches)", fontsize=11)
        axes.set_title(f"{name}: {pairs} pairs, {heads} head(s), {layers} layer(s)", fontsize=10.5)
        _tidy(axes)
        _bar(figure, axes, colours, layers)
    return figure


def distance_figure(found: AttentionDistance, title: str) -> Figure:
    """A dot a head, a line for the mean of each layer."""
    figure = _figure(title, "Mean attention distance of each head")
    axes = figure.subplots()
    layers, heads = found.distance.shape
    axes.scatter(
        torch.arange(layers).repeat_interleave(heads).numpy(), found.distance.flatten().numpy(), s=22, color=ACCENT, alpha=0.6,
        linewidth=0, label="heads",
    )  # fmt: skip
    axes.plot(range(layers), found.distance.mean(1).numpy(), color=INK, linewidth=1.4, label="mean of the layer")
    axes.axhline(found.uniform, color=MUTED, linestyle="--", linewidth=1, label="attention to all patches alike")
    axes.set_ylim(0, 1.12 * max(float(found.distance.max()), found.uniform))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer", fontsize=11)
    axes.set_ylabel("distance weighted by attention (patches)", fontsize=11)
    axes.legend(frameon=False, fontsize=10, loc="best")
    _tidy(axes)
    return figure


def decodability_figure(found: Decodability, title: str) -> Figure:
    """R² of row and column along the model; values below -0.2 are drawn there."""
    figure = _figure(title, "Can a linear probe tell where a token is?")
    axes = figure.subplots()
    places = range(len(found.places))
    for axis, (name, colour, mark) in enumerate((("row", ACCENT, "o"), ("column", SECOND, "s"))):
        axes.plot(places, found.r2[:, axis].clamp_min(-0.2).numpy(), color=colour, marker=mark, markersize=5, label=name)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_ylim(-0.25, 1.05)
    every = max(1, len(found.places) // 14)
    axes.set_xticks(places[::every], [p.removeprefix("block ") for p in found.places[::every]], fontsize=9.5)
    axes.set_xlabel("features of: patches before any encoding, input of block 0, then after each block", fontsize=11)
    axes.set_ylabel("R² on unseen images", fontsize=11)
    axes.legend(frameon=False, fontsize=10)
    _tidy(axes)
    return figure


def padding_figure(found: PaddingPattern, title: str) -> Figure:
    """Maps at a few places of the model, and the strength along it."""
    figure = _figure(title, f"Pattern of a constant image (largest strength {float(found.strength.max()):.2g})", height=6.4)
    chosen = sorted({round(i * (len(found.places) - 1) / 3) for i in range(4)})
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    limit = max(float(found.maps.max()), 1e-5)
    panels = top.subplots(1, len(chosen), squeeze=False)[0]
    for axes, i in zip(panels, chosen):
        shown = axes.imshow(found.maps[i].numpy(), cmap="cividis", vmin=0, vmax=limit)
        axes.set_title(found.places[i], fontsize=10.5)
        _patches(axes)
    panels[0].set_ylabel("row (patches)", fontsize=10)
    top.colorbar(shown, ax=list(panels), label="distance from the mean token\n/ norm of tokens", shrink=0.8)
    axes = bottom.subplots()
    axes.plot(range(len(found.places)), found.strength.numpy(), color=ACCENT, marker="o", markersize=5)
    axes.set_ylim(0, 1.1 * max(float(found.strength.max()), 1e-5))
    every = max(1, len(found.places) // 14)
    axes.set_xticks(
        range(0, len(found.places), every), [p.removeprefix("block ") for p in found.places[::every]], fontsize=9.5
    )
    axes.set_xlabel("after: patch embedding, input of block 0, each block", fontsize=10.5)
    axes.set_ylabel("strength (rms)", fontsize=10.5)
    _tidy(axes)
    return figure


def relevance_figure(found: Relevance, title: str) -> Figure:
    """Maps of content and position on one scale, and what each way of the encoding gained."""
    of = "the features" if found.target is None else f"class {found.target}"
    figure = _figure(
        title, f"Relevance for {of}: total {found.total:.3g}, conserved up to {100 * found.error:.2g} %", width=9.5, height=4.4
    )
    left, right = figure.subfigures(1, 2, width_ratios=(1.9, 1))
    panels = left.subplots(1, 2)
    limit = max(float(torch.stack((found.content, found.position)).abs().max()), 1e-12)
    for axes, name, values in zip(panels, ("content", "position"), (found.content, found.position)):
        shown = axes.imshow(values.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.set_title(f"{name} (sum {float(values.sum()):.3g})", fontsize=10.5)
        _patches(axes)
    panels[0].set_ylabel("row (patches)", fontsize=10)
    left.colorbar(shown, ax=list(panels), shrink=0.62, label="relevance of a patch")
    axes = right.subplots()
    used = {f"position:\n{way}": value for way, value in found.ways.items() if value}
    bars = {"content": float(found.content.sum()), **used}
    axes.barh(range(len(bars)), list(bars.values()), color=[INK] + [ACCENT] * len(used), height=0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(bars)), bars, fontsize=9.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlabel("relevance, all tokens", fontsize=10)
    _tidy(axes)
    return figure


def _patches(axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("column (patches)", fontsize=10)


def _layers(count: int) -> ScalarMappable:
    return ScalarMappable(Normalize(0, max(count - 1, 1)), HEADS)


def _bar(figure: Figure, axes, colours: ScalarMappable, layers: int) -> None:
    if layers > 1:
        figure.colorbar(colours, ax=axes, label="layer", ticks=sorted({0, layers // 2, layers - 1}))


DRAW: dict[str, Callable[[Any, str], Figure]] = {
    "three_cell": three_cell_figure, "equivariance": equivariance_figure, "logit_decay": decay_figure,
    "wavelengths": wavelengths_figure, "attention_distance": distance_figure, "decodability": decodability_figure,
    "padding": padding_figure, "relevance": relevance_figure,
}  # fmt: skip
