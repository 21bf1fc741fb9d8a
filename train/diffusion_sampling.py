"""Pictures from a diffusion model: the scheduler that fits its objective, a draw at any size, and a grid of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from train.objectives import FLOWS
from vispe.positions import Positions
from vispe.positions.random import RandomPositions

Sampler = Literal["auto", "ddpm", "ddim", "dpm", "euler", "heun"]
NoiseSchedule = Literal["linear", "scaled_linear", "squaredcos_cap_v2"]


def noise_table(schedule: NoiseSchedule, steps: int) -> Tensor:
    """ᾱ (T,) of a schedule by diffusers' name; "linear" goes from 1e-4 to 0.02, as in DDPM and DiT."""
    from diffusers import DDPMScheduler

    return DDPMScheduler(num_train_timesteps=steps, beta_schedule=schedule).alphas_cumprod


def make_scheduler(
    prediction: str, sampler: Sampler = "auto", *, schedule: NoiseSchedule = "linear", steps: int = 1000,
    learn_sigma: bool = False, shift: float = 1.0,
) -> Any:  # fmt: skip
    """A scheduler of diffusers for a model's prediction.

    Args:
        prediction: the model's `prediction_type`.
        sampler: "auto" is "euler" for flows, "ddpm" with a learned variance, else "ddim"; "heun" is for flows; "dpm" is
            DPM-Solver++ for the others.
        schedule, steps: those of training, of DDPM.
        shift: of a flow; diffusers applies it twice, see `vispe.positions.flow_shift`.
    """
    import diffusers

    flow = prediction in FLOWS
    if sampler == "auto":
        sampler = "euler" if flow else "ddpm" if learn_sigma else "ddim"
    allowed = ("euler", "heun") if flow else ("ddpm", "ddim", "dpm")
    if sampler not in allowed:
        raise ValueError(f"sampler: what predicts {prediction!r} is sampled by 'auto' or one of {allowed}, got {sampler!r}.")
    if flow:
        name = "FlowMatchEulerDiscreteScheduler" if sampler == "euler" else "FlowMatchHeunDiscreteScheduler"
        return getattr(diffusers, name)(num_train_timesteps=1000, shift=shift)  # models take 1000 σ
    common = {"num_train_timesteps": steps, "beta_schedule": schedule, "prediction_type": prediction}
    if sampler == "dpm":
        return diffusers.DPMSolverMultistepScheduler(**common)
    if sampler == "ddim":
        return diffusers.DDIMScheduler(**common, clip_sample=False, timestep_spacing="trailing")
    variance = "learned_range" if learn_sigma else "fixed_small"
    return diffusers.DDPMScheduler(**common, clip_sample=False, variance_type=variance)


def draw(
    net: Any, scheduler: Any, labels: Sequence[int] | None, size: tuple[int, int], *, count: int = 1, steps: int = 50,
    guidance: float = 1.0, guide_channels: int | None = None, policy: RandomPositions | None = None, vae: Any = None,
    seed: int = 0, batch_size: int = 256,
) -> Tensor:  # fmt: skip
    """Pictures (labels · count, C, H, W) in [0, 1] on the CPU, in the order of the labels, `count` of each in a row.

    Sample i starts from noise that depends on the seed, i and the size alone.

    Args:
        net: an EncodedDiT, or an EncodedMMDiT with classes, in evaluation mode.
        labels: class ids; None for an unconditional model.
        size: latent cells.
        policy: RPE-2D's; its places at inference are taken, without a draw.
        vae: an AutoencoderKL that decodes, None for pixels.
    """
    from vispe.models.dit_pipeline import EncodedDiTPipeline

    device = next(net.parameters()).device
    pipe = EncodedDiTPipeline(net, scheduler, vae)
    pipe.set_progress_bar_config(disable=True)
    positions: Positions | None = None
    if policy is not None:
        positions = policy(net.positions(size[0] // net.patch_size, size[1] // net.patch_size, device=device))
    ids = [None] * count if labels is None else [int(y) for y in labels for _ in range(count)]
    found = []
    for start in range(0, len(ids), batch_size):
        some = ids[start : start + batch_size]
        generators = [torch.Generator().manual_seed(seed * 1_000_003 + start + i) for i in range(len(some))]
        noise = torch.stack([torch.randn(net.in_channels, *size, generator=g) for g in generators])
        out = pipe(
            None if labels is None else some, samples_per_class=len(some) if labels is None else 1, latents=noise,
            num_inference_steps=steps, guidance_scale=guidance, guide_channels=guide_channels, positions=positions,
            generator=generators, output_type="pt", return_dict=False,
        )[0]  # fmt: skip
        found.append(out.float().cpu())
    return torch.cat(found)


def grid_of(images: Tensor, *, columns: int | None = None, gap: int = 2) -> Tensor:
    """Pictures (N, C, H, W) side by side in one (3 or C, H', W'), row by row, on white."""
    columns = columns or math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    n, c, h, w = images.shape
    sheet = images.new_ones(rows * columns, c, h + gap, w + gap)
    sheet[:n, :, :h, :w] = images
    whole = sheet.unflatten(0, (rows, columns)).permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)[:, :-gap, :-gap]
    return whole.expand(3, -1, -1) if c == 1 else whole
