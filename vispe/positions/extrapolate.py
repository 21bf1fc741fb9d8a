"""Training-free extrapolation: what to do to rotary frequencies, and to the attention's temperature, on grids never trained.

Pure functions of one axis. Frequencies come and go as vectors (..., P), radians per token, computed in float64; `scale` is
s = n / n_train, tokens now over tokens in training, at least 1, a number or a tensor. d = 2P channels belong to the axis.

    interpolate    f / s                                                Chen et al., arXiv 2306.15595
    ntk            theta · s^(d/(d−2)), which is f_i · s^(−2i/(d−2))    bloc97 2023; VisionNTK of FiT, arXiv 2402.12376
    ntk_by_parts   both, by how often a pair turns in the trained span  FiT, whlzy/FiT (fit/model/rope.py)
    yarn           f / s for slow pairs, f for fast ones                Peng et al., arXiv 2309.00071; VisionYaRN of FiT
    lumina         f / s while mostly noise, then theta · s             Lumina-Next, arXiv 2406.18583, Alpha-VLLM/Lumina-T2X
    riflex         one pair is slowed to less than a turn               RIFLEx, arXiv 2502.15894, thu-ml/RIFLEx
    dype_ntk, dype_parts   ntk and ntk_by_parts that fade with the noise   DyPE, arXiv 2510.20766, guyyariv/DyPE

Formulas are those of the official codes (diffusion models: `noise` is 1 at pure noise and 0 at data in every function here).

NOTICE. The repository of DyPE announces a patent application on its method. This is an independent implementation of the
published formulas; clear the rights before you ship `dype_*`. Nothing else here uses them.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Scale = float | Tensor
Ends = Literal["guarded", "released"]

FIT_PARTS = ((1.25, 0.75), (16.0, 2.0))  # turns between which FiT mixes: interpolated to NTK, and that to unchanged


def base_frequencies(theta: float, channels: int, device: torch.device | None = None) -> Tensor:
    """theta^(−2i/d) of d channels, (d / 2,) float64."""
    return theta ** -(torch.arange(0, channels, 2, dtype=torch.float64, device=device) / channels)


def growth(now: float, train: float) -> float:
    """s = n / n_train, never below 1: smaller grids than in training keep their frequencies."""
    if train <= 0:
        raise ValueError(f"growth: tokens in training must be positive, got {train}.")
    return max(now / train, 1.0)


def places(freqs: Tensor) -> Tensor:
    """i = 0 .. P − 1, the place of each pair in a vector that falls from fast to slow, float64."""
    return torch.arange(freqs.shape[-1], dtype=torch.float64, device=freqs.device)


# ---- frequencies ----------------------------------------------------------------------------------------------------


def interpolate(freqs: Tensor, scale: Scale) -> Tensor:
    """Position interpolation."""
    return freqs.double() / scale


def ntk(freqs: Tensor, scale: Scale, *, index: Tensor | None = None, channels: int | None = None) -> Tensor:
    """NTK-aware: the slowest pair is interpolated, the fastest stays; base theta · s^(d/(d−2)) without knowing theta.

    Args:
        index: the place i of each frequency in its geometric series; None for 0 .. P − 1.
        channels: d of that series; None for 2P. A single pair (d = 2) is the fastest one, and stays.
    """
    index, channels = _series(freqs, index, channels)
    return freqs.double() * _double(scale, freqs) ** -(2 * index / max(channels - 2, 1))


def ntk_base(theta: float, channels: int, scale: float) -> float:
    """theta · s^(d/(d−2)), the base that `ntk` amounts to."""
    if channels <= 2:
        raise ValueError(f"ntk_base: needs more than 2 channels an axis, got {channels}; one pair has no base to change.")
    return theta * scale ** (channels / (channels - 2))


def dynamic_growth(length: int, train: int, factor: float) -> float:
    """s of transformers' rope_type "dynamic": factor · n / n_train − (factor − 1), 1 within the trained length."""
    return factor * max(length, train) / train - (factor - 1)


