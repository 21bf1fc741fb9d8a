"""Class-conditional (or unconditional) image diffusion with any encoding of the table."""

from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torchmetrics import MeanMetric

import vispe
from train import diffusion_sampling as sampling
from train import weights
from train.diffusion_grids import SamplingTask
from train.diffusion_latents import latents_of
from train.metrics import label
from train.objectives import FLOWS, Ddpm, Flow
from train.seeds import mix, run_seed
from vispe.models.dit_zoo import is_dit
from vispe.positions.crop_condition import draw_crop, resize_and_crop
from vispe.positions.random import RandomPositions, step_generator


class DiffusionModule(SamplingTask):
    """Trains a diffusion transformer, logs the loss on fixed noise, and draws sample grids at several sizes at each validation.

    What the model predicts is an argument of the model: ``model_kwargs.prediction_type`` (epsilon, v_prediction, sample,
    flow_prediction, sit_velocity) and ``model_kwargs.learn_sigma``; the objective follows from it. The share of dropped classes
    for guidance is ``model_kwargs.class_dropout``.

    Args:
        model: A name of the diffusion zoo, ``dit_{s,b,l,xl}_{2,4,8}_{encoding}`` or ``mmdit_...``.
        model_kwargs: Arguments of ``EncodedDiT``: input_size, in_channels, num_classes, prediction_type, learn_sigma, ... Or of
            ``EncodedMMDiT`` with ``num_classes``, whose texts are then learned; it predicts flows.
        init_from: A file to start the weights from.
        vae: Folder of an AutoencoderKL of diffusers. It encodes the pictures of a data module of pictures and decodes samples;
            null: the model sees what the data module gives, pixels or latents.
        times: Noise levels of flows in training, ``uniform`` or ``logit_normal``.
        logit_mean: Mean of the normal variable behind ``logit_normal``, above 0 for more noise.
        logit_std: Its deviation.
        time_shift: Shift of a flow's noise levels in training and sampling, above 1 for more noise.
        direction_weight: Weight of the direction loss of flows; LightningDiT has 1.
        noise_schedule: Schedule of DDPM.
        train_steps: Steps of DDPM.
        resolution_shift: Shift the noise levels of a flow's samples by the root of their tokens over the trained ones, too
            (part of RPE-2D, and of SD3 at high resolution); training is not changed.
        random_positions: RPE-2D: {span, draws, inference} of ``RandomPositions``; null is off. The draws have a generator of
            their own, made of seed, process, epoch and batch; evaluation never draws.
        random_crop: Resize pictures to up to this multiple and take a random crop of the training size, told to a model with
            ``model_kwargs.micro_conditioning``; null is off. For pixels only.
        sample_sizes: [height, width] in latent cells at which to draw samples; null takes the training size and the data's
            further evaluation sizes.
        sample_classes: Class ids of the grid; null takes the first 16.
        samples_per_class: Samples of each.
        sample_steps: Steps of the sampler.
        sampler: ``euler`` or ``heun`` for flows, ``ddpm``, ``ddim`` or ``dpm`` for the others; ``auto`` picks.
        guidance: Scale of classifier-free guidance of the samples; 1 is off.
        guide_channels: Guide the first channels only; official DiT: 3. A learned variance is not guided in any case.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors and what the model names are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine; ``lr`` makes it constant.
        ema_decay: Decay of the averaged weights, which are then the ones evaluated and sampled from; 0 is off.
        ema_warmup: Let the decay rise from 0 in the beginning, for short runs.
        compile: ``torch.compile`` mode; null is off.
        grad_checkpointing: Recompute blocks in the backward pass to save memory.
    """

    def __init__(
        self,
        model: str = "dit_b_2_rope_axial",
        model_kwargs: dict[str, Any] | None = None,
        *,
        init_from: str | None = None,
        vae: str | None = None,
        times: Literal["uniform", "logit_normal"] = "uniform",
        logit_mean: float = 0.0,
        logit_std: float = 1.0,
        time_shift: float = 1.0,
        direction_weight: float = 0.0,
        noise_schedule: sampling.NoiseSchedule = "linear",
        train_steps: int = 1000,
        resolution_shift: bool = False,
        random_positions: dict[str, Any] | None = None,
        random_crop: float | None = None,
        sample_sizes: list[tuple[int, int]] | None = None,
        sample_classes: list[int] | None = None,
        samples_per_class: int = 1,
        sample_steps: int = 50,
        sampler: sampling.Sampler = "auto",
        guidance: float = 1.0,
        guide_channels: int | None = None,
        optimizer: str = "adamw",
        lr: float = 1e-4,
        weight_decay: float = 0.0,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.0,
        warmup_lr: float = 0.0,
        min_lr: float = 1e-4,
        ema_decay: float = 0.9999,
        ema_warmup: bool = False,
        compile: Literal["default", "reduce-overhead", "max-autotune"] | None = None,
        grad_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if not is_dit(model):
            raise ValueError(f"DiffusionModule: needs a model dit_{{size}}_{{patch}}_{{encoding}} or mmdit_..., got {model!r}")
        self.model = model
        self.net = vispe.create_model(model, **(model_kwargs or {}))
        self.num_classes = self.net.config.num_classes
        if model.startswith("mmdit_") and not self.num_classes:
            raise ValueError("DiffusionModule: a model mmdit_... learns a text for each class; set model_kwargs.num_classes")
        self.learn_sigma = self.net.out_channels > self.net.in_channels and self.net.prediction_type not in FLOWS
        self.objective = self._objective()
        self.policy = None if random_positions is None else RandomPositions(**random_positions)
        self.latents = latents_of(vae, channels=self.net.in_channels)
        self._check_crop()
        self.scheduler()  # a sampler that does not fit the prediction is refused now, not at the first validation
        if grad_checkpointing:
            self.net.enable_gradient_checkpointing()
        self.ema = ModelEmaV3(self.net, decay=ema_decay, use_warmup=ema_warmup, exclude_buffers=True) if ema_decay else None
        if self.ema is not None:
            self.ema.requires_grad_(False).train()  # no gradients: DDP would wait for them; the mode follows Lightning
        self.val_losses = nn.ModuleList()
        self._compiled = False

    def _objective(self) -> Flow | Ddpm:
        p, prediction = self.hparams, self.net.prediction_type
        if prediction in FLOWS:
            return Flow(
                prediction, times=p.times, logit_mean=p.logit_mean, logit_std=p.logit_std, shift=p.time_shift,
                direction=p.direction_weight,
            )  # fmt: skip
        if p.times != "uniform" or p.time_shift != 1 or p.direction_weight or p.resolution_shift:
            raise ValueError(
                f"DiffusionModule: times, time_shift, resolution_shift and direction_weight are for flows, the model predicts "
                f"{prediction!r}; leave them, or set model_kwargs.prediction_type"
            )
        return Ddpm(prediction, sampling.noise_table(p.noise_schedule, p.train_steps), learn_sigma=self.learn_sigma)

    def _check_crop(self) -> None:
        crop = self.hparams.random_crop
        if crop is not None and (crop < 1 or self.latents.vae is not None or not self.net.config.get("micro_conditioning")):
            raise ValueError(
                f"DiffusionModule: random_crop={crop} needs a number of at least 1, pixels (no vae), and a model that is told, "
                f"--model.model_kwargs.micro_conditioning true"
            )

    # set-up

    @property
    def img_size(self) -> tuple[int, int]:
        """(height, width) that a data module gives: latent cells times the autoencoder's factor if it encodes pictures."""
        size = self.net.config.input_size
        height, width = (size, size) if isinstance(size, int) else size
        vae = self.latents.vae
        factor = 1 if vae is None or self._data_is_latent() else 2 ** (len(vae.config.block_out_channels) - 1)
        return height * factor, width * factor

    @property
    def in_chans(self) -> int:
        """Channels that a data module gives."""
        vae = self.latents.vae
        return self.net.in_channels if vae is None or self._data_is_latent() else vae.config.in_channels

    def _data_is_latent(self) -> bool:
        data = None if self._trainer is None else self.trainer.datamodule
        return bool(getattr(data, "latent", False))

    def configure_model(self) -> None:
        """Compilation in place, which leaves the names in the state dict as they are."""
        if self.hparams.compile is not None and not self._compiled:
            self.net.compile(mode=self.hparams.compile)
        self._compiled = True

    def start_weights(self) -> None:
        if self.hparams.init_from:
            for line in weights.init_from(self.net, self.hparams.init_from):
                rank_zero_info(f"init_from: {line}")
            if self.ema is not None:
                self.ema.set(self.net)

    def setup(self, stage: str) -> None:
        if self.hparams.random_crop and self._data_is_latent():
            raise ValueError("DiffusionModule: random_crop resizes pictures, and the data are latents; leave it out")
        data = self.trainer.datamodule
        self.sizes = [tuple(size) for size in data.sizes()] if data is not None else [self.img_size]
        self.val_losses = nn.ModuleList(MeanMetric() for _ in self.sizes)

    def optimised(self) -> nn.Module:
        return self.net

    @property
    def evaluated(self) -> nn.Module:
        """The averaged weights if there are some."""
        return self.net if self.ema is None else self.ema.module

    # training

    def _clean(self, images: Tensor) -> Tensor:
        return images if self._data_is_latent() else self.latents.encode(images)

    def _crop(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Crops of the training size and their conditions (B, 4)."""
        if self.hparams.random_crop is None:
            return images, None
        height, width = images.shape[-2:]
        if height != width:
            raise ValueError(f"DiffusionModule: random_crop takes squares, the pictures are {height}x{width}")
        crops = [draw_crop(height, width, size=height, most=self.hparams.random_crop, generator=generator) for _ in images]
        cut = torch.stack([resize_and_crop(image, crop) for image, crop in zip(images, crops)])
        return cut, torch.tensor([crop.condition for crop in crops], device=images.device)

    def _loss(self, x: Tensor, labels: Tensor, generator: torch.Generator | None, **conditions: Any) -> dict[str, Tensor]:
        """Terms (B,) at noise levels and noise from the generator, or from the global one of this step."""
        level = self.objective.draw(len(x), generator=generator, device=x.device)
        noise = torch.randn(x.shape, generator=generator, device=x.device if generator is None else "cpu").to(x.device, x.dtype)
        given = self.objective.noised(x, noise, level)
        net = self.net if self.training else self.evaluated
        output = net(given.x, given.time, y=labels if self.num_classes else None, **conditions)
        return self.objective.losses(output, given)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = batch[:2]
        own = step_generator(run_seed(), rank=self.global_rank, step=(self.current_epoch << 32) + batch_idx)
        conditions: dict[str, Any] = {}
        images, crop = self._crop(images, own)
        if crop is not None:
            conditions["crop"] = crop
        x = self._clean(images).float()
        if self.policy is not None:
            conditions["positions"] = self.policy(self._grid(x), batch=len(x), generator=own)
        terms = self._loss(x, labels, None, **conditions)
        loss = sum(term.mean() for term in terms.values())
        self.log("train/loss", loss, prog_bar=True)
        for name, term in terms.items() if len(terms) > 1 else ():
            self.log(f"train/{name}", term.mean())
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def _grid(self, x: Tensor) -> Any:
        p = self.net.patch_size
        return self.net.positions(x.shape[-2] // p, x.shape[-1] // p, device=x.device)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.ema is not None:  # here and not at the end of the batch, which comes after checkpoints are saved
            self.ema.update(self.net, step=self.global_step + 1)

    # evaluation

    def _evaluate(self, batch: Any, batch_idx: int, loader: int) -> None:
        if batch is None:  # every sample of it was unreadable, and reported
            return
        images, labels = batch[:2]
        generator = torch.Generator().manual_seed(mix(loader, batch_idx, self.global_rank))  # the same each time
        x = self._clean(images).float()
        positions = None if self.policy is None else self.policy(self._grid(x))
        terms = self._loss(x, labels, generator, positions=positions)
        self.val_losses[loader].update(sum(terms.values()))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, batch_idx, dataloader_idx)

    def _finish(self, stage: str) -> None:
        for size, counter in zip(self.sizes, self.val_losses):
            name = label(stage, "loss", size=size, train_size=self.sizes[0], coords=None)
            self.log(name, counter.compute(), prog_bar=size == self.sizes[0], sync_dist=True)
            counter.reset()
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            self._show(stage)

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")
