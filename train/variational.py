"""The variational term of a learned variance, as openai/guided-diffusion and facebookresearch/DiT have it.

    t > 0   KL( q(x_{t−1} | x_t, x) ‖ N(μ, σ²) ),  log σ² = f log β_t + (1 − f) log β̃_t,  f = (v + 1) / 2
    t = 0   −log of the probability of x in bins of 1/127.5 around its value, the outer bins open

in bits a number. Source: Nichol and Dhariwal, ICML 2021, arXiv 2102.09672, equations 10 to 15. As there, the normal
distribution function is its tanh approximation and β̃_0, which is 0, is replaced by β̃_1; the bins are those of 8-bit pictures
in [−1, 1], and are used on latents as well, as DiT does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 1e-12


@dataclass(frozen=True)
class Steps:
    """Tables of a schedule of T steps, (T,) float64 each.

    Attributes:
        kept: ᾱ.
        beta, posterior: β and log β̃ with β̃_0 replaced by β̃_1.
        from_clean, from_noisy: the posterior's mean is their weighted sum of x and x_t.
    """

    kept: Tensor
    beta: Tensor
    posterior: Tensor
    from_clean: Tensor
    from_noisy: Tensor

    @classmethod
    def of(cls, alphas_cumprod: Tensor) -> Steps:
        """Tables of ᾱ (T,), which must fall inside (0, 1)."""
        kept = alphas_cumprod.detach().double().cpu()
        before = torch.cat((kept.new_ones(1), kept[:-1]))
        if kept.ndim != 1 or len(kept) < 2 or not ((kept > 0) & (kept < before)).all():
            raise ValueError(
                f"Steps: alphas_cumprod must be a falling list of at least two numbers in (0, 1), got {tuple(kept.shape)}; "
                f"take that of a scheduler without zero terminal SNR."
            )
        beta = 1 - kept / before
        variance = beta * (1 - before) / (1 - kept)
        variance = torch.cat((variance[1:2], variance[1:]))
        from_clean = beta * before.sqrt() / (1 - kept)
        from_noisy = (1 - before) * (kept / before).sqrt() / (1 - kept)
        return cls(kept, beta, variance.log(), from_clean, from_noisy)


def normal_cdf(x: Tensor) -> Tensor:
    """The tanh approximation of the normal distribution function."""
    return 0.5 * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


def bin_log_probability(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """ln of the probability of the bin of half-width 1/255 around x under a normal distribution; the outer bins are open."""
    off, scale = x - mean, (-log_std).exp()
    above, below = normal_cdf(scale * (off + 1 / 255)), normal_cdf(scale * (off - 1 / 255))
    inside = (above - below).clamp(min=FLOOR).log()
    highest = (1 - below).clamp(min=FLOOR).log()
    lowest = above.clamp(min=FLOOR).log()
    return torch.where(x < -0.999, lowest, torch.where(x > 0.999, highest, inside))


def variational_term(estimate: Tensor, between: Tensor, clean: Tensor, x: Tensor, step: Tensor, steps: Steps) -> Tensor:
    """The term of each sample, (B,) in bits a number.

    Args:
        estimate: (B, C, H, W), the sample that the model believes in, without gradient.
        between: (B, C, H, W), the model's v: −1 for log β̃, 1 for log β.
        clean, x: the sample and the noisy one.
        step: (B,) int64.
    """
    shape = (-1, *(1,) * (x.ndim - 1))

    def at(table: Tensor) -> Tensor:
        return table.to(x.device)[step].to(x.dtype).view(shape)

    def mean(sample: Tensor) -> Tensor:
        return at(steps.from_clean) * sample + at(steps.from_noisy) * x

    low, high = at(steps.posterior), at(steps.beta.log())
    share = (between + 1) / 2
    log_var = share * high + (1 - share) * low
    off = mean(clean) - mean(estimate)
    kl = 0.5 * (log_var - low - 1 + (low - log_var).exp() + off.square() * (-log_var).exp())
    first = -bin_log_probability(clean, mean(estimate), 0.5 * log_var)
    bits = torch.where((step == 0).view(shape), first, kl) / math.log(2)
    return bits.flatten(1).mean(1)