def kept(
    index: Tensor,
    turns: tuple[float, float],
    *,
    theta: float,
    channels: int,
    span: float,
    truncate: bool = True,
    ends: Ends = "guarded",
    last: int | None = None,
) -> Tensor:
    """How much of its own frequency each pair keeps, 1 for fast pairs, falling linearly in the index to 0 for slow ones.

    Args:
        turns: (fast, slow): a pair that turns more often than `fast` in the trained span keeps all, less than `slow` nothing.
        span: trained tokens, times the fastest frequency where that is not 1.
        truncate: round the ramp's ends outwards to whole indices, as released code does.
        ends: of a ramp that lies wholly outside the series. "guarded": all pairs count as fast, or all as slow. "released":
            as in the codes of YaRN, FiT and DyPE, where only one end is clamped at each side, so that the ramp turns round:
            where all pairs are slow (few trained tokens) they all keep their frequency, and where all are fast they lose it.
        last: largest index of the ramp's end; None for d − 1, as in YaRN and FiT (DyPE: d / 2).
    """
    low, high = (channels * math.log(span / (2 * math.pi * r)) / (2 * math.log(theta)) if r > 0 else math.inf for r in turns)
    if truncate:
        low, high = (math.floor(low) if low < math.inf else low), (math.ceil(high) if high < math.inf else high)
    if ends not in ("guarded", "released"):
        raise ValueError(f"kept: ends must be 'guarded' or 'released', got {ends!r}.")
    low, high = max(low, 0), min(high, channels - 1 if last is None else last)
    if ends == "guarded":
        high = max(high, low)
    if low == math.inf:
        return torch.ones_like(index)
    return 1 - ((index - low) / (high - low + 0.001 * (high == low))).clamp(0, 1)


def kept_by_turns(freqs: Tensor, turns: tuple[float, float], *, span: float) -> Tensor:
    """`kept` for frequencies of no series (learned ones): linear in the turns, as the paper of YaRN defines it."""
    fast, slow = turns
    made = freqs.double().abs() * span / (2 * math.pi)
    return ((made - slow) / max(fast - slow, 1e-12)).clamp(0, 1)


def yarn(
    freqs: Tensor,
    scale: Scale,
    *,
    theta: float | None,
    span: float,
    turns: tuple[float, float] = (32.0, 1.0),
    truncate: bool = True,
    ends: Ends = "guarded",
    index: Tensor | None = None,
    channels: int | None = None,
) -> Tensor:
    """YaRN: f / s mixed with f itself by how often a pair turns. Its temperature is `yarn_temperature`.

    Args:
        theta: base of the frequencies, which is the original one whatever else changes it; None for learned frequencies.
        span: trained tokens.
        turns: (beta_fast, beta_slow).
        truncate, ends, index, channels: see `kept` and `ntk`.
    """
    if theta is None:
        keep = kept_by_turns(freqs, turns, span=span)
    else:
        index, channels = _series(freqs, index, channels)
        keep = kept(index, turns, theta=theta, channels=channels, span=span, truncate=truncate, ends=ends)
    return interpolate(freqs, scale) * (1 - keep) + freqs.double() * keep


def ntk_by_parts(
    freqs: Tensor,
    scale: Scale,
    *,
    theta: float,
    span: float,
    turns: tuple[tuple[float, float], tuple[float, float]] = FIT_PARTS,
    ends: Ends = "guarded",
    last: int | None = None,
    index: Tensor | None = None,
    channels: int | None = None,
) -> Tensor:
    """FiT's NTK-by-parts: interpolated below the first pair of turns, NTK in between, unchanged above the second."""
    index, channels = _series(freqs, index, channels)
    first, second = (kept(index, t, theta=theta, channels=channels, span=span, ends=ends, last=last) for t in turns)
    mixed = interpolate(freqs, scale) * (1 - first) + ntk(freqs, scale, index=index, channels=channels) * first
    return mixed * (1 - second) + freqs.double() * second


def lumina(
    freqs: Tensor,
    scale: Scale,
    noise: float,
    *,
    watershed: float = 0.3,
    index: Tensor | None = None,
    channels: int | None = None,
) -> Tensor:
    """Lumina-Next's time-aware scaling: f / s while 1 − noise is below the watershed, then base theta · s (a plain product)."""
    if noise > 1 - watershed:
        return interpolate(freqs, scale)
    index, channels = _series(freqs, index, channels)
    return freqs.double() * _double(scale, freqs) ** -(2 * index / channels)


