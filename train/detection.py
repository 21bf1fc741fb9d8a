"""3-D detection from a rig of cameras with any encoding of the table."""

import csv
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.data.rig import Rig, as_maps
from train.detection_metrics import CentreErrors, Detections
from train.schedule import ScheduledTask
from vispe.data.rig_scenes import RigScenes
from vispe.models.dense_head import DenseHead
from vispe.models.detector import Detector, decode
from vispe.models.detector_loss import detection_loss
from vispe.models.detector_parts import at_cells

MODELS: dict[str, type[nn.Module]] = {"dense": DenseHead, "queries": Detector}


class Detection(ScheduledTask):
    """Trains a detector of boxes around a rig of cameras.

    ``queries``: objects by Hungarian matching; mAP by the distance of centres as nuScenes counts it, and the error of centres.
    ``dense``: the centre of the box that a cell shows, by L1; errors over all cells that show one.

    Args:
        model: ``queries`` (PETR) or ``dense`` (a centre for every cell).
        model_kwargs: Arguments of the model: encoding, encoding_kwargs, image_size, embed_dim, depth, ...
        depth: Give the model the depth of every cell (for encodings that take it).
        depth_weight: Weight of a loss on the depth that the encoding predicts (the L1 distance of logarithms, all cells).
        depth_noise: Multiply that depth by exp(noise x N(0, 1)), anew in every step.
        class_weight: Weight of the class loss, with ``queries``.
        box_weight: Weight of the box loss, with ``queries``.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors and what the model names are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
        grad_checkpointing: Recompute blocks in the backward pass to save memory.
    """

    def __init__(
        self,
        model: Literal["queries", "dense"] = "queries",
        model_kwargs: dict[str, Any] | None = None,
        *,
        depth: bool = False,
        depth_noise: float = 0.0,
        depth_weight: float = 0.0,
        class_weight: float = 2.0,
        box_weight: float = 0.25,
        optimizer: str = "adamw",
        lr: float = 2e-3,
        weight_decay: float = 0.01,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 1 / 6,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
        grad_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if model not in MODELS:
            raise ValueError(f"Detection: model must be one of {tuple(MODELS)}, got {model!r}")
        if depth_noise < 0 or depth_noise and not depth:
            raise ValueError(f"Detection: depth_noise must not be negative and needs depth=true, got {depth_noise}")
        self.model, kwargs = model, dict(model_kwargs or {})
        self.net = MODELS[model](**kwargs)
        self.img_size, self.in_chans = kwargs.get("image_size", (24, 48)), kwargs.get("in_channels", 3)
        if grad_checkpointing:
            self.net.set_grad_checkpointing()
        self.metric = CentreErrors() if model == "dense" else Detections(self.net.classes.out_features)

    def optimised(self) -> nn.Module:
        return self.net

    def forward(self, batch: Rig, generator: torch.Generator | None = None) -> Any:
        """What the model finds; depth, where it is given, is that of the cells."""
        depth = None
        if self.hparams.depth:
            depth = as_maps(at_cells(batch.depth, self.net.cell), self.hparams.depth_noise, generator)
        return self.net(batch.images, batch.world_to_camera, batch.intrinsics, depth=depth)

    def on_cells(self, found: Tensor, batch: Rig) -> tuple[Tensor, Tensor]:
        """Centres found and true ones, (n, 3), of all cells that show a box."""
        label = at_cells(batch.object, self.net.cell)
        seen = label >= 0
        sample = torch.arange(len(label), device=label.device)[:, None, None, None].expand_as(label)
        return found[seen].float(), batch.boxes[sample[seen], label[seen], :3]

    def training_step(self, batch: Rig, batch_idx: int) -> Tensor:
        found = self(batch)
        if self.model == "dense":
            own, truth = self.on_cells(found, batch)
            loss = (own - truth).abs().mean() if len(own) else found.sum() * 0
        else:
            weights = (self.hparams.class_weight, self.hparams.box_weight)
            parts = detection_loss(found, batch.boxes, batch.present, weights=weights)
            loss = parts.pop("loss")
            self.log_dict({f"train/{name}": value for name, value in parts.items()})
        if self.hparams.depth_weight:
            off = self.depth_error(batch)
            self.log("train/depth", off)
            loss = loss + self.hparams.depth_weight * off
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def depth_error(self, batch: Rig) -> Tensor:
        """Mean distance of the logarithms of the predicted depth and of the true one, up to the end of the encoding's range."""
        low, far = 0.1, next(e.position_range[3] for _, e in self.net.encoding.encodings() if hasattr(e, "position_range"))
        truth = at_cells(batch.depth, self.net.cell).clamp(low, far)
        return (self.net.predicted_depth(batch.images).clamp(low).log() - truth.log()).abs().mean()

    def _evaluate(self, batch: Rig, batch_idx: int) -> None:
        found = self(batch, torch.Generator().manual_seed(batch_idx))
        if self.model == "dense":
            self.metric.update(*self.on_cells(found, batch))
        else:
            self.metric.update(decode(found), batch.boxes, batch.present)

    def validation_step(self, batch: Rig, batch_idx: int) -> None:
        self._evaluate(batch, batch_idx)

    def test_step(self, batch: Rig, batch_idx: int) -> None:
        self._evaluate(batch, batch_idx)

    def _finish(self, stage: str) -> None:
        if dist.is_available() and dist.is_initialized():
            own = self.metric.distances if self.model == "dense" else (self.metric.found, self.metric.truth)
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, own)
            self.metric.gather(everyone)
        for name, value in self.metric.compute().items():
            self.log(f"{stage}/{name}", value, prog_bar=name in ("mAP", "centre_error"), sync_dist=True)  # all have the same
        self.metric.reset()

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")

    def predict_step(self, batch: tuple[Any, ...], batch_idx: int) -> dict[str, Any]:
        """Adds the boxes of each scene to ``boxes.csv`` in the run's folder; ``dense`` has none."""
        *views, names = batch
        if self.model == "dense":
            raise ValueError("Detection: model 'dense' finds a centre for each cell and no boxes; predict with 'queries'")
        found = decode(self(Rig(*views)))
        folder = Path(self.trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "boxes.csv", "a" if batch_idx else "w", newline="") as file:
            writer = csv.writer(file)
            if not batch_idx:
                writer.writerow(["name", "class", "score", *"xyz", "length", "width", "height", "yaw"])
            for i, name in enumerate(names):
                for label, score, box in zip(*(found[key][i].tolist() for key in ("labels", "scores", "boxes"))):
                    writer.writerow([name, RigScenes.classes[label], f"{score:.4f}", *(f"{v:.3f}" for v in box)])
        return {}
