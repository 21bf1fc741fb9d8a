"""Positions of the tokens of a noisy picture, for what depends on the time of a diffusion process."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .grid import Positions

_FIELDS = tuple(f.name for f in fields(Positions))


@dataclass(frozen=True)
class NoisyPositions(Positions):
    """Positions and how noisy the tokens are.

    Attributes:
        noise: 1 for pure noise, 0 for data, the same for the whole batch (samplers step all samples together).
    """

    noise: float = 1.0


def with_noise(pos: Positions, noise: float) -> NoisyPositions:
    """Positions that carry the time of a sampler's step.

    Args:
        noise: σ or t of SD3 and Flux, t / T of DDPM, 1 − t of SiT and Lumina; a number in [0, 1].
    """
    noise = float(noise)
    if not 0 <= noise <= 1:
        raise ValueError(f"with_noise: noise goes from 0 (data) to 1 (pure noise), got {noise}; for SiT's times pass 1 - t.")
    return NoisyPositions(**{name: getattr(pos, name) for name in _FIELDS}, noise=noise)
