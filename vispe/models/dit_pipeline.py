"""Sampling by class: any size, guidance in an interval, any of diffusers' schedulers, saved as one folder. For texts see
`mmdit_pipeline`.

Different from diffusers' DiTPipeline: height and width, the model's own null class instead of 1000, guidance on all channels
unless `guide_channels` says otherwise (DiT's published numbers guide 3 of 4), a scheduler that predicts something else than the
model is refused, no autoencoder is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..positions import Positions
from .dit import EncodedDiT
from .guidance import check_interval, guide
from .mmdit import EncodedMMDiT

try:
    from diffusers import AutoencoderKL, DiffusionPipeline, ImagePipelineOutput, SchedulerMixin
    from diffusers.utils.torch_utils import randn_tensor
except ImportError as error:
    raise ImportError("Diffusion pipelines stand on diffusers: pip install vispe[diffusion]") from error

Unit = Literal["pixel", "latent"]
Output = Literal["pil", "np", "pt", "latent"]
SCHEDULED = {"sit_velocity": "flow_prediction"}  # what a scheduler calls it; the sign and the clock are turned here


class EncodedDiTPipeline(DiffusionPipeline):
    """Class-conditional (or unconditional) sampling.

    Args:
        transformer: the model.
        scheduler: DDPM, DDIM, DPM-Solver, FlowMatchEuler, ...; its prediction type has to be the model's.
        vae: decodes latents; None when the model's latents are pixels, in [-1, 1].
    """

    model_cpu_offload_seq = "transformer->vae"
    _optional_components = ["vae"]

    def __init__(
        self, transformer: EncodedDiT | EncodedMMDiT, scheduler: SchedulerMixin, vae: AutoencoderKL | None = None
    ) -> None:
        super().__init__()
        check_prediction(transformer, scheduler)
        if vae is not None and vae.config.latent_channels != transformer.in_channels:
            raise ValueError(
                f"EncodedDiTPipeline: the vae has {vae.config.latent_channels} latent channels, the model takes "
                f"{transformer.in_channels}; use the vae that the model was trained with."
            )
        self.register_modules(transformer=transformer, scheduler=scheduler, vae=vae)

    @property
    def vae_factor(self) -> int:
        """Pixels on a side of a latent cell."""
        return 1 if self.vae is None else 2 ** (len(self.vae.config.block_out_channels) - 1)

    def latent_size(self, height: int | None, width: int | None, unit: Unit = "pixel") -> tuple[int, int]:
        """Latent cells for a size in pixels or in latent cells; a side that is None is the model's own."""
        if unit not in ("pixel", "latent"):
            raise ValueError(f"EncodedDiTPipeline: unit must be 'pixel' or 'latent', got {unit!r}.")
        cell, patch = self.vae_factor if unit == "pixel" else 1, self.transformer.patch_size
        own = to_2tuple(self.transformer.config.input_size)
        sides = []
        for name, value, default in (("height", height, own[0]), ("width", width, own[1])):
            value = default * cell if value is None else value
            step = cell * patch
            if value < step or value % step:
                raise ValueError(
                    f"EncodedDiTPipeline: {name}={value} {unit}s is no multiple of {step} (a patch of {patch} cells"
                    f"{f' of {cell} pixels' if cell > 1 else ''}); take e.g. {max(value // step, 1) * step}."
                )
            sides.append(value // cell)
        return sides[0], sides[1]

    def labels(self, class_labels: int | Sequence[int] | Tensor | None, count: int) -> Tensor | None:
        """Class ids (B,) on the model's device, `count` times each; None for an unconditional model."""
        embedder = self.transformer.y_embedder
        if embedder is None:
            if isinstance(self.transformer, EncodedMMDiT):
                raise ValueError("EncodedDiTPipeline: the model takes texts; use EncodedMMDiTPipeline.")
            if class_labels is not None:
                raise ValueError("EncodedDiTPipeline: the model is unconditional; leave class_labels out.")
            return None
        if class_labels is None:
            raise ValueError(f"EncodedDiTPipeline: the model needs class_labels in 0..{embedder.num_classes - 1}.")
        ids = torch.as_tensor(class_labels).reshape(-1).cpu()
        if ids.is_floating_point():
            raise ValueError(f"EncodedDiTPipeline: class_labels are whole numbers, got {ids.dtype}.")
        embedder.check(ids.long())
        return ids.long().repeat_interleave(count).to(self._execution_device)

    @torch.no_grad()
    def __call__(
        self,
        class_labels: int | Sequence[int] | Tensor | None = None,
        *,
        height: int | None = None,
        width: int | None = None,
        unit: Unit = "pixel",
        samples_per_class: int = 1,
        num_inference_steps: int = 50,
        guidance_scale: float = 1.0,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        guide_channels: int | None = None,
        positions: Positions | None = None,
        crop: Tensor | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        output_type: Output = "pil",
        return_dict: bool = True,
    ) -> ImagePipelineOutput | tuple[Any]:
        """Draw samples.

        Args:
            class_labels: one id or several; the model's null class is its `num_classes`. None for an unconditional model.
            height, width: of the result, in pixels of the picture (default) or in latent cells, see `unit`; None takes what the
                model was made for.
            samples_per_class: samples of each label (of an unconditional model: samples).
            guidance_scale: 1 is no guidance and costs half.
            guidance_interval: (low, high) noise levels between 0 (data) and 1 (noise) in which guidance acts.
            guide_channels: guide only the first channels; 3 is official DiT's, SiT's and LightningDiT's.
            positions: of the patches, instead of the plain grid.
            crop: (1, 4) or (B, 4) micro-condition; None is the whole image.
            generator: of the caller's own, or one a sample.
            latents: (B, C, height, width) noise to start from, of unit variance; fixes the size.
            output_type: "pil", "np" (B, H, W, C) and "pt" (B, C, H, W) in [0, 1], or "latent".
        """
        check_output(output_type)
        y = self.labels(class_labels, samples_per_class)
        batch = samples_per_class if y is None else len(y)
        embedder = self.transformer.y_embedder
        if guidance_scale != 1.0 and (y is None or not embedder.null_class):
            raise ValueError("EncodedDiTPipeline: guidance needs a model with classes and a null class; use guidance_scale=1.")
        conditions: dict[str, Any] = {"positions": positions}
        if crop is not None:
            if not self.transformer.config.get("micro_conditioning"):
                raise ValueError("EncodedDiTPipeline: the model takes no crop; it needs micro_conditioning=True.")
            conditions["crop"] = crop
        x = self._noise(batch, self.latent_size(height, width, unit), generator, latents)
        x = self._denoise(
            x, num_inference_steps, {"y": y}, None if y is None else {"y": torch.full_like(y, embedder.num_classes)},
            scale=guidance_scale, interval=guidance_interval, channels=guide_channels, generator=generator, **conditions,
        )  # fmt: skip
        return self._result(x, output_type, return_dict)

    def _noise(self, batch: int, size: tuple[int, int], generator: Any, latents: Tensor | None) -> Tensor:
        shape = (batch, self.transformer.in_channels, *size)
        if latents is None:
            return randn_tensor(shape, generator=generator, device=self._execution_device, dtype=self.transformer.dtype)
        if latents.ndim != 4 or latents.shape[:2] != shape[:2]:
            raise ValueError(f"EncodedDiTPipeline: latents must be {shape[:2]} x height x width, got {tuple(latents.shape)}.")
        self.latent_size(*latents.shape[2:], unit="latent")
        return latents.to(self._execution_device, self.transformer.dtype)

    def _denoise(
        self, x: Tensor, steps: int, given: dict[str, Tensor], null: dict[str, Tensor] | None, *, scale: float,
        interval: tuple[float, float], channels: int | None, generator: Any, **conditions: Any,
    ) -> Tensor:  # fmt: skip
        """Latents from noise.

        Args:
            given, null: what a sample is of, by the model's own names, and the same of no class or an empty text.
            conditions: the same for both.
        """
        check_prediction(self.transformer, self.scheduler)
        low, high = check_interval(interval)
        extra = {"generator": generator} if "generator" in inspect.signature(self.scheduler.step).parameters else {}
        self.scheduler.set_timesteps(steps, device=x.device)
        x = x * getattr(self.scheduler, "init_noise_sigma", 1.0)
        for t in self.progress_bar(self.scheduler.timesteps):
            level = float(t) / self.scheduler.config.num_train_timesteps
            scaled = self.scheduler.scale_model_input(x, t) if hasattr(self.scheduler, "scale_model_input") else x
            guided = scale != 1.0 and low <= level <= high
            out = self._predict(scaled, t, given, null if guided else None, scale, channels, conditions)
            x = self.scheduler.step(out, t, x, return_dict=False, **extra)[0]
        return x

    def _predict(
        self, x: Tensor, t: Tensor, given: dict[str, Tensor], null: dict[str, Tensor] | None, scale: float,
        channels: int | None, conditions: dict[str, Any],
    ) -> Tensor:  # fmt: skip
        """What the scheduler expects: guided where there is a null, in its sign, with a variance only when it takes one."""
        model = self.transformer
        time = t.to(torch.float32)
        if model.prediction_type == "sit_velocity":  # time runs from noise (0) to data (1)
            time = 1 - time / self.scheduler.config.num_train_timesteps
        if null is None:
            out = model(x, time, **given, **conditions)
        else:
            both = {name: torch.cat((value, null[name])) for name, value in given.items()}
            doubled = {name: _twice(value) for name, value in conditions.items()}
            out = guide(*model(torch.cat((x, x)), time, **both, **doubled).chunk(2), scale, channels=channels)
        if out.shape[1] > x.shape[1] and not learned_variance(self.scheduler):
            out = out[:, : x.shape[1]]
        return -out if model.prediction_type == "sit_velocity" else out

    def _result(self, x: Tensor, output_type: Output, return_dict: bool) -> ImagePipelineOutput | tuple[Any]:
        images = self._decode(x, output_type)
        self.maybe_free_model_hooks()
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _decode(self, x: Tensor, output_type: Output) -> Any:
        if output_type == "latent":
            return x
        if self.vae is not None:
            shift = getattr(self.vae.config, "shift_factor", None) or 0.0
            x = self.vae.decode(x / self.vae.config.scaling_factor + shift, return_dict=False)[0]
        x = (x.float() / 2 + 0.5).clamp(0, 1)
        if output_type == "pt":
            return x
        array = x.permute(0, 2, 3, 1).cpu().numpy()
        if output_type == "np":
            return array
        if array.shape[-1] not in (1, 3):
            raise ValueError(
                f"EncodedDiTPipeline: {array.shape[-1]} channels are no picture; give the pipeline a vae, or ask for 'pt'."
            )
        return self.numpy_to_pil(array)


def _twice(value: Any) -> Any:
    """Conditions for the two halves of a guided batch; what serves every sample stays as it is."""
    if isinstance(value, Positions):
        if value.coords.shape[0] == 1:
            return value
        indices = None if value.indices is None else value.indices.repeat(2 if value.indices.shape[0] > 1 else 1, 1)
        return replace(value, coords=value.coords.repeat(2, 1, 1), indices=indices)
    return value if value is None or value.shape[0] == 1 else torch.cat((value, value))


def check_output(output_type: str) -> None:
    """Refuse another form of pictures, ahead of the steps."""
    if output_type not in ("pil", "np", "pt", "latent"):
        raise ValueError(f"EncodedDiTPipeline: output_type must be pil, np, pt or latent, got {output_type!r}.")


def learned_variance(scheduler: SchedulerMixin) -> bool:
    """Whether the scheduler takes the model's variance."""
    return str(getattr(scheduler.config, "variance_type", None) or "").startswith("learned")


def check_prediction(transformer: nn.Module, scheduler: SchedulerMixin) -> None:
    """Refuse a scheduler that takes the model's output for something else.

    A scheduler without a `prediction_type` in its configuration is one of flow matching.
    """
    own = SCHEDULED.get(transformer.prediction_type, transformer.prediction_type)
    takes = getattr(scheduler.config, "prediction_type", None) or "flow_prediction"
    name = type(scheduler).__name__
    if takes != own:
        raise ValueError(
            f"EncodedDiTPipeline: the model predicts {transformer.prediction_type!r}, {name} is set to {takes!r}; "
            f"create the scheduler with prediction_type={own!r}"
            + (" (a flow-matching one, e.g. FlowMatchEulerDiscreteScheduler)." if own == "flow_prediction" else ".")
        )
    if learned_variance(scheduler) and transformer.out_channels != 2 * transformer.in_channels:
        raise ValueError(
            f"EncodedDiTPipeline: {name} has variance_type={scheduler.config.variance_type!r}, but the model gives no variance "
            f"(learn_sigma=False); create the scheduler with a fixed one."
        )
