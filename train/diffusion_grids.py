"""Samples of a diffusion task: drawn at any size, and shown while it trains."""

import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.layers import to_2tuple
from torch import Tensor

from train import diffusion_sampling as sampling
from train.data.scenes import to_uint8
from train.schedule import ScheduledTask
from vispe.positions.time_shift import shift_factor


class SamplingTask(ScheduledTask):
    """A task with `net`, `evaluated`, `policy`, `latents`, `learn_sigma`, `num_classes`, `sizes`, and settings of samples."""

    def scheduler(self, size: tuple[int, int] | None = None) -> Any:
        """A new scheduler of diffusers for this objective; with `resolution_shift` that of a size."""
        p, shift = self.hparams, self.hparams.time_shift
        if p.resolution_shift and size is not None:
            shift = shift * shift_factor(math.prod(size) // self.net.patch_size**2, math.prod(self.net.train_grid))
        return sampling.make_scheduler(
            self.net.prediction_type, p.sampler, schedule=p.noise_schedule, steps=p.train_steps, learn_sigma=self.learn_sigma,
            shift=shift,
        )  # fmt: skip

    @torch.no_grad()
    def sample(
        self, labels: list[int] | None, size: tuple[int, int], *, count: int = 1, seed: int = 0, **options: Any
    ) -> Tensor:
        """Pictures (labels · count, C, H, W) in [0, 1] from the averaged weights; `size` in latent cells.

        ``options`` are further ones of ``diffusion_sampling.draw`` and win over the settings: steps, guidance, batch_size, ...
        Latents come back as they are where there is no autoencoder, mapped from [−1, 1] as pixels would be.
        """
        p = self.hparams
        guided = p.guide_channels or (self.net.in_channels if self.learn_sigma else None)  # never a learned variance
        settings = {"steps": p.sample_steps, "guidance": p.guidance, "guide_channels": guided, "policy": self.policy}
        net, mode = self.evaluated, self.evaluated.training
        net.eval()
        found = sampling.draw(
            net, self.scheduler(size), labels, size, count=count, seed=seed, vae=self.latents.vae, **(settings | options)
        )
        net.train(mode)
        return found

    def _sample_sizes(self) -> list[tuple[int, int]]:
        if self.hparams.sample_sizes is not None:
            return [tuple(size) for size in self.hparams.sample_sizes]
        height, width = to_2tuple(self.net.config.input_size)
        return [(h * height // self.sizes[0][0], w * width // self.sizes[0][1]) for h, w in self.sizes]

    def _show(self, stage: str) -> None:
        """A grid at each size into the run's folder and into TensorBoard."""
        p = self.hparams
        classes = p.sample_classes or list(range(min(16, self.num_classes)))
        folder = Path(self.trainer.default_root_dir) / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        for height, width in self._sample_sizes():
            with self.trainer.precision_plugin.forward_context():
                images = self.sample(classes if self.num_classes else None, (height, width), count=p.samples_per_class)
            pixels = sampling.grid_of(images[:, :3] if images.shape[1] != 2 else images[:, :1])
            Image.fromarray(to_uint8(pixels).numpy()).save(folder / f"step{self.global_step:07d}_{height}x{width}.png")
            for logger in self.loggers:
                if hasattr(logger.experiment, "add_image"):
                    logger.experiment.add_image(f"{stage}/samples@{height}x{width}", pixels, self.global_step)
