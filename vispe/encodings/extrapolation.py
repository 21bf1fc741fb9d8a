"""What a rotary encoding does on grids larger than trained: one setting, `encoding.set_extrapolation`, for every method.

    model.set_extrapolation("yarn")                                   a method, each axis by its own growth
    model.set_extrapolation("vision_ntk_pro2")                        a preset
    model.set_extrapolation(Extrapolation("ntk", axes="longest"))
    model.set_extrapolation(None)                                     as created

The growth s = n / n_train comes from the positions of each forward, so that one setting serves all sizes ("dynamic"), and
at the trained size nothing changes. The formulas are in `vispe/positions/extrapolate.py`; this file finds out, for the
frequencies (L, H, axes, P) of an encoding, which place in its series each has and in which unit. Coordinates grow with the grid
meanwhile (`resize="extend"`); tokens without a position stay where the coordinates begin.

Fixed frequencies belong to a series (`Rotary.series`) and take every method. Learned ones have no base: "pi", and "yarn" by the
turns that each component makes (the paper's own definition), apply; other methods are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..positions import NoisyPositions, Positions
from ..positions import extrapolate as formulas

Method = Literal["none", "pi", "ntk", "by_parts", "yarn", "lumina", "riflex", "dype_ntk", "dype_yarn"]
Temperature = Literal["none", "yarn", "log_n", "log_n_up", "fit_side", "fit_area"]
WITHOUT_SERIES = ("none", "pi", "yarn")
BY_TIME = ("lumina", "dype_ntk", "dype_yarn")


@dataclass(frozen=True)
class Series:
    """Where the frequencies of an axis come from: top · theta^(−i / pairs), i = 0 .. pairs − 1, some or all of them."""

    theta: float
    pairs: int
    top: float = 1.0

    def places(self, freqs: Tensor) -> Tensor:
        """i of each frequency, float64; 0 for pairs that do not turn with the axis."""
        speed = freqs.double().abs()
        place = -(speed / self.top).log() * (self.pairs / math.log(self.theta))
        return torch.where(speed > 0, place, 0.0)


@dataclass(frozen=True)
class Extrapolation:
    """A method and what it needs to know.

    Args:
        method: "none" leaves the frequencies (for a temperature alone); "dype_*": mind the notice in
            `vispe/positions/extrapolate.py`.
        axes: growth of each axis by itself ("own"), of the one that grew most for all ("longest"), or the root of the growth of
            the area ("area", Lumina).
        train: trained tokens on each axis; None for the train grid of the positions.
        factor: a fixed s where the grid is larger than trained, in place of n / n_train.
        temperature: of the attention. "yarn" multiplies queries and keys by 0.1 ln s + 1 each, s of the axis that grew most;
            "log_n" the logits by √(ln N / ln N_train) ("log_n_up": where that is above 1); "fit_side" and "fit_area" are FiT's
            pro1 and pro2, not 1 at the trained size, since its code doubles the length.
        turns: (fast, slow) of "yarn".
        parts: two such pairs, of "by_parts" and "dype_yarn".
        ends: see `formulas.kept`.
        watershed: of "lumina".
        lambda_s, lambda_t: of "dype_*".
        pair: of "riflex", counted from 1; None for the one whose period is nearest to `repeats`.
        repeats: of "riflex", the frame at which longer videos repeat; None for the trained frames.
    """

    method: Method = "yarn"
    axes: Literal["own", "longest", "area"] = "own"
    train: tuple[int, ...] | None = None
    factor: float | None = None
    temperature: Temperature = "none"
    turns: tuple[float, float] = (32.0, 1.0)
    parts: tuple[tuple[float, float], tuple[float, float]] = formulas.FIT_PARTS
    ends: formulas.Ends = "guarded"
    watershed: float = 0.3
    lambda_s: float = 2.0
    lambda_t: float = 2.0
    pair: int | None = None
    repeats: int | None = None

    def __post_init__(self) -> None:
        for option, choices in (("method", Method), ("temperature", Temperature), ("ends", formulas.Ends)):
            if getattr(self, option) not in get_args(choices):
                raise ValueError(f"Extrapolation: {option} must be one of {get_args(choices)}, got {getattr(self, option)!r}.")
        if self.axes not in ("own", "longest", "area"):
            raise ValueError(f"Extrapolation: axes must be 'own', 'longest' or 'area', got {self.axes!r}.")
        if self.factor is not None and self.factor < 1:
            raise ValueError(f"Extrapolation: factor must be at least 1, got {self.factor}.")

    @property
    def by_time(self) -> bool:
        """Whether the frequencies depend on the diffusion time."""
        return self.method in BY_TIME

    def check(self, name: str, series: Sequence[Series] | None) -> None:
        """Refuse what the frequencies of an encoding cannot do."""
        if series is None and self.method not in WITHOUT_SERIES:
            raise ValueError(
                f"{name}: its frequencies are learned or follow no geometric series, so that {self.method!r} has no base to "
                f"change; {WITHOUT_SERIES} work."
            )

    # ---- growth -----------------------------------------------------------------------------------------------------

    def sizes(self, name: str, pos: Positions) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens on each axis now and in training."""
        train = self.train or pos.train
        if pos.extent is None or train is None or pos.units == "custom":
            raise ValueError(
                f"{name}: extrapolation compares the grid with that of training, and these are custom coordinates; build the "
                f"positions with patch_grid(..., train=(H, W)), or call set_extrapolation(None)."
            )
        if len(train) != len(pos.extent):
            raise ValueError(f"{name}: extrapolation knows {len(train)} trained axes, the positions have {len(pos.extent)}.")
        return tuple(pos.extent), tuple(train)

    def scales(self, now: Sequence[int], train: Sequence[int]) -> list[float]:
        """s of each axis, at least 1."""
        own = [formulas.growth(n, m) for n, m in zip(now, train)]
        if self.axes == "longest":
            own = [max(own)] * len(own)
        if self.axes == "area":
            own = [formulas.growth(math.prod(now) ** (1 / len(now)), math.prod(train) ** (1 / len(train)))] * len(own)
        return own if self.factor is None else [self.factor if s > 1 else 1.0 for s in own]

    def logits(self, now: Sequence[int], train: Sequence[int], tokens: int) -> float:
        """By how much queries and keys are each multiplied: the root of the factor on the logits."""
        if self.temperature == "yarn":
            return formulas.yarn_temperature(max(self.scales(now, train)))
        if self.temperature.startswith("log_n"):
            only_up = self.temperature == "log_n_up"
            return math.sqrt(formulas.log_n_scale(tokens, math.prod(train), only_up=only_up))
        if self.temperature == "fit_side":
            return formulas.fit_proportion(max(now), max(train))
        if self.temperature == "fit_area":
            return formulas.fit_proportion(math.prod(now), math.prod(train))
        return 1.0

    # ---- frequencies ------------------------------------------------------------------------------------------------

    def frequencies(
        self, freqs: Tensor, pos: Positions, *, series: Sequence[Series] | None, units: Sequence[float], name: str
    ) -> Tensor:
        """Frequencies (..., axes, P) for the grid of these positions, float32.

        Args:
            series: of each axis; None for learned frequencies.
            units: coordinate units of one cell, on each axis.
        """
        self.check(name, series)
        now, train = self.sizes(name, pos)
        noise = self.noise(name, pos)
        moved = []
        for axis, (f, s) in enumerate(zip(freqs.double().unbind(-2), self.scales(now, train))):
            own = None if series is None else series[axis]
            moved.append(self.axis(f, s, own, axis, now[axis], train[axis], units[axis], noise))
        return torch.stack(moved, dim=-2).to(freqs.dtype)

    def noise(self, name: str, pos: Positions) -> float:
        if not self.by_time:
            return 1.0
        if not isinstance(pos, NoisyPositions):
            raise ValueError(f"{name}: {self.method!r} depends on the diffusion time; prepare it with with_noise(pos, noise).")
        return pos.noise

    def axis(
        self, f: Tensor, s: float, series: Series | None, axis: int, now: int, train: int, unit: float, noise: float
    ) -> Tensor:
        """One axis' frequencies (..., P), float64."""
        if self.method == "none":
            return f
        if self.method == "pi":
            return formulas.interpolate(f, s)
        span = train * unit
        if series is None:
            return formulas.yarn(f, s, theta=None, span=span, turns=self.turns)
        place: dict[str, Any] = {"index": series.places(f), "channels": 2 * series.pairs}
        ramp = {"theta": series.theta, "span": span * series.top, "ends": self.ends, **place}
        if self.method == "ntk":
            return formulas.ntk(f, s, **place)
        if self.method == "yarn":
            return formulas.yarn(f, s, turns=self.turns, **ramp)
        if self.method == "by_parts":
            return formulas.ntk_by_parts(f, s, turns=self.parts, **ramp)
        if self.method == "lumina":
            return formulas.lumina(f, s, noise, watershed=self.watershed, **place)
        if self.method == "dype_ntk":
            return formulas.dype_ntk(f, s, noise, lambda_s=self.lambda_s, lambda_t=self.lambda_t, **place)
        if self.method == "dype_yarn":
            return formulas.dype_parts(f, s, noise, turns=self.parts, lambda_t=self.lambda_t, **ramp)
        return self.slowed(f, series, axis, now, train, unit, place["index"])

    def slowed(self, f: Tensor, series: Series, axis: int, now: int, train: int, unit: float, index: Tensor) -> Tensor:
        """RIFLEx: the first axis, frames (or tokens of a sequence), where there are more than trained."""
        if axis or now <= train:
            return f
        found = formulas.intrinsic_pair(series.theta, 2 * series.pairs, self.repeats or train)[0]
        pair = found if self.pair is None else self.pair
        return torch.where(f == 0, f, formulas.riflex(f, now * unit, pair=pair, index=index))


PRESETS: dict[str, Extrapolation] = {
    "vision_pi": Extrapolation("pi"),
    "vision_ntk": Extrapolation("ntk"),
    "vision_ntk_pro1": Extrapolation("ntk", temperature="fit_side"),
    "vision_ntk_pro2": Extrapolation("ntk", temperature="fit_area"),
    "vision_by_parts": Extrapolation("by_parts"),
    "vision_yarn": Extrapolation("yarn", temperature="yarn"),
    "lumina_next": Extrapolation("lumina", axes="area", temperature="log_n"),
    "dype_yarn_flux": Extrapolation("dype_yarn", temperature="yarn"),
}


def extrapolation(setting: str | Extrapolation | None) -> Extrapolation | None:
    """A setting from a preset's or a method's name."""
    if setting is None or isinstance(setting, Extrapolation):
        return setting
    if setting in PRESETS:
        return PRESETS[setting]
    if setting in get_args(Method):
        return replace(Extrapolation(), method=setting)
    raise ValueError(
        f"set_extrapolation: no method {setting!r}; there are {get_args(Method)} and the presets {tuple(PRESETS)}."
    )
