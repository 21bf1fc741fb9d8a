"""From rows to the lines of the tables: one line for each encoding, mode and setting, over its seeds. Accuracies in percent."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from train.study.config import StudyError
from train.study.results import Row
from train.study.stats import Estimate, estimate, paired, ranks

Size = tuple[int, int]


class Mode(NamedTuple):
    """An encoding and how it treats positions."""

    encoding: str
    coords: str
    method: str

    @property
    def label(self) -> str:
        """In words."""
        extra = [] if self.coords == "own" else [{"extend": "extended", "rescale": "rescaled"}[self.coords]]
        return ", ".join([self.encoding, *extra, *([] if self.method == "-" else [self.method])])


class Place(NamedTuple):
    """A test setting."""

    protocol: str
    size: Size
    option: str

    @property
    def label(self) -> str:
        """``32x48``, with the shift behind it."""
        return "{}x{}".format(*self.size) + (f" by {self.option}" if self.option else "")


@dataclass(frozen=True)
class Line:
    """One line of the long table.

    Attributes:
        mode, place: What was tested.
        default: Whether the model is so by itself.
        top1: Percent, over seeds.
        difference: Percentage points to the baseline as it is by itself, same seeds; None without one.
        rank: Best and worst possible rank among all lines of the place; None without an interval.
        params, images_per_s: Means over seeds.
    """

    mode: Mode
    place: Place
    default: bool
    top1: Estimate
    difference: Estimate | None
    rank: tuple[int, int] | None
    params: int
    images_per_s: float


class Summary:
    """All lines of a results file.

    Args:
        rows: Of one study.
        baseline: The encoding that differences are taken against.
        confidence: Coverage of the intervals.
    """

    def __init__(self, rows: list[Row], *, baseline: str, confidence: float = 0.95) -> None:
        if not rows:
            raise StudyError("there is no finished cell yet, so there is nothing to show")
        self.rows, self.baseline, self.confidence = rows, baseline, confidence
        self.values: dict[tuple[Place, Mode], dict[int, float]] = defaultdict(dict)
        self.defaults: dict[str, Mode] = {}
        for row in rows:
            if row.metric == "top1":
                mode, place = Mode(row.encoding, row.coords, row.method), Place(row.protocol, parse_size(row.size), row.option)
                self.values[place, mode][row.seed] = 100 * row.value
                if row.default:
                    self.defaults[row.encoding] = mode
        self.train_size = parse_size(next(row.size for row in rows if row.protocol == "train"))
        self.encodings = list(dict.fromkeys(row.encoding for row in rows))
        self.places = list(dict.fromkeys(place for place, _ in self.values))
        self.modes = sorted(
            dict.fromkeys(mode for _, mode in self.values),
            key=lambda mode: (self.encodings.index(mode.encoding), mode != self.defaults[mode.encoding]),
        )
        self.at_home = Place("resize", self.train_size, "")

    def at(self, place: Place, mode: Mode) -> dict[int, float]:
        """Percent for each seed. At the training size all modes are the same, which is tested once."""
        if (place, mode) in self.values:
            return self.values[place, mode]
        if place.size == self.train_size:
            return self.values.get((place, self.defaults[mode.encoding]), {})
        return {}

    def mean_over(self, places: Iterable[Place], mode: Mode) -> dict[int, float]:
        """Mean over several places for each seed that has all of them; empty without any."""
        found = [self.at(place, mode) for place in places]
        seeds = set.intersection(*map(set, found)) if found else set()
        return {seed: statistics.fmean(values[seed] for values in found) for seed in sorted(seeds)}

    def estimate(self, values: dict[int, float]) -> Estimate:
        """Over seeds."""
        return estimate(list(values.values()), self.confidence)

    def lines(self) -> list[Line]:
        """Every line, place by place."""
        found = []
        for place in self.places:
            modes = [mode for mode in self.modes if (place, mode) in self.values]
            estimates = [self.estimate(self.values[place, mode]) for mode in modes]
            for mode, top1, rank in zip(modes, estimates, ranks(estimates)):
                found.append(
                    Line(
                        mode, place, mode == self.defaults[mode.encoding], top1, self.difference(place, mode), rank,
                        params=int(self.fact(mode.encoding, lambda row: row.params)), images_per_s=self.speed(mode.encoding),
                    )
                )  # fmt: skip
        return found

    def difference(self, place: Place, mode: Mode) -> Estimate | None:
        """To the baseline as it is by itself, in percentage points; None where it was not tested, or for itself."""
        own = self.defaults.get(self.baseline)
        if own is None or own == mode:
            return None
        return paired(self.values.get((place, mode), {}), self.values.get((place, own), {}), self.confidence)

    def select(self, protocol: str, accept: Callable[[Size], bool] = lambda size: True) -> list[Place]:
        """Places of a protocol whose size is accepted."""
        return [place for place in self.places if place.protocol == protocol and accept(place.size)]

    def fact(self, encoding: str, get: Callable[[Row], float]) -> float:
        """Mean over the cells of an encoding."""
        return statistics.fmean({row.seed: get(row) for row in self.rows if row.encoding == encoding}.values())

    def speed(self, encoding: str) -> float:
        """Images a second in training."""
        return self.fact(encoding, lambda row: row.images_per_s)

    def hours(self) -> float:
        """Of all training and testing, over all cells."""
        return sum(row.value for row in self.rows if row.metric == "seconds") / 3600


def parse_size(text: str) -> Size:
    """(H, W) of ``HxW``."""
    height, width = text.split("x")
    return int(height), int(width)


def larger_squares(size: Size) -> Callable[[Size], bool]:
    """Whether a size is a square larger than another one."""
    return lambda found: found[0] == found[1] and found[0] > max(size)


def other_shape(size: Size) -> Callable[[Size], bool]:
    """Whether a size has another aspect ratio than another one."""
    return lambda found: found[0] * size[1] != found[1] * size[0]
