"""Accuracy against resolution, and cost against accuracy, as PNG."""

import io
import math

from matplotlib import colormaps
from matplotlib.figure import Figure

from train.study.summary import Mode, Summary

MARKERS = "os^Dv<>pPX*hd"


def png(figure: Figure) -> bytes:
    """The picture as a file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def style(summary: Summary, encoding: str) -> dict:
    """The same colour and marker for an encoding in every picture."""
    number = summary.encodings.index(encoding)
    return {"color": colormaps["tab20"](number % 20), "marker": MARKERS[number % len(MARKERS)], "markersize": 5}


def resolution_curves(summary: Summary) -> bytes:
    """Square sizes: one panel for the models as they are, one for each other convention or method."""
    squares = sorted(p for p in summary.select("resize", lambda size: size[0] == size[1]))
    panels: dict[str, list[Mode]] = {"as it is": list(summary.defaults.values())}
    for mode in summary.modes:
        if mode != summary.defaults[mode.encoding]:
            title = f"{mode.coords} coordinates" if mode.method == "-" else f"{mode.method}, {mode.coords} coordinates"
            panels.setdefault(title, []).append(mode)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.6 * columns + 2.2, 3.9 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axis, (title, modes) in zip(axes, panels.items()):
        for mode in modes:
            points = [(p.size[0], summary.estimate(v)) for p in squares if (v := summary.at(p, mode))]
            if points:
                x, y = zip(*points)
                spread = [e.std if e.bounded else 0 for e in y]
                axis.errorbar(
                    [side / summary.train_size[0] for side in x], [e.mean for e in y], spread, lw=1.2, elinewidth=0.6,
                    label=mode.encoding, **style(summary, mode.encoding),
                )  # fmt: skip
        axis.set(title=title, xlabel="test side / training side", ylabel="top-1 accuracy (%)", ylim=(0, 100))
        axis.grid(alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.legend(*next(iter(figure.axes)).get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return png(figure)


def cost_picture(summary: Summary) -> bytes:
    """Training throughput against accuracy at the training size, with intervals."""
    figure = Figure(figsize=(8.5, 5.5), layout="constrained")
    axis = figure.subplots()
    for mode in summary.defaults.values():
        value = summary.estimate(summary.at(summary.at_home, mode))
        error = [[value.mean - value.low], [value.high - value.mean]] if value.bounded else None
        speed = summary.speed(mode.encoding)
        axis.errorbar([speed], [value.mean], error, capsize=2, elinewidth=0.8, **style(summary, mode.encoding))
        axis.annotate(mode.encoding, (speed, value.mean), xytext=(5, 3), textcoords="offset points", fontsize=8)
    size = "{}x{}".format(*summary.train_size)
    axis.set(xlabel="images a second in training", ylabel=f"top-1 accuracy at {size} (%), with interval")
    axis.grid(alpha=0.3)
    return png(figure)
