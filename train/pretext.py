"""What the pretext tasks on positions share: host, optimizer, resuming, logging and repeatable evaluation."""

from typing import Any

import timm
import torch
from timm.layers import PatchDropoutWithIndices, to_2tuple

from train.schedule import ScheduledTask
from train.seeds import mix
from vispe.models.video_vit import EncodedVideoTransformer
from vispe.models.vit import EncodedVisionTransformer


class PretextTask(ScheduledTask):
    """Base of the tasks that train a ViT to tell where its patches come from; labels are not used.

    The checkpoint's ``net.`` entries are the ViT's: give the file to ``ImageClassification`` as ``init_from``. Its
    classifier is neither used nor trained here.

    Args:
        model: A ViT of vispe (``vispe list``).
        model_kwargs: Arguments of ``timm.create_model``: num_classes and in_chans (those of the data), img_size, ...
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors and what the model names are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
        grad_checkpointing: Recompute the ViT's activations in the backward pass to save memory.
    """

    def __init__(
        self,
        model: str,
        model_kwargs: dict[str, Any] | None = None,
        *,
        optimizer: str = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.05,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
        grad_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model, kwargs = model, dict(model_kwargs or {})
        self.net = timm.create_model(model, **kwargs)
        name = type(self).__name__
        if not isinstance(self.net, EncodedVisionTransformer) or isinstance(self.net, EncodedVideoTransformer):
            raise ValueError(f"{name}: needs a ViT of vispe, e.g. 'vit_s_sincos2d' (see `vispe list`), got {model!r}")
        if isinstance(self.net.patch_drop, PatchDropoutWithIndices):
            raise ValueError(f"{name}: chooses the visible patches itself; leave patch_drop_rate out of model_kwargs")
        self.num_classes, self.in_chans = self.net.num_classes, kwargs.get("in_chans", 3)
        self.img_size = kwargs.get("img_size", 224)
        self.grid = tuple(int(n) for n in self.net.patch_embed.dynamic_feat_size(to_2tuple(self.img_size)))
        self.cells = self.grid[0] * self.grid[1]
        for unused in (self.net.head, self.net.attn_pool):
            if unused is not None:
                unused.requires_grad_(False)
        if grad_checkpointing:
            self.net.set_grad_checkpointing()

    def step(
        self, images: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and accuracy of images; a generator, when given, makes the random choices."""
        raise TypeError(f"{type(self).__name__} has no step; use DropPos or PositionPrediction")

    def patches(self, images: torch.Tensor) -> torch.Tensor:
        """Patch tokens (B, N, C) of images of the size that the classifier over cells was made for."""
        x = self.net.patch_embed(images)  # (B, H, W, C)
        if tuple(x.shape[1:3]) != self.grid:
            raise ValueError(
                f"{type(self).__name__}: predicts the cells of a grid {self.grid}, got images {tuple(images.shape[-2:])} of "
                f"{tuple(x.shape[1:3])} patches; use model_kwargs.img_size {self.img_size} everywhere (data.img_size null)"
            )
        return x.flatten(1, 2)

    def with_prefix(self, x: torch.Tensor) -> torch.Tensor:
        """Patch tokens behind the ViT's class token and registers."""
        lead = [t.expand(x.shape[0], -1, -1) for t in (self.net.cls_token, self.net.reg_token) if t is not None]
        return torch.cat([*lead, x], dim=1)

    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        """The ViT's last normalisation of every token, also where it belongs to its classifier (global pooling)."""
        return self.net.fc_norm(self.net.norm(x))

    # set-up

    def setup(self, stage: str) -> None:
        data = self.trainer.datamodule
        if data is not None and (others := [size for size in data.eval_sizes if size != to_2tuple(self.img_size)]):
            raise ValueError(
                f"{type(self).__name__}: predicts the cells of one grid, so it evaluates at {self.img_size} alone; "
                f"take {others} out of data.eval_sizes"
            )

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Names that timm's optimizer factory exempts."""
        return {f"net.{name}" for name in self.net.no_weight_decay()}

    # steps

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss, accuracy = self.step(batch[0])
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/accuracy", accuracy)
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def _evaluate(self, stage: str, batch: Any, batch_idx: int) -> None:
        if batch is None:  # every sample of it was unreadable, and reported
            return
        generator = torch.Generator().manual_seed(mix(batch_idx, self.global_rank))  # the same choices in every run
        loss, accuracy = self.step(batch[0], generator)
        for name, value in (("loss", loss), ("accuracy", accuracy)):
            self.log(f"{stage}/{name}", value, on_epoch=True, on_step=False, sync_dist=True, batch_size=len(batch[0]))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate("val", batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate("test", batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        raise TypeError(
            f"{type(self).__name__} predicts no classes: train ImageClassification with model.init_from set to this "
            f"task's checkpoint, and predict with that"
        )
