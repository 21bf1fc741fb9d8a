"""The recommendations: sentences that fixed rules make of the numbers, and that say so when the numbers do not decide."""

from dataclasses import dataclass

from train.study.stats import Estimate, separated
from train.study.summary import Mode, Place, Summary, larger_squares, other_shape

RULES = """Rules. A mean over seeds has a Student t interval. The choice for a purpose is the highest mean over the places
named with it, among everything tested there by at least two seeds; whatever has an interval that overlaps that of
the choice is listed as not separated from it. Lowest cost is the highest training throughput among the encodings
that are not separated from the best at the training size. A rank is one number only where no other interval
overlaps, and a range of ranks otherwise. The intervals are of the spread over seeds; all cells see the same test
images."""


@dataclass(frozen=True)
class Advice:
    """One recommendation.

    Attributes:
        purpose: What it is for.
        text: The sentences.
    """

    purpose: str
    text: str


def recommend(summary: Summary) -> list[Advice]:
    """All recommendations that the results have places for."""
    size, own = summary.train_size, list(summary.defaults.values())
    found = [best(summary, "Fixed size, as in training", [summary.at_home], own)]
    for purpose, places in (
        ("Larger inputs", summary.select("resize", larger_squares(size))),
        ("Non-square inputs", summary.select("resize", other_shape(size))),
        ("Larger fields at the same scale (canvas)", summary.select("canvas")),
        ("Shifted inputs", summary.select("shift")),
        ("Cropped inputs", summary.select("crop")),
    ):
        if places:
            found.append(best(summary, purpose, places, summary.modes))
    return [*found, cheapest(summary)]


def candidates(summary: Summary, places: list[Place], modes: list[Mode]) -> dict[Mode, Estimate]:
    """Estimates of the modes that were tested at all places by at least two seeds."""
    values = {mode: summary.mean_over(places, mode) for mode in modes}
    return {mode: summary.estimate(v) for mode, v in values.items() if len(v) > 1}


def best(summary: Summary, purpose: str, places: list[Place], modes: list[Mode]) -> Advice:
    """The highest mean over the places, and what is not separated from it."""
    where = ", ".join(place.label for place in places)
    found = candidates(summary, places, modes)
    if not found:
        return Advice(purpose, f"Nothing has two seeds at {where}: no interval, so no recommendation.")
    chosen = max(found, key=lambda mode: found[mode].mean)
    close = separated(found[chosen], {mode: e for mode, e in found.items() if mode != chosen})
    text = f"{chosen.label}: {interval(found[chosen], summary.confidence)}, over {where}. "
    if close:
        text += f"Not separated from it, so that these results do not decide: {names(close, found)}."
    elif len(found) > 1:
        text += f"Separated from all {len(found) - 1} others."
    else:
        text += "It is the only candidate."
    return Advice(purpose, text)


def cheapest(summary: Summary) -> Advice:
    """The fastest in training among those that are not separated from the best at the training size."""
    purpose = "Lowest cost"
    found = candidates(summary, [summary.at_home], list(summary.defaults.values()))
    speeds = {mode: summary.speed(mode.encoding) for mode in found}
    if not found or not all(speeds.values()):
        return Advice(purpose, "Accuracies of two seeds or throughputs are missing, so no recommendation.")
    top = max(found, key=lambda mode: found[mode].mean)
    good = [top, *separated(found[top], {mode: e for mode, e in found.items() if mode != top})]
    chosen, fastest = max(good, key=speeds.get), max(speeds, key=speeds.get)
    values = {mode: interval(found[mode], summary.confidence) for mode in (chosen, top, fastest)}
    text = f"{chosen.encoding}: {speeds[chosen]:.0f} images a second in training, with {values[chosen]} at the training size; "
    text += f"best there: {top.encoding}, {values[top]}, {speeds[top]:.0f} images a second."
    if fastest != chosen:
        text += f" The fastest of all is {fastest.encoding} ({speeds[fastest]:.0f}), with "
        text += f"{values[fastest]}, separated from the best."
    return Advice(purpose, text + " Throughputs depend on the machine and what else it did; small differences mean nothing.")


def names(modes: list[Mode], found: dict[Mode, Estimate]) -> str:
    """With their means."""
    return "; ".join(f"{mode.label} ({found[mode].mean:.1f})" for mode in modes)


def interval(value: Estimate, confidence: float) -> str:
    """``66.0 % (95 % interval 62.2 to 69.8, 3 seeds)``."""
    if not value.bounded:
        return f"{value.mean:.1f} % (one seed, no interval)"
    return f"{value.mean:.1f} % ({100 * confidence:g} % interval {value.low:.1f} to {value.high:.1f}, {value.n} seeds)"
