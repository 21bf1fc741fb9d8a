"""TULIP's first stage: a text tower with rotary positions learns the features of a frozen one on captions that fit both.

The second stage is CLIP's own contrastive training of the student beside the image tower (open_clip's training program with
`vispe.models.clip_text.rotate_text`, learning rate 1e-5, one epoch, context 248).
"""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from train.data.sampling import EpochSampler, EvalSampler, Key, ResumableLoader
from train.schedule import ScheduledTask
from train.seeds import run_seed


class ClipDistillation(ScheduledTask):
    """Distils a rotary copy of an open_clip text tower from the tower itself: the mean of 1 − cosine of both features.

    The token embedding stays frozen, as in TULIP. ``student.*`` in the checkpoint are the student's weights, by open_clip's
    names.

    Args:
        model: A name of open_clip (``open_clip.list_models()``), whose text tower is the teacher.
        pretrained: A file of weights for it, or a tag that open_clip has locally; null is random, for trials.
        text_config: Changes of the tower's configuration: layers, width, heads, ...
        context_length: Most tokens of the student.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases and vectors are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
    """

    def __init__(
        self,
        model: str = "ViT-B-16",
        *,
        pretrained: str | None = None,
        text_config: dict[str, Any] | None = None,
        context_length: int = 248,
        optimizer: str = "adamw",
        lr: float = 5e-4,
        weight_decay: float = 0.1,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.05,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        import open_clip

        from vispe.models.clip_text import student_of

        config = open_clip.get_model_config(model)
        if config is None:
            raise ValueError(f"ClipDistillation: open_clip has no model {model!r}; see open_clip.list_models()")
        text = config["text_cfg"] | (text_config or {})
        whole = open_clip.create_model(model, pretrained=pretrained, text_cfg=text, force_custom_text=True)
        self.teacher = whole.text.eval().requires_grad_(False)
        self.context = self.teacher.context_length
        self.student = student_of(self.teacher, context_length=context_length)

    def optimised(self) -> torch.nn.Module:
        return self.student

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of token ids (B, L), L at most the teacher's context."""
        from vispe.models.clip_text import distillation_loss

        with torch.no_grad():
            wanted = self.teacher.eval()(ids)
        return distillation_loss(self.student(ids), wanted)

    def training_step(self, ids: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.step(ids)
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def validation_step(self, ids: torch.Tensor, batch_idx: int) -> None:
        self.log("val/loss", self.step(ids), prog_bar=True, sync_dist=True, batch_size=len(ids))

    def test_step(self, ids: torch.Tensor, batch_idx: int) -> None:
        self.log("test/loss", self.step(ids), sync_dist=True, batch_size=len(ids))


class Captions(LightningDataModule):
    """One caption a line in ``root/train.txt`` and ``root/val.txt`` (``root/test.txt``, else ``val.txt`` serves for it).

    A caption that does not fit the teacher's context is an error that names its line: nothing is cut off.

    Args:
        root: The folder of the files.
        batch_size: Captions a step in each process.
        num_workers: Loader processes for each training process.
        seed: Seed of the order; null takes the run's ``seed_everything``.
    """

    def __init__(self, root: str, *, batch_size: int = 80, num_workers: int = 0, seed: int | None = None) -> None:
        super().__init__()
        self.root, self.batch_size, self.num_workers = Path(root), batch_size, num_workers
        self.seed = run_seed() if seed is None else seed

    def captions(self, split: str) -> "CaptionFile":
        """The captions of a split."""
        path = self.root / f"{split}.txt"
        if split == "test" and not path.is_file():
            path = self.root / "val.txt"
        if not path.is_file():
            raise FileNotFoundError(f"Captions: no file {path}; expected one caption a line")
        return CaptionFile(path, self.trainer.lightning_module.context)

    def _processes(self) -> dict[str, int]:
        return {"num_replicas": self.trainer.world_size, "rank": self.trainer.global_rank}

    def train_dataloader(self) -> DataLoader:
        data = self.captions("train")
        sampler = EpochSampler(data, **self._processes(), seed=self.seed)
        loader = ResumableLoader(
            data, batch_size=self.batch_size, sampler=sampler, drop_last=True, num_workers=self.num_workers
        )
        loop = self.trainer.fit_loop
        loader.position = lambda: (loop.epoch_progress.current.processed, loop.epoch_loop.batch_progress.current.ready)
        return loader

    def _eval_loader(self, split: str) -> DataLoader:
        data = self.captions(split)
        sampler = EvalSampler(data, **self._processes())
        return DataLoader(data, batch_size=self.batch_size, sampler=sampler, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader:
        return self._eval_loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._eval_loader("test")


class CaptionFile(torch.utils.data.Dataset):
    """Token ids (context_length,) of each line of a file; empty lines do not count."""

    def __init__(self, path: Path, context_length: int) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        self.path, self.context_length = path, context_length
        self.lines = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
        if not self.lines:
            raise ValueError(f"Captions: {path} holds no caption")

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, key: Key | int) -> torch.Tensor:
        from vispe.models.clip_text import tokenize

        number, text = self.lines[key.index if isinstance(key, Key) else key]
        try:
            return tokenize(text, self.context_length)[0]
        except ValueError as error:
            raise ValueError(f"{self.path}, line {number}: {error}") from error
