"""Image classification with any timm or vispe model."""

from typing import Any, Literal

import timm
import torch
from lightning.pytorch.utilities import rank_zero_info
from timm.data import Mixup
from timm.loss import BinaryCrossEntropy, SoftTargetCrossEntropy
from timm.utils import ModelEmaV3
from torch import nn

import vispe  # noqa: F401  registers vispe's models in timm
from train import optim, weights
from train.metrics import Accuracies
from train.schedule import ScheduledTask


class ImageClassification(ScheduledTask):
    """Trains and evaluates an image classifier; all settings are plain values, kept in the checkpoint.

    Args:
        model: Any timm model name; ``vispe list`` shows ours.
        model_kwargs: Arguments of ``timm.create_model``: num_classes, img_size, in_chans, drop_path_rate, ...
        init_from: A file to start the weights from (.ckpt of ours, .safetensors, .pth); another image size is resampled.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors and what the model names are exempt.
        layer_decay: Factor of the learning rate from each block to the one before it; null is off.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
        loss: ``ce`` cross-entropy or ``bce`` binary cross-entropy of each class.
        bce_threshold: With ``bce``, targets above it count as 1 (DeiT-III: 0.0); null keeps soft targets.
        label_smoothing: Label smoothing.
        mixup: Mixup alpha, 0 is off.
        cutmix: CutMix alpha, 0 is off; with both on, each batch takes one of them.
        mixup_prob: Probability of mixing a batch at all.
        ema_decay: Decay of the averaged weights, which are then the ones evaluated; 0 is off.
        ema_warmup: Let the decay rise from 0 in the beginning, for short runs.
        compile: ``torch.compile`` mode; null is off.
        grad_checkpointing: Recompute activations in the backward pass to save memory.
        eval_coords: Coordinate conventions to evaluate as well, with the same weights;
            vispe models know ``extend`` and ``rescale``.
    """

    def __init__(
        self,
        model: str = "vit_s_rope_mixed",
        model_kwargs: dict[str, Any] | None = None,
        *,
        init_from: str | None = None,
        optimizer: str = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        layer_decay: float | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.05,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
        loss: Literal["ce", "bce"] = "ce",
        bce_threshold: float | None = None,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mixup_prob: float = 1.0,
        ema_decay: float = 0.0,
        ema_warmup: bool = False,
        compile: Literal["default", "reduce-overhead", "max-autotune"] | None = None,
        grad_checkpointing: bool = False,
        eval_coords: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model, self.kwargs = model, dict(model_kwargs or {})
        self.net = timm.create_model(model, **self.kwargs)
        self.num_classes = self.net.num_classes
        self.in_chans = self.kwargs.get("in_chans", 3)
        self.img_size = self.kwargs.get("img_size", 224)
        self.coords = [None, *(eval_coords or [])]
        if eval_coords and not hasattr(self.net, "set_coords"):
            raise ValueError(f"eval_coords {eval_coords}: model {model!r} has no set_coords; leave eval_coords empty for it")
        if grad_checkpointing:
            self.net.set_grad_checkpointing()
        self.ema = ModelEmaV3(self.net, decay=ema_decay, use_warmup=ema_warmup, exclude_buffers=True) if ema_decay else None
        if self.ema is not None:
            self.ema.requires_grad_(False).train()  # no gradients: DDP would wait for them; the mode follows Lightning
        self.mixing = self._mixing()
        self.criterion = self._criterion()
        self.accuracies: Accuracies | None = None
        self._compiled = False
        self._resampled: set[str] = set()

    def _mixing(self) -> Mixup | None:
        p = self.hparams
        if not (p.mixup or p.cutmix):
            return None
        return Mixup(
            p.mixup, p.cutmix, prob=p.mixup_prob, label_smoothing=p.label_smoothing, num_classes=self.num_classes
        )

    def _criterion(self) -> nn.Module:
        p = self.hparams
        if p.loss == "bce":
            return BinaryCrossEntropy(0.0 if self.mixing else p.label_smoothing, target_threshold=p.bce_threshold)
        return SoftTargetCrossEntropy() if self.mixing else nn.CrossEntropyLoss(label_smoothing=p.label_smoothing)

    # set-up

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
        data = self.trainer.datamodule
        if stage in ("fit", "validate", "test") and data is not None:
            groups = getattr(data, "class_groups", None)
            self.accuracies = Accuracies(self.num_classes, data.sizes(), self.coords, groups=groups)

    def optimised(self) -> nn.Module:
        return self.net

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._resampled, lines = weights.fit_checkpoint(self, checkpoint)
        for line in lines:
            rank_zero_info(f"checkpoint: {line}")

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.trainer.ckpt_path:
            optimizer = self.optimizers(use_pl_optimizer=False)
            resampled = [p for name, p in self.net.named_parameters() if name in self._resampled]
            if dropped := optim.drop_stale_state(optimizer, resampled):
                rank_zero_info(f"checkpoint: the moments of {dropped} resampled parameters start anew")

    # training

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, C) of images (B, channels, H, W), from the averaged weights if there are some and it is not training."""
        return (self.net if self.training or self.ema is None else self.ema.module)(images)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch[:2]
        if self.mixing is not None:
            if len(images) % 2:
                raise ValueError(f"mixup pairs the images of a batch, so data.batch_size must be even, got {len(images)}")
            images, labels = self.mixing(images, labels)
        loss = self.criterion(self(images).float(), labels)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.ema is not None:  # here and not at the end of the batch, which comes after checkpoints are saved
            self.ema.update(self.net, step=self.global_step + 1)

    # evaluation

    def _evaluate(self, batch: Any, loader: int) -> None:
        if batch is None:  # every sample of it was unreadable, and reported
            return
        images, labels = batch[:2]
        for slot, coords in enumerate(self.coords):
            self._set_coords(coords)
            self.accuracies.update(loader, slot, self(images).float(), labels)
        self._set_coords(None)

    def _set_coords(self, coords: str | None) -> None:
        if len(self.coords) > 1:
            (self.net if self.ema is None else self.ema.module).set_coords(coords)

    def _log_results(self, stage: str) -> None:
        for name, value in self.accuracies.results(stage):
            self.log(name, value, prog_bar=name == f"{stage}/top1", sync_dist=True)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_results("val")

    def on_test_epoch_end(self) -> None:
        self._log_results("test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        """Names, class ids (B,) and probabilities (B, C) of a batch."""
        if batch is None:
            return None
        images, _, names = batch
        probs = self(images).float().softmax(-1)
        return {"name": list(names), "class": probs.argmax(-1).cpu(), "prob": probs.cpu()}
