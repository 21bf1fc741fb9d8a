"""Between pictures and what a diffusion model sees: pixels as they are, or latents of an autoencoder of diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Pixels:
    """The model sees pixels in [−1, 1]; nothing is encoded."""

    vae = None

    def encode(self, images: Tensor) -> Tensor:
        return images


class AutoencoderLatents:
    """Latents (z − shift) · scale of a frozen AutoencoderKL, drawn from its posterior.

    It is no module on purpose: the autoencoder stays out of the state dict, the optimizer and the average.

    Args:
        folder: what its `save_pretrained` wrote ("stabilityai/sd-vae-ft-mse", downloaded).
        channels: latent channels that the model takes.
    """

    def __init__(self, folder: str, *, channels: int) -> None:
        from diffusers import AutoencoderKL

        if not (Path(folder) / "config.json").is_file():
            raise FileNotFoundError(
                f"vae: {folder} is no folder with an autoencoder of diffusers (config.json and weights). Download one first, "
                f"e.g. stabilityai/sd-vae-ft-mse, and give its folder; without --model.vae the model sees pixels."
            )
        self.vae = AutoencoderKL.from_pretrained(folder).eval().requires_grad_(False)
        if self.vae.config.latent_channels != channels:
            raise ValueError(
                f"vae: {folder} has {self.vae.config.latent_channels} latent channels, the model {channels}; set "
                f"--model.model_kwargs.in_channels {self.vae.config.latent_channels}"
            )

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) in [−1, 1] to latents (B, C, h, w) in the autoencoder's precision."""
        self.vae.to(images.device)
        z = self.vae.encode(images.to(self.vae.dtype)).latent_dist.sample()
        return (z - (getattr(self.vae.config, "shift_factor", None) or 0.0)) * self.vae.config.scaling_factor


def latents_of(folder: str | None, *, channels: int) -> Any:
    """`AutoencoderLatents` of a folder, or `Pixels` of None."""
    return Pixels() if folder is None else AutoencoderLatents(folder, channels=channels)
