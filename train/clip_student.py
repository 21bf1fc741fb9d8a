"""TULIP's first stage with a teacher from this package: the text tower of a checkpoint of ``ContrastiveClip``."""

from typing import Any

import torch

from train.checkpoint import readable
from train.clip_distill import ClipDistillation
from train.clip_towers import TwoTowers, start_from, towers_of
from train.data.captioned import Pair
from train.schedule import ScheduledTask


class TextDistillation(ClipDistillation):
    """Distils a rotary copy of a text tower from the tower itself, on the captions of any image-text data; images are not used.

    Args:
        teacher_from: A checkpoint of ``ContrastiveClip`` whose text tower has a learned table. Captions must fit it.
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
        teacher_from: str,
        *,
        context_length: int = 248,
        optimizer: str = "adamw",
        lr: float = 5e-4,
        weight_decay: float = 0.1,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.05,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
    ) -> None:
        ScheduledTask.__init__(self)
        self.save_hyperparameters()
        from vispe.models.clip_text import student_of

        towers, settings = teacher_towers(teacher_from)
        self.teacher = towers.text.eval().requires_grad_(False)
        self.context = self.teacher.context_length
        self.in_chans, self.img_size = 3, (settings["model_kwargs"] or {}).get("img_size", 224)  # of images that go unused
        self.student = student_of(self.teacher, context_length=context_length)

    def training_step(self, batch: Pair, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch.ids, batch_idx)

    def validation_step(self, batch: Pair, batch_idx: int) -> None:
        super().validation_step(batch.ids, batch_idx)

    def test_step(self, batch: Pair, batch_idx: int) -> None:
        super().test_step(batch.ids, batch_idx)


def teacher_towers(path: str) -> tuple[TwoTowers, dict[str, Any]]:
    """Both towers of a checkpoint of ``ContrastiveClip`` and its settings; the text tower must have a learned table."""
    with readable(path):
        settings = torch.load(path, map_location="cpu", weights_only=True).get("hyper_parameters", {})
    if "text_positions" not in settings:
        raise ValueError(f"{path} is no checkpoint of ContrastiveClip")
    if settings["text_positions"] != "learned":
        raise ValueError(f"{path}: its text tower is {settings['text_positions']!r}; a teacher has a 'learned' table")
    # not ContrastiveClip itself: under the command line Lightning would give it this task's settings as its own
    towers = towers_of(settings)
    start_from(towers, path, which="all")
    return towers, settings
