"""Vision-language probes: one question about places in a picture, with any scheme of position ids."""

from typing import Any

import torch
from torch import Tensor, nn

from train.data.probes import ProbeBatch
from train.schedule import ScheduledTask
from train.seeds import mix, run_seed
from vispe.data.probes import VOCABULARY
from vispe.models.vlm import VisionLanguageModel


class VisionLanguageProbe(ScheduledTask):
    """Trains a small vision-language model on the answer's token; reports accuracy whole, by condition and by kind.

    Metrics are ``val/acc`` (data as in training), ``val/acc@CONDITION`` and ``val/acc@CONDITION/KIND``, and the same for test.

    Args:
        scheme: A scheme of position ids, by its name in ``vispe.positions.schemes``.
        scheme_kwargs: Options of the scheme.
        model_kwargs: Further arguments of ``VisionLanguageModel``: vision, vision_kwargs, vision_window, dim, depth, ...
        draw_rates: Draw V2PE's delta or HoPE's scale for every picture in training, as their authors do; null does so
            for schemes that have such a rate.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors and embeddings are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
    """

    def __init__(
        self,
        scheme: str = "rope1d",
        scheme_kwargs: dict[str, Any] | None = None,
        model_kwargs: dict[str, Any] | None = None,
        *,
        draw_rates: bool | None = None,
        optimizer: str = "adamw",
        lr: float = 2e-3,
        weight_decay: float = 0.01,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.1,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = VisionLanguageModel(len(VOCABULARY), scheme=scheme, scheme_kwargs=scheme_kwargs, **(model_kwargs or {}))
        rated = bool(self.net.scheme.choices)
        if draw_rates and not rated:
            raise ValueError(f"VisionLanguageProbe: scheme {scheme!r} has no rate to draw; set draw_rates to null")
        self.draws = rated if draw_rates is None else draw_rates
        self.correct: dict[str, list[Tensor]] = {}

    def optimised(self) -> nn.Module:
        return self.net

    def training_step(self, batch: ProbeBatch, batch_idx: int) -> Tensor:
        generator = None
        if self.draws:  # a function of the step alone, so that a resumed run draws the same
            generator = torch.Generator().manual_seed(mix(run_seed(), self.current_epoch, batch_idx, self.global_rank))
        logits = self.net(batch.sequences, generator=generator, last=True)
        loss = nn.functional.cross_entropy(logits.float(), batch.answers)
        size = len(batch.answers)
        self.log("train/loss", loss, prog_bar=True, batch_size=size)
        self.log("train/acc", (logits.argmax(-1) == batch.answers).float().mean(), prog_bar=True, batch_size=size)
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"], batch_size=size)
        return loss

    def answers(self, batch: ProbeBatch, rate: float | None = None) -> Tensor:
        """The most probable answers, (B,) int64; `rate` for every picture of schemes that have one."""
        rates = None if rate is None or not self.net.scheme.choices else [[rate]] * len(batch.answers)
        return self.net(batch.sequences, rates=rates, last=True).argmax(-1)

    def _evaluate(self, batch: ProbeBatch, loader: int) -> None:
        name, rate = list(self.trainer.datamodule.rates.items())[loader]
        right = self.answers(batch, rate) == batch.answers
        self.correct.setdefault(name, []).append(torch.stack((right.long(), batch.kinds)).cpu())

    def validation_step(self, batch: ProbeBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def test_step(self, batch: ProbeBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def _finish(self, stage: str) -> None:
        kinds = self.trainer.datamodule.kinds
        for name, parts in self.correct.items():
            right, kind = torch.cat(parts, dim=1)
            at = f"{stage}/acc@{name}" if name else f"{stage}/acc"
            counts = torch.stack([torch.bincount(kind, right, len(kinds)), torch.bincount(kind, minlength=len(kinds))])
            if self.trainer.world_size > 1:
                counts = self.all_gather(counts.to(self.device)).sum(0).cpu()
            share = counts[0] / counts[1].clamp(min=1)
            self.log(at, counts[0].sum() / counts[1].sum(), prog_bar=not name, rank_zero_only=True)
            for k, title in enumerate(kinds):
                self.log(f"{at}/{title}", share[k], rank_zero_only=True)
        self.correct = {}

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")

    def predict_step(self, batch: ProbeBatch, batch_idx: int) -> dict[str, Any]:
        """What the run's table of predictions takes: number of the question, and probabilities of the tokens."""
        prob = self.net(batch.sequences, last=True).float().softmax(-1)
        first = batch_idx * self.trainer.datamodule.eval_batch_size
        return {"name": [f"{first + i}" for i in range(len(prob))], "prob": prob}
