"""Hungarian matching of queries and objects, and the losses of a detector with queries.

As DETR (Carion et al., arXiv 2005.12872) with the focal loss of Deformable DETR and PETR: class scores by sigmoid focal loss
(α = 0.25, γ = 2, Lin et al., arXiv 1708.02002), boxes by L1; a query without an object is background.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ALPHA, GAMMA = 0.25, 2.0


def assign(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The assignment of all rows to different columns of least total cost, (R, C) with R <= C: row and column numbers.

    Shortest augmenting paths with potentials (Jonker and Volgenant 1987), O(R² C).
    """
    rows, columns = cost.shape
    if rows > columns:
        raise ValueError(f"assign: needs at least as many columns as rows, got {rows} x {columns}; transpose the cost.")
    if not np.isfinite(cost).all():
        raise ValueError("assign: the cost has NaN or infinite entries; the model has diverged, or an object's box is broken.")
    u, v = np.zeros(rows), np.zeros(columns)
    owner = np.full(columns, -1)
    for row in range(rows):
        best, via, done = np.full(columns, np.inf), np.full(columns, -1), np.zeros(columns, dtype=bool)
        current, at, reached = row, -1, 0.0
        while True:
            slack = reached + cost[current] - u[current] - v
            closer = ~done & (slack < best)
            best[closer], via[closer] = slack[closer], at
            at = int(np.where(done, np.inf, best).argmin())
            reached, done[at] = best[at], True
            if owner[at] < 0:
                break
            current = owner[at]
        u[row] += reached
        others = done & (owner >= 0)
        u[owner[others]] += reached - best[others]
        v[done] -= reached - best[done]
        while at >= 0:  # back along the path
            before = via[at]
            owner[at] = row if before < 0 else owner[before]
            at = before
    column = np.flatnonzero(owner >= 0)
    order = owner[column].argsort()
    return owner[column][order], column[order]


def targets_of(boxes: Tensor) -> Tensor:
    """Boxes (..., 7) with sides and yaw as the detector writes them, (..., 8)."""
    yaw = boxes[..., 6:7]
    return torch.cat((boxes[..., :3], boxes[..., 3:6].log(), yaw.sin(), yaw.cos()), dim=-1)


def focal(logits: Tensor, target: Tensor) -> Tensor:
    """Focal loss of every entry."""
    p = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    right = p * target + (1 - p) * (1 - target)
    return (ALPHA * target + (1 - ALPHA) * (1 - target)) * (1 - right) ** GAMMA * entropy


@torch.no_grad()
def match(
    logits: Tensor, boxes: Tensor, labels: Tensor, truth: Tensor, *, weights: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Queries and objects of one sample that belong together.

    Args:
        logits: (Q, classes); boxes: (Q, 8); labels: (G,) int64; truth: (G, 8). weights: of class and box cost.
    """
    p = logits.float().sigmoid()
    have, lack = ALPHA * (1 - p) ** GAMMA * -(p + 1e-8).log(), (1 - ALPHA) * p**GAMMA * -(1 - p + 1e-8).log()
    cost = weights[0] * (have - lack)[:, labels] + weights[1] * torch.cdist(boxes.float(), truth.float(), p=1)
    objects, queries = assign(cost.T.cpu().double().numpy())
    return torch.from_numpy(queries).to(logits.device), torch.from_numpy(objects).to(logits.device)


def detection_loss(
    found: dict[str, Tensor], boxes: Tensor, present: Tensor, *, weights: tuple[float, float] = (2.0, 0.25)
) -> dict[str, Tensor]:
    """Losses "class", "box" and their weighted sum "loss", each a mean over layers and divided by the number of objects.

    Args:
        found: of a Detector. boxes: (B, classes, 7), one object at most of each class. present: (B, classes) bool.
    """
    logits, raw = found["logits"].float(), found["boxes"].float()
    truth = targets_of(boxes)
    count = present.sum().clamp(min=1)
    target, box_loss = torch.zeros_like(logits), logits.new_zeros(())
    for sample in range(logits.shape[0]):
        labels = present[sample].nonzero()[:, 0]
        if not len(labels):
            continue
        for layer in range(logits.shape[1]):
            own = raw[sample, layer]
            queries, objects = match(logits[sample, layer], own, labels, truth[sample, labels], weights=weights)
            target[sample, layer, queries, labels[objects]] = 1.0
            box_loss = box_loss + (own[queries] - truth[sample, labels[objects]]).abs().sum()
    layers = logits.shape[1]
    classes, box_loss = focal(logits, target).sum() / count / layers, box_loss / count / layers
    return {"loss": weights[0] * classes + weights[1] * box_loss, "class": classes, "box": box_loss}
