"""What a diffusion model learns: noisy samples, targets and losses of DDPM and of flow matching.

    DDPM   x_t = √ᾱ_t x + √(1−ᾱ_t) ε             target ε, or v = √ᾱ_t ε − √(1−ᾱ_t) x, or x
    flow   x_σ = (1 − σ) x + σ ε, σ = 1 is noise    target ε − x at time 1000 σ (SD3), or x − ε at time 1 − σ (SiT)

Sources: Ho et al., DDPM, arXiv 2006.11239; Nichol and Dhariwal, learned variance, arXiv 2102.09672, as in
openai/guided-diffusion and facebookresearch/DiT; Salimans and Ho, v, arXiv 2202.00512; Lipman et al., flow matching,
arXiv 2210.02747; Ma et al., SiT, arXiv 2401.08740; Esser et al., logit-normal times, arXiv 2403.03206; Yao et al., direction
loss, arXiv 2501.01423.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from train.variational import Steps, variational_term
from vispe.positions.time_shift import shift_flow

Times = Literal["uniform", "logit_normal"]
FLOWS = ("flow_prediction", "sit_velocity")


@dataclass(frozen=True)
class Noised:
    """A batch that the model is shown, and what it should say.

    Attributes:
        clean, noise, x: (B, C, H, W), the sample, the noise and their mixture.
        level: (B,) step (int64) of DDPM, or σ of a flow.
        time: (B,) float32, the same in the model's own unit.
        target: (B, C, H, W).
    """

    clean: Tensor
    noise: Tensor
    x: Tensor
    level: Tensor
    time: Tensor
    target: Tensor


def per_sample(t: Tensor) -> Tensor:
    """Mean over everything but the batch: (B,)."""
    return t.flatten(1).mean(1)


def spread(values: Tensor, like: Tensor) -> Tensor:
    """(B,) to (B, 1, 1, 1), in the type of `like`."""
    return values.to(like.dtype).view(-1, *(1,) * (like.ndim - 1))


class Flow:
    """Flow matching along straight lines.

    Args:
        prediction: "flow_prediction" (SD3's sign and time) or "sit_velocity" (SiT's and LightningDiT's).
        times: σ uniform, or the logistic function of a normal variable.
        logit_mean, logit_std: of that variable; SiT's time 1 − σ has mean −logit_mean.
        shift: α of `shift_flow`, more than 1 for more noise.
        direction: weight of 1 − cosine between output and target over channels; LightningDiT has 1.
    """

    def __init__(
        self, prediction: str, *, times: Times = "uniform", logit_mean: float = 0.0, logit_std: float = 1.0,
        shift: float = 1.0, direction: float = 0.0,
    ) -> None:  # fmt: skip
        if prediction not in FLOWS:
            raise ValueError(f"Flow: prediction must be one of {FLOWS}, got {prediction!r}.")
        if times not in ("uniform", "logit_normal"):
            raise ValueError(f"Flow: times must be 'uniform' or 'logit_normal', got {times!r}.")
        if shift <= 0 or logit_std <= 0 or direction < 0:
            raise ValueError(
                f"Flow: shift and logit_std are positive, direction is not negative; got {shift}, {logit_std} and {direction}."
            )
        self.prediction, self.times, self.shift, self.direction = prediction, times, shift, direction
        self.logit_mean, self.logit_std = logit_mean, logit_std

    def draw(self, count: int, *, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
        """σ of `count` samples, float32; drawn where the generator lives, or on `device`."""
        place = device if generator is None else generator.device
        if self.times == "uniform":
            sigma = torch.rand(count, generator=generator, device=place)
        else:
            sigma = (self.logit_mean + self.logit_std * torch.randn(count, generator=generator, device=place)).sigmoid()
        return shift_flow(sigma, self.shift).to(device)

    def noised(self, clean: Tensor, noise: Tensor, level: Tensor) -> Noised:
        """The mixture at σ = `level` (B,)."""
        sigma = spread(level, clean)
        x = (1 - sigma) * clean + sigma * noise
        sit = self.prediction == "sit_velocity"
        target, time = (clean - noise, 1 - level) if sit else (noise - clean, 1000 * level)
        return Noised(clean, noise, x, level, time.float(), target)

    def losses(self, output: Tensor, given: Noised) -> dict[str, Tensor]:
        """{"mse": (B,)}, and "direction" where it is on; their weighted sum is the loss."""
        output = output.float()
        found = {"mse": per_sample((output - given.target).square())}
        if self.direction:
            found["direction"] = self.direction * per_sample(1 - F.cosine_similarity(output, given.target, dim=1))
        return found


class Ddpm:
    """Denoising diffusion in T steps.

    Args:
        prediction: "epsilon", "v_prediction" or "sample".
        alphas_cumprod: (T,) ᾱ, falling, e.g. of a scheduler of diffusers.
        learn_sigma: the model gives a second half, where log σ² lies between its bounds, trained by the variational term.
    """

    def __init__(self, prediction: str, alphas_cumprod: Tensor, *, learn_sigma: bool = False) -> None:
        if prediction not in ("epsilon", "v_prediction", "sample"):
            raise ValueError(f"Ddpm: prediction must be 'epsilon', 'v_prediction' or 'sample', got {prediction!r}.")
        self.prediction, self.learn_sigma, self.steps = prediction, learn_sigma, Steps.of(alphas_cumprod)

    def draw(self, count: int, *, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
        """Steps of `count` samples, int64, uniform over 0 .. T − 1."""
        place = device if generator is None else generator.device
        return torch.randint(len(self.steps.kept), (count,), generator=generator, device=place).to(device)

    def scales(self, level: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """√ᾱ and √(1 − ᾱ) of the steps, (B, 1, 1, 1) each."""
        kept = self.steps.kept.to(level.device)[level]
        return spread(kept.sqrt(), like), spread((1 - kept).sqrt(), like)

    def noised(self, clean: Tensor, noise: Tensor, level: Tensor) -> Noised:
        """The mixture at the steps `level` (B,) int64."""
        signal, sigma = self.scales(level, clean)
        target = {"epsilon": noise, "v_prediction": signal * noise - sigma * clean, "sample": clean}[self.prediction]
        return Noised(clean, noise, signal * clean + sigma * noise, level, level.float(), target)

    def estimate(self, output: Tensor, given: Noised) -> Tensor:
        """The sample that a prediction implies."""
        signal, sigma = self.scales(given.level, output)
        if self.prediction == "epsilon":
            return (given.x - sigma * output) / signal
        return signal * given.x - sigma * output if self.prediction == "v_prediction" else output

    def losses(self, output: Tensor, given: Noised) -> dict[str, Tensor]:
        """{"mse": (B,)}, and "variational" (bits a number, times T / 1000) with a learned variance; their sum is the loss."""
        output = output.float()
        if not self.learn_sigma:
            return {"mse": per_sample((output - given.target).square())}
        output, between = output.chunk(2, dim=1)
        estimate = self.estimate(output.detach(), given)  # the variational term trains the variance, not the mean
        term = variational_term(estimate, between, given.clean, given.x, given.level, self.steps)
        weight = len(self.steps.kept) / 1000
        return {"mse": per_sample((output - given.target).square()), "variational": weight * term}
