"""LOOPE's three-cell experiment: three coloured cells on an empty grid, six yes-or-no questions on how they lie.

Source: LOOPE, arXiv 2504.14386 (224 pixels, 14 x 14 cells of one patch, models trained with Adam at 1e-3; 59.4 % on average
without an encoding, 87.8 % with a learned table). Chosen here: the six questions are, for each of the three pairs of cells,
"is the first above the second?" and "is it left of it?"; rows and columns are all different, so that every question has an
answer, and guessing gives 50 %. No code of the paper was found, so that these need not be its very questions: compare models
with each other.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.vit import EncodedVisionTransformer
from .probe import probe

PAIRS = ((0, 1), (0, 2), (1, 2))
NAMES = ("red", "green", "blue")
QUESTIONS = tuple(f"{NAMES[a]} {word} {NAMES[b]}" for word in ("above", "left of") for a, b in PAIRS)


@dataclass(frozen=True)
class ThreeCell:
    """Share of right answers to each of the six questions, (6,), on held-out images, and what answered."""

    accuracy: Tensor
    mode: str
    questions: tuple[str, ...] = QUESTIONS


def three_cells(
    count: int, grid: tuple[int, int], cell: tuple[int, int], *, channels: int = 3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Images (count, channels, height, width), background 0, and answers (count, 6) of 0 and 1.

    Args:
        grid: (rows, columns), at least 3 each.
        cell: pixels of one cell, (height, width).
        channels: 3 or more: the cells are red, green and blue; fewer: three brightnesses.
    """
    if min(grid) < 3:
        raise ValueError(f"three_cell: needs at least 3 rows and 3 columns of patches, got {tuple(grid)}; use larger images.")
    generator = torch.Generator().manual_seed(seed)
    rows, cols = (torch.rand(count, n, generator=generator).argsort(-1)[:, :3] for n in grid)
    small = torch.zeros(count, channels, *grid)
    every = torch.arange(count)
    for i in range(3):
        colour = 3 * torch.eye(channels)[i] - 1 if channels >= 3 else torch.full((channels,), (-2.0, 1.0, 2.0)[i])
        small[every, :, rows[:, i], cols[:, i]] = colour
    answers = torch.stack([places[:, a] < places[:, b] for places in (rows, cols) for a, b in PAIRS], -1).float()
    return small.repeat_interleave(cell[0], 2).repeat_interleave(cell[1], 3), answers


def three_cell(
    host: EncodedVisionTransformer,
    size: tuple[int, int],
    *,
    mode: Literal["probe", "train"] = "probe",
    images: int = 768,
    steps: int = 500,
    batch: int = 64,
    lr: float = 1e-3,
    seed: int = 0,
) -> ThreeCell:
    """Accuracy of the model on the six questions, at `size` (height, width) in pixels.

    Args:
        mode: "probe" asks the frozen model: a ridge regression on its pooled features, which shows what they already tell.
            "train" is the paper's experiment: a copy of the model is trained on fresh images, and shows what the
            encoding lets it learn.
        images: of the probe, half to fit, a quarter to choose the penalty, a quarter to test; half as many test "train".
        steps, batch, lr: of "train" (Adam).
    """
    if mode not in ("probe", "train"):
        raise ValueError(f"three_cell: mode must be 'probe' or 'train', got {mode!r}.")
    if images < 8:
        raise ValueError(f"three_cell: images must be at least 8, got {images}.")
    weight = host.patch_embed.proj.weight
    cell, channels = tuple(host.patch_embed.patch_size), weight.shape[1]
    grid = tuple(host.patch_embed.dynamic_feat_size(size))
    draw = _Draw(grid, cell, channels, weight)
    if mode == "train":
        return ThreeCell(_trained(host, draw, images // 2, steps, batch, lr, seed), mode)
    pixels, answers = draw(images, seed)
    with torch.no_grad():
        features = torch.cat(
            [host.forward_head(host.forward_features(part), pre_logits=True) for part in pixels.split(batch)]
        )
    parts = torch.tensor([(0, 1, 0, 2)[i % 4] for i in range(images)])
    predicted, wanted = probe(features.float().cpu(), 2 * answers.cpu() - 1, parts)
    return ThreeCell(((predicted > 0) == (wanted > 0)).float().mean(0), mode)


@dataclass(frozen=True)
class _Draw:
    grid: tuple[int, int]
    cell: tuple[int, int]
    channels: int
    like: Tensor

    def __call__(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        pixels, answers = three_cells(count, self.grid, self.cell, channels=self.channels, seed=seed)
        return pixels.to(self.like), answers.to(self.like.device)


def _trained(
    host: EncodedVisionTransformer, draw: _Draw, test: int, steps: int, batch: int, lr: float, seed: int
) -> Tensor:
    with torch.random.fork_rng(), torch.enable_grad():  # the caller's random numbers stay as they are
        torch.manual_seed(seed)
        student = copy.deepcopy(host).train()
        student.reset_classifier(len(QUESTIONS))
        student.to(draw.like.device, draw.like.dtype).requires_grad_(True)
        optimizer = torch.optim.Adam(student.parameters(), lr=lr)
        for step in range(steps):
            pixels, answers = draw(batch, seed + 1 + step)
            optimizer.param_groups[0]["lr"] = lr * min((step + 1) / 50, 1.0)  # a short warm-up
            logits = student(pixels)
            logits = sum(logits) / 2 if isinstance(logits, tuple) else logits
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits.float(), answers).backward()
            optimizer.step()
    pixels, answers = draw(test, seed)
    with torch.no_grad():
        right = [(student.eval()(p) > 0) == (a > 0.5) for p, a in zip(pixels.split(batch), answers.split(batch))]
    return torch.cat(right).float().mean(0).cpu()
