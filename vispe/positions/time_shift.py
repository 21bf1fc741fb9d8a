"""Moving diffusion times with the resolution: more tokens need more noise for the same signal to be lost.

    α = √(N / N_train),  log SNR' = log SNR − 2 ln α

Source of the flow formula: Esser et al. (SD3), ICML 2024, arXiv 2403.03206, section 5.3.2. RPE-2D (see `random.py`) announces a
"timestep-shift mapping"; that it is this one, and its forms for other conventions of time, are ours.
"""

from __future__ import annotations

import math

from torch import Tensor


def shift_factor(now: int, train: int) -> float:
    """α = √(N / N_train) of numbers of tokens (areas)."""
    if now < 1 or train < 1:
        raise ValueError(f"shift_factor: numbers of tokens must be positive, got {now} and {train}.")
    return math.sqrt(now / train)


def shift_flow(t: Tensor, alpha: float) -> Tensor:
    """SD3 and Flux, t = 1 is noise: α t / (1 + (α − 1) t)."""
    return alpha * t / (1 + (alpha - 1) * t)


def shift_flow_to_data(t: Tensor, alpha: float) -> Tensor:
    """SiT and LightningDiT, t = 1 is data: 1 − shift_flow(1 − t)."""
    return 1 - shift_flow(1 - t, alpha)


def log_snr(alphas_cumprod: Tensor) -> Tensor:
    """ln(ᾱ / (1 − ᾱ)) of DDPM's steps."""
    return (alphas_cumprod / (1 - alphas_cumprod)).log()


def shift_ddpm(steps: Tensor, alphas_cumprod: Tensor, alpha: float) -> Tensor:
    """The step whose log SNR is nearest to that of each given step less 2 ln α, int64; float64 inside.

    Args:
        steps: int64, any shape, below the number of steps T.
        alphas_cumprod: (T,) ᾱ of the training schedule, falling.
    """
    if steps.is_floating_point() or (steps.numel() and not 0 <= int(steps.min()) <= int(steps.max()) < len(alphas_cumprod)):
        raise ValueError(
            f"shift_ddpm: steps must be whole numbers from 0 to {len(alphas_cumprod) - 1}, got {steps.dtype} from "
            f"{steps.min().item()} to {steps.max().item()}."
        )
    snr = log_snr(alphas_cumprod.double())
    wanted = snr[steps] - 2 * math.log(alpha)
    return (snr - wanted[..., None]).abs().argmin(dim=-1)
