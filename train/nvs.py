"""Novel view synthesis with any encoding of the table."""

from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from PIL import Image
from torch import Tensor, nn
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure

from train.data.scenes import Views, to_uint8
from train.schedule import ScheduledTask
from vispe.models.nvs import SceneTransformer, ViewTransformer

MODELS: dict[str, type[nn.Module]] = {"views": ViewTransformer, "scene": SceneTransformer}
SHOWN = 6  # scenes of a picture


class NovelViewSynthesis(ScheduledTask):
    """Trains a transformer to render a scene from cameras that took none of the given views; mean squared error.

    PSNR is that of the mean squared error over all pixels of all scenes (not the mean of each picture's), SSIM the mean over
    pictures; LPIPS is left out, as its network's weights come by download. Every evaluation saves ``views.png``: given views,
    truth and rendering side by side.

    Args:
        model: ``views`` (one transformer over all patches) or ``scene`` (encoder, and a decoder of rays).
        model_kwargs: Arguments of the model: encoding, encoding_kwargs, image_size, embed_dim, depth, num_heads, ...
        train_rays: Rays (queries) drawn from the targets of a scene at each training step, with ``scene``; 0 takes all.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors and what the model names are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
        compile: ``torch.compile`` mode; null is off.
        grad_checkpointing: Recompute blocks in the backward pass to save memory.
    """

    def __init__(
        self,
        model: Literal["views", "scene"] = "views",
        model_kwargs: dict[str, Any] | None = None,
        *,
        train_rays: int = 0,
        optimizer: str = "adamw",
        lr: float = 1.5e-3,
        weight_decay: float = 0.01,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 1 / 6,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
        compile: Literal["default", "reduce-overhead", "max-autotune"] | None = None,
        grad_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if model not in MODELS:
            raise ValueError(f"NovelViewSynthesis: model must be one of {tuple(MODELS)}, got {model!r}")
        if train_rays and model != "scene":
            raise ValueError("NovelViewSynthesis: train_rays needs model 'scene', which renders ray by ray; set it to 0")
        self.model, kwargs = model, dict(model_kwargs or {})
        self.net = MODELS[model](**kwargs)
        self.img_size, self.in_chans = kwargs.get("image_size", 32), kwargs.get("in_channels", 3)
        if grad_checkpointing:
            self.net.set_grad_checkpointing()
        if compile is not None:
            self.net.compile(mode=compile)
        self.conditions: list[str] = []
        self.psnr, self.ssim = nn.ModuleList(), nn.ModuleList()
        self._shown: tuple[Views, Tensor] | None = None

    def optimised(self) -> nn.Module:
        return self.net

    def setup(self, stage: str) -> None:
        data = self.trainer.datamodule
        self.conditions = list(getattr(data, "conditions", {"": {}}))
        self.psnr = nn.ModuleList(PeakSignalNoiseRatio(data_range=1.0) for _ in self.conditions)
        self.ssim = nn.ModuleList(StructuralSimilarityIndexMeasure(data_range=1.0) for _ in self.conditions)

    def forward(self, batch: Views) -> Tensor:
        """The target views (B, Vout, 3, H, W)."""
        return self.net(batch.images, batch.world_to_camera, batch.intrinsics)

    # steps

    def training_step(self, batch: Views, batch_idx: int) -> Tensor:
        if self.hparams.train_rays:
            loss = self._loss_of_rays(batch)
        else:
            loss = nn.functional.mse_loss(self(batch).float(), batch.targets)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def _loss_of_rays(self, batch: Views) -> Tensor:
        q = self.net.query_size
        truth = batch.targets.unfold(-2, q, q).unfold(-2, q, q)  # (B, V, 3, h, w, q, q)
        truth = truth.movedim(2, 4).flatten(1, 3)  # (B, V·h·w, 3, q, q)
        rays = torch.randint(truth.shape[1], (truth.shape[0], self.hparams.train_rays), device=truth.device)
        rendered = self.net(batch.images, batch.world_to_camera, batch.intrinsics, rays=rays)
        return nn.functional.mse_loss(rendered.float(), truth[torch.arange(len(rays), device=rays.device)[:, None], rays])

    def _evaluate(self, batch: Views, batch_idx: int, loader: int) -> None:
        rendered = self(batch).float()
        self.psnr[loader].update(rendered, batch.targets)
        self.ssim[loader].update(rendered.flatten(0, 1), batch.targets.flatten(0, 1))
        if loader == 0 and batch_idx == 0:
            self._shown = Views(*(t[:SHOWN] for t in batch)), rendered[:SHOWN]

    def validation_step(self, batch: Views, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Views, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, batch_idx, dataloader_idx)

    def _finish(self, stage: str) -> None:
        for name, *metrics in zip(self.conditions, self.psnr, self.ssim):
            for metric, counter in zip(("psnr", "ssim"), metrics):
                at = f"@{name}" if name else ""
                self.log(f"{stage}/{metric}{at}", counter.compute(), prog_bar=metric == "psnr" and not name, sync_dist=True)
                counter.reset()
        if self._shown is not None and self.trainer.is_global_zero and not self.trainer.sanity_checking:
            self._show(stage, picture(*self._shown))
        self._shown = None

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")

    def _show(self, stage: str, pixels: Tensor) -> None:
        folder = Path(self.trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(to_uint8(pixels).numpy()).save(folder / "views.png")
        for logger in self.loggers:
            if hasattr(logger.experiment, "add_image"):
                logger.experiment.add_image(f"{stage}/views", pixels, self.global_step)

    def predict_step(self, batch: tuple[Any, ...], batch_idx: int) -> dict[str, Any]:
        """Writes a picture of each scene into ``predictions`` of the run's folder; there is nothing to put into a table."""
        *views, names = batch
        views = Views(*views)
        folder = Path(self.trainer.default_root_dir) / "predictions"
        folder.mkdir(parents=True, exist_ok=True)
        for i, (name, rendered) in enumerate(zip(names, self(views).float())):
            one = picture(Views(*(t[i : i + 1] for t in views)), rendered[None])
            Image.fromarray(to_uint8(one).numpy()).save(folder / f"{Path(str(name)).stem}.png")
        rank_zero_info(f"{len(names)} pictures are in {folder}")
        return {}


def picture(views: Views, rendered: Tensor, *, scale: int = 3) -> Tensor:
    """(3, H, W): a row for each scene with the given views, each target's truth, and its rendering behind it."""
    pairs = torch.stack((views.targets, rendered), dim=2).flatten(1, 2)  # truth, rendering, truth, ...
    tiles = nn.functional.pad(torch.cat((views.images, pairs), dim=1), (1, 1, 1, 1), value=1.0)  # (B, V, 3, h, w)
    whole = tiles.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    return whole.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
