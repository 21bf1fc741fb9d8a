"""Frequencies of sequence rotary, and context extension as decoders were released with it: ahead of the choice of axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..positions import extrapolate as formulas
from .axis_map import AxisMap

ScalingMethod = Literal["none", "linear", "ntk", "dynamic", "yarn", "videorope++", "mrope++"]


def inverse_frequencies(pairs: int, theta: float, device: torch.device | None = None) -> Tensor:
    """theta^(−k/P), (P,) float32: rounded step by step as decoders do, so that ids of thousands give the same cosines."""
    return 1.0 / _periods(pairs, theta, device)


def _periods(pairs: int, theta: float, device: torch.device | None = None) -> Tensor:
    return theta ** (torch.arange(0, 2 * pairs, 2, device=device).float() / (2 * pairs))


@dataclass(frozen=True)
class SequenceScaling:
    """Context extension of a decoder.

    Args:
        method: "linear" divides all frequencies by the factor; "ntk" takes base theta · factor^(d/(d−2)); "dynamic" does so by
            factor · n / trained − (factor − 1), n the largest id + 1 (of all axes; not the number of tokens), where that passes
            the trained length; "yarn" as in transformers; "videorope++" (Wiselnn570/VideoRoPE, videorope++_v1) slows the pairs
            of time alone, by NTK; "mrope++" (same code) leaves time, takes NTK for columns and the mean of NTK and linear for
            rows; these two without a temperature. With "dynamic", keys that were turned at a shorter length keep their old
            frequencies in a cache.
        factor: s, at least 1.
        trained: ids in training.
        temperature: of "yarn", by which cosines and sines are multiplied; None for 0.1 ln s + 1.
        mscale, mscale_all_dim: of "yarn": where both are set, (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1) instead.
        turns: (beta_fast, beta_slow) of "yarn".
        truncate: of "yarn", round the ends of its ramp to whole pairs.
    """

    method: ScalingMethod = "yarn"
    factor: float = 4.0
    trained: int = 32768
    temperature: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    turns: tuple[float, float] = (32.0, 1.0)
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.method not in get_args(ScalingMethod):
            raise ValueError(f"SequenceScaling: method must be one of {get_args(ScalingMethod)}, got {self.method!r}.")
        if not self.factor >= 1 or self.trained < 2:
            raise ValueError(
                f"SequenceScaling: factor must be at least 1 and trained at least 2 ids, got {self.factor} and {self.trained}."
            )

    @property
    def amount(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.method != "yarn":
            return 1.0
        if self.temperature is not None:
            return self.temperature
        if self.mscale and self.mscale_all_dim:
            top, bottom = (formulas.yarn_temperature(self.factor, slope=0.1 * m) for m in (self.mscale, self.mscale_all_dim))
            return top / bottom
        return formulas.yarn_temperature(self.factor)

    def apply(self, freqs: Tensor, *, theta: float, length: int, axes: AxisMap) -> Tensor:
        """Frequencies (P,) for sequences whose largest id is length − 1, float32."""
        if self.method in ("videorope++", "mrope++"):
            return self._by_axis(freqs, axes).float()
        if self.method == "linear":
            return formulas.interpolate(freqs, self.factor).float()
        if self.method == "yarn":
            return self._yarn(freqs, theta)
        if self.method == "none":
            return freqs
        dynamic = self.method == "dynamic"
        scale = formulas.dynamic_growth(length, self.trained, self.factor) if dynamic else self.factor
        if scale == 1:
            return freqs
        base = formulas.ntk_base(theta, 2 * freqs.numel(), scale)
        return inverse_frequencies(freqs.numel(), base, freqs.device)

    def _yarn(self, freqs: Tensor, theta: float) -> Tensor:
        """`formulas.yarn` in float32 steps, as released code takes them."""
        pairs = freqs.numel()
        index = torch.arange(pairs, device=freqs.device, dtype=torch.float32)
        options = {"theta": theta, "channels": 2 * pairs, "span": self.trained, "truncate": self.truncate}
        keep = formulas.kept(index, self.turns, ends="released", **options)
        slow = 1.0 / (self.factor * _periods(pairs, theta, freqs.device))
        return slow * (1 - keep) + freqs * keep

    def _by_axis(self, freqs: Tensor, axes: AxisMap) -> Tensor:
        """The released code counts growth from the first to the last id: (s · L − 1) / (L − 1)."""
        ntk = formulas.ntk(freqs, (self.trained * self.factor - 1) / (self.trained - 1))
        time, row, column = (axes.members(axis).to(freqs.device) for axis in range(3))
        if self.method == "videorope++":
            return torch.where(time, ntk, freqs.double())
        mixed = (formulas.interpolate(freqs, self.factor) + ntk) / 2
        return torch.where(row, mixed, torch.where(column, ntk, freqs.double()))


def scaling_of(config: dict[str, Any]) -> SequenceScaling | None:
    """The scaling that a decoder's configuration asks for (`rope_type`, `factor`, ... of transformers); None for "default"."""
    kind = config.get("rope_type", config.get("type", "default"))
    if kind in ("default", "mrope"):
        return None
    if kind not in ("linear", "dynamic", "yarn"):
        raise ValueError(f"scaling_of: rope_type {kind!r} is not known; there are default, linear, dynamic and yarn.")
    top = config.get("max_position_embeddings")
    trained = top or 32768
    if kind == "yarn":
        trained = config.get("original_max_position_embeddings") or trained
    factor = config.get("factor")
    if factor is None and top is None:
        raise ValueError(f"scaling_of: {kind!r} needs a factor, or max_position_embeddings to compute it from.")
    return SequenceScaling(
        kind, factor=top / trained if factor is None else factor, trained=trained, temperature=config.get("attention_factor"),
        mscale=config.get("mscale"), mscale_all_dim=config.get("mscale_all_dim"), truncate=config.get("truncate", True),
        turns=(config.get("beta_fast") or 32.0, config.get("beta_slow") or 1.0),
    )  # fmt: skip
