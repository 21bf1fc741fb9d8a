"""Sampling from EncodedMMDiT by texts that an encoder of yours has turned into vectors. Models with classes: `dit_pipeline`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..positions import Positions
from .dit_pipeline import EncodedDiTPipeline, Output, Unit, check_output

try:
    from diffusers import ImagePipelineOutput
except ImportError as error:
    raise ImportError("Diffusion pipelines stand on diffusers: pip install vispe[diffusion]") from error


class EncodedMMDiTPipeline(EncodedDiTPipeline):
    """Text-conditional sampling; model, scheduler and vae as for EncodedDiTPipeline."""

    @torch.no_grad()
    def __call__(
        self,
        text: Tensor,
        *,
        pooled: Tensor | None = None,
        text_mask: Tensor | None = None,
        null_text: Tensor | None = None,
        null_pooled: Tensor | None = None,
        null_text_mask: Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
        unit: Unit = "pixel",
        samples_per_text: int = 1,
        num_inference_steps: int = 28,
        guidance_scale: float = 1.0,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        positions: Positions | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        output_type: Output = "pil",
        return_dict: bool = True,
    ) -> ImagePipelineOutput | tuple[Any]:
        """Draw samples.

        Args:
            text: (B, T, text_dim). pooled: (B, pooled_dim) of a model that takes it. text_mask: (B, T), true but in padding.
            null_text, null_pooled, null_text_mask: the same of the empty (or a negative) text, one for all (1, ...) or B;
                needed by guidance, with as many tokens as text (pad and mask both).
            samples_per_text: samples of each text, in a row.
            the rest: see EncodedDiTPipeline.
        """
        check_output(output_type)
        if self.transformer.y_embedder is not None:
            raise ValueError("EncodedMMDiTPipeline: the model has classes and takes no text; use EncodedDiTPipeline.")
        given = self._texts(text, pooled, text_mask, len(text), samples_per_text)
        null = None
        if guidance_scale != 1.0:
            if null_text is None:
                raise ValueError("EncodedMMDiTPipeline: guidance needs null_text, what your encoder makes of the empty text.")
            null = self._texts(null_text, null_pooled, null_text_mask, len(text), samples_per_text)
            for name in sorted({*given, *null}):
                a, b = (side[name].shape if name in side else None for side in (given, null))
                if a != b:
                    raise ValueError(
                        f"EncodedMMDiTPipeline: {name} is {a and tuple(a)} and null_{name} {b and tuple(b)}; they must be "
                        f"alike: pad to the same number of tokens and give both masks."
                    )
        x = self._noise(len(given["text"]), self.latent_size(height, width, unit), generator, latents)
        x = self._denoise(
            x, num_inference_steps, given, null, scale=guidance_scale, interval=guidance_interval, channels=None,
            generator=generator, positions=positions,
        )  # fmt: skip
        return self._result(x, output_type, return_dict)

    def _texts(self, text: Tensor, pooled: Tensor | None, mask: Tensor | None, batch: int, each: int) -> dict[str, Tensor]:
        """By the model's own names, one a sample."""
        parts = {"text": text, "pooled": pooled, "text_mask": mask}
        made = {}
        for name, value in parts.items():
            if value is None:
                continue
            if len(value) not in (1, batch):
                raise ValueError(f"EncodedMMDiTPipeline: {name} is for {len(value)} texts, there are {batch}.")
            value = value if name == "text_mask" else value.to(self.transformer.dtype)
            made[name] = value.to(self._execution_device).expand(batch, *value.shape[1:]).repeat_interleave(each, dim=0)
        return made
