"""Time shift of flow matching as diffusers' FlowMatchEulerDiscreteScheduler does it (0.42.1); sigma is 1 at noise.

    exponential  e^mu / (e^mu + 1/sigma − 1)      linear  mu / (mu + 1/sigma − 1)

Both are `time_shift.shift_flow` with alpha = e^mu or mu. A static shift acts twice there: on the table of the training steps,
and again on the steps of sampling, which are laid between the ends of the shifted table; `static_sigmas` says so.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def resolution_mu(
    tokens: float | Tensor, *, base_tokens: int = 256, max_tokens: int = 4096, base_shift: float = 0.5, max_shift: float = 1.15
) -> float | Tensor:
    """Flux's mu for a number of image tokens: the line through both given ends, also beyond them."""
    slope = (max_shift - base_shift) / (max_tokens - base_tokens)
    return base_shift + slope * (tokens - base_tokens)


def shift_sigma(sigma: Tensor, mu: float, *, kind: str = "exponential") -> Tensor:
    """sigma in (0, 1] shifted towards noise; "exponential" in mu, or "linear"."""
    if kind not in ("exponential", "linear"):
        raise ValueError(f"shift_sigma: kind must be 'exponential' or 'linear', got {kind!r}.")
    alpha = math.exp(mu) if kind == "exponential" else mu
    return alpha / (alpha + (1 / sigma - 1))


def static_sigmas(steps: int, shift: float, *, train_steps: int = 1000) -> Tensor:
    """The scheduler's sigmas (steps + 1,) float64 with its static shift, applied twice as there; the last is 0."""

    def shifted(sigma: Tensor) -> Tensor:
        return shift * sigma / (1 + (shift - 1) * sigma)

    ends = shifted(torch.tensor([1.0, 1.0 / train_steps], dtype=torch.float64))
    grid = torch.linspace(ends[0], ends[1], steps, dtype=torch.float64)
    return torch.cat((shifted(grid), grid.new_zeros(1)))
