"""What the page and the Markdown both say: cells of the tables as text, and the facts at the head."""

from train.study.stats import Estimate
from train.study.summary import Line, Mode, Place, Summary

LONG = [
    "encoding", "coordinates", "method", "by itself", "protocol", "size", "top-1 %", "±", "interval", "to baseline",
    "interval of it", "rank", "seeds", "parameters", "images/s",
]  # fmt: skip
TITLES = {
    "resize": "Pictures drawn at other sizes",
    "canvas": "The picture of training size in a larger field (canvas)",
    "shift": "Shifted pictures (down, right, in frames)",
    "crop": "Cropped pictures at the scale of training",
}


def long_cells(line: Line) -> list[str]:
    """One line of the long table."""
    top1, diff = line.top1, line.difference
    return [
        line.mode.encoding, line.mode.coords, line.mode.method, "yes" if line.default else "no", line.place.protocol,
        line.place.label, f"{top1.mean:.1f}", f"{top1.std:.1f}" if top1.bounded else "", ends(top1),
        "" if diff is None else f"{diff.mean:+.1f}", "" if diff is None else ends(diff, sign="+"), rank(line.rank),
        str(top1.n), str(line.params), f"{line.images_per_s:.0f}",
    ]  # fmt: skip


def ends(value: Estimate, sign: str = "") -> str:
    """``62.2 to 69.8``; empty without an interval."""
    return f"{value.low:{sign}.1f} to {value.high:{sign}.1f}" if value.bounded else ""


def rank(value: tuple[int, int] | None) -> str:
    """``3`` where nothing overlaps, ``3–7`` for a group, empty without an interval."""
    if value is None:
        return ""
    return str(value[0]) if value[0] == value[1] else f"{value[0]}–{value[1]}"


def wide(summary: Summary, protocol: str) -> tuple[list[str], list[tuple[Mode, list[str]]]]:
    """Heads and lines of a table with one column for each place of a protocol: ``mean ± std``."""
    places = summary.select(protocol)
    modes = [mode for mode in summary.modes if any((place, mode) in summary.values for place in places)]
    heads = ["encoding", "coordinates", "method", "seeds", *(place.label for place in places)]
    lines = []
    for mode in modes:
        seeds = len({seed for place in places for seed in summary.at(place, mode)})
        own = "*" if mode == summary.defaults[mode.encoding] else ""
        cells = [mode.encoding, mode.coords + own, mode.method, str(seeds)]
        lines.append((mode, cells + [spread(summary, place, mode) for place in places]))
    return heads, lines


def spread(summary: Summary, place: Place, mode: Mode) -> str:
    """``66.0 ± 1.5``; a dash where it was not tested."""
    values = summary.at(place, mode)
    if not values:
        return "-"
    found = summary.estimate(values)
    return f"{found.mean:.1f} ± {found.std:.1f}" if found.bounded else f"{found.mean:.1f}"


def facts(summary: Summary) -> list[str]:
    """What the numbers are of."""
    rows = summary.rows
    cells = {(row.encoding, row.seed) for row in rows}
    images = max(row.images for row in rows)
    commits = sorted({row.commit for row in rows})
    kinds = len({(row.encoding, row.config_hash) for row in rows})
    return [
        f"{len(cells)} trained models: {len(summary.encodings)} encodings, seeds "
        f"{', '.join(map(str, sorted({row.seed for row in rows})))}; {kinds} configurations.",
        f"Trained at {'{}x{}'.format(*summary.train_size)} pixels; {images} test images a setting.",
        f"Hours of training and testing, summed over the cells: {summary.hours():.1f} (without starts that were killed).",
        f"Code: {', '.join(commits)}.",
    ]
