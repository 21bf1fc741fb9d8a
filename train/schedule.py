"""What every task shares: the optimizer with its schedule, resuming it, and randomness that depends on the step alone."""

from typing import Any

import torch
from lightning.pytorch import LightningModule

from train import optim
from train.seeds import run_seed, seed_all


class ScheduledTask(LightningModule):
    """Base of the tasks; its settings are those of `hparams` (optimizer, lr, weight_decay, warmup, ...)."""

    _started = False

    def start_weights(self) -> None:
        """Load what a new run starts from; not called where a checkpoint brings the weights."""

    def _start(self) -> None:
        # not in configure_model, where Lightning does not know yet whether there is a checkpoint
        if not self._started and not self.trainer.ckpt_path:
            self.start_weights()
        self._started = True

    def on_fit_start(self) -> None:
        self._start()

    def on_validation_start(self) -> None:
        self._start()

    def on_test_start(self) -> None:
        self._start()

    def on_predict_start(self) -> None:
        self._start()

    def optimised(self) -> torch.nn.Module:
        """The module whose parameters are trained; it names those that are not decayed."""
        return self

    def configure_optimizers(self) -> dict[str, Any]:
        """timm's optimizer and a cosine with warm-up, a step at a time."""
        p, steps = self.hparams, self.trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise ValueError("the cosine schedule needs an end: set trainer.max_epochs or trainer.max_steps")
        optimizer = optim.build_optimizer(
            self.optimised(),
            optimizer=p.optimizer,
            lr=p.lr,
            weight_decay=p.weight_decay,
            layer_decay=p.get("layer_decay"),
            options=dict(p.optimizer_kwargs or {}),
        )
        scheduler = optim.warmup_cosine(
            optimizer,
            steps=int(steps),
            warmup=p.warmup,
            warmup_lr_ratio=p.warmup_lr / p.lr,
            min_lr_ratio=p.min_lr / p.lr,
        )
        self._options = optim.group_options(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        """On a resume this run's options win over those of the checkpoint."""
        if self.trainer.ckpt_path:
            optim.restore_options(self.optimizers(use_pl_optimizer=False), self.lr_schedulers(), self._options)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # every random choice depends on the step alone: a resumed run repeats them exactly
        seed_all(run_seed(), self.current_epoch, batch_idx, self.global_rank)