def dype_ntk(
    freqs: Tensor,
    scale: Scale,
    noise: float,
    *,
    index: Tensor | None = None,
    channels: int | None = None,
    lambda_s: float = 2.0,
    lambda_t: float = 2.0,
) -> Tensor:
    """DyPE's NTK: `ntk` at s^(lambda_s · noise^lambda_t). Mind the notice at the head of this file."""
    return ntk(freqs, _double(scale, freqs) ** (lambda_s * noise**lambda_t), index=index, channels=channels)


def dype_parts(
    freqs: Tensor,
    scale: Scale,
    noise: float,
    *,
    theta: float,
    span: float,
    turns: tuple[tuple[float, float], tuple[float, float]] = FIT_PARTS,
    ends: Ends = "guarded",
    index: Tensor | None = None,
    channels: int | None = None,
    lambda_t: float = 2.0,
) -> Tensor:
    """DyPE's YaRN: `ntk_by_parts` with all turns times noise^lambda_t. Mind the notice at the head of this file.

    Towards the data every pair counts as fast and keeps its frequency; the official code divides by zero at noise 0, and
    below about 0.008 it interpolates everything (`ends="released"`).
    """
    fade = noise**lambda_t
    index, channels = _series(freqs, index, channels)
    faded = tuple((fast * fade, slow * fade) for fast, slow in turns)
    options = {"turns": faded, "ends": ends, "last": channels // 2, "index": index, "channels": channels}
    return ntk_by_parts(freqs, scale, theta=theta, span=span, **options)


def intrinsic_pair(theta: float, channels: int, repeats: int) -> tuple[int, int]:
    """RIFLEx: the pair (counted from 1) whose period is nearest to the frame at which videos repeat, and that period."""
    periods = [round(2 * math.pi * theta ** (2 * j / channels)) for j in range(channels // 2)]
    best = min(range(len(periods)), key=lambda j: abs(periods[j] - repeats))
    return best + 1, periods[best]


def riflex(freqs: Tensor, frames: Scale, *, pair: int, index: Tensor | None = None) -> Tensor:
    """RIFLEx: pair `pair` (counted from 1) makes 0.9 of a turn in `frames` frames, so that a video does not repeat.

    Official code sets it whenever it is asked to, also where that makes the pair faster; `Extrapolation` does it for videos
    longer than trained only.
    """
    where, _ = _series(freqs, index, None)
    if pair < 1 or (index is None and pair > freqs.shape[-1]):
        raise ValueError(f"riflex: pair counts from 1 to {freqs.shape[-1]}, got {pair}; `intrinsic_pair` finds it.")
    return torch.where((where - (pair - 1)).abs() < 0.5, 0.9 * 2 * math.pi / _double(frames, freqs), freqs.double())


# ---- temperature ----------------------------------------------------------------------------------------------------


def yarn_temperature(scale: float, *, slope: float = 0.1) -> float:
    """0.1 ln s + 1, by which queries and keys (or cos and sin) are each multiplied; logits get its square."""
    return slope * math.log(scale) + 1.0 if scale > 1 else 1.0


def log_n_scale(now: float, train: float, *, only_up: bool = False) -> float:
    """√(ln N / ln N_train), by which logits are multiplied. N counts the tokens that take part in attention.

    Source: Jin et al., arXiv 2306.08645, which Lumina-Next calls proportional attention. Below 1 for fewer tokens than in
    training, unless `only_up`.
    """
    if now < 1 or train <= 1:
        raise ValueError(f"log_n_scale: needs N >= 1 and more than one token in training, got {now} and {train}.")
    scale = math.sqrt(math.log(now) / math.log(train))
    return max(scale, 1.0) if only_up else scale


def fit_proportion(now: float, train: float) -> float:
    """FiT's √(ln 2L / ln L_train) on queries and on keys each. The doubled length is in its code: not 1 at native size."""
    return math.sqrt(math.log(2 * now) / math.log(train))


def _series(freqs: Tensor, index: Tensor | None, channels: int | None) -> tuple[Tensor, int]:
    return places(freqs) if index is None else index, 2 * freqs.shape[-1] if channels is None else channels


def _double(value: Scale, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)
