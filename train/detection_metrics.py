"""Average precision of 3-D boxes by the distance of centres, as nuScenes counts it, and errors of centres.

Caesar et al., nuScenes, CVPR 2020, arXiv 1903.11027: a prediction is right when its centre is within a threshold of an object
of its class that no better one has taken, on the ground plane; thresholds are 0.5, 1, 2 and 4 m. AP is the mean precision over
recalls of 0.11 to 1, of which a tenth is taken off (what is below counts 0), divided by 0.9.
"""

import numpy as np
import torch
from torch import Tensor

THRESHOLDS = (0.5, 1.0, 2.0, 4.0)
LOWEST = 0.1  # precision and recall that do not count
TRUE_POSITIVE = 2.0  # metres: errors are those of such pairs


class Detections:
    """Predictions and objects of a whole evaluation.

    Args:
        num_classes: Classes of objects.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.reset()

    def reset(self) -> None:
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []  # of each scene: scores, labels, boxes
        self.truth: list[tuple[Tensor, Tensor]] = []  # labels, boxes

    def update(self, found: dict[str, Tensor], boxes: Tensor, present: Tensor) -> None:
        """Scores, labels (B, K) and boxes (B, K, 7) of predictions; boxes (B, classes, 7) and presence of objects."""
        for i in range(len(boxes)):
            self.found.append(tuple(found[key][i].detach().float().cpu() for key in ("scores", "labels", "boxes")))
            labels = present[i].nonzero()[:, 0]
            self.truth.append((labels.cpu(), boxes[i, labels].float().cpu()))

    def gather(self, everyone: list[list]) -> None:
        """Take over what all processes have, [(found, truth), ...]."""
        self.found = [item for found, _ in everyone for item in found]
        self.truth = [item for _, truth in everyone for item in truth]

    def compute(self) -> dict[str, float]:
        """``mAP`` over classes that occur and thresholds, and ``centre_error`` in metres (NaN without a right prediction)."""
        precisions, errors = [], []
        for label in range(self.num_classes):
            for threshold in THRESHOLDS:
                right, distance, count = self._pairs(label, threshold)
                if count:
                    precisions.append(average_precision(right, count))
                    if threshold == TRUE_POSITIVE:
                        errors.append(distance[right])
        errors = torch.cat(errors) if errors else torch.empty(0)
        mean = sum(precisions) / len(precisions) if precisions else 0.0
        return {"mAP": mean, "centre_error": float(errors.mean()) if len(errors) else float("nan")}

    def _pairs(self, label: int, threshold: float) -> tuple[Tensor, Tensor, int]:
        """By falling score, whether each prediction of a class is right and how far off; and how many objects there are."""
        scores, scenes, centres = [], [], []
        for scene, (score, labels, boxes) in enumerate(self.found):
            own = labels == label
            scores.append(score[own])
            scenes += [scene] * int(own.sum())
            centres.append(boxes[own, :2])
        if not scenes:
            count = sum(int((labels == label).sum()) for labels, _ in self.truth)
            return torch.zeros(0, dtype=torch.bool), torch.zeros(0), count
        truth = [boxes[labels == label, :2] for labels, boxes in self.truth]
        taken = [torch.zeros(len(t), dtype=torch.bool) for t in truth]
        scores, centres = torch.cat(scores), torch.cat(centres)
        right, distances = torch.zeros(len(scores), dtype=torch.bool), torch.zeros(len(scores))
        for place, i in enumerate(scores.argsort(descending=True, stable=True).tolist()):
            scene = scenes[i]
            distance = (truth[scene] - centres[i]).norm(dim=-1).masked_fill(taken[scene], float("inf"))
            if len(distance) and distance.min() < threshold:
                nearest = int(distance.argmin())
                taken[scene][nearest] = right[place] = True
                distances[place] = distance[nearest]
        return right, distances, sum(len(t) for t in truth)


def average_precision(right: Tensor, count: int) -> float:
    """nuScenes' AP of predictions by falling score, of which some are right, for `count` objects."""
    if not right.any():
        return 0.0
    hits = right.cumsum(0).double().numpy()
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / count
    found = np.interp(np.linspace(0, 1, 101), recall, precision, right=0.0)[round(100 * LOWEST) + 1 :]
    return float((found - LOWEST).clip(min=0).mean() / (1 - LOWEST))


class CentreErrors:
    """Distances on the ground plane between centres, one a cell."""

    def __init__(self) -> None:
        self.distances: list[Tensor] = []

    def reset(self) -> None:
        self.distances = []

    def update(self, found: Tensor, truth: Tensor) -> None:
        """Centres (n, 3) in metres."""
        self.distances.append((found - truth)[:, :2].norm(dim=-1).detach().float().cpu())

    def gather(self, everyone: list[list[Tensor]]) -> None:
        self.distances = [item for found in everyone for item in found]

    def compute(self) -> dict[str, float]:
        """``centre_error`` (mean), ``median_error`` in metres, and the share ``within_1m``."""
        d = torch.cat(self.distances)
        return {"centre_error": float(d.mean()), "median_error": float(d.median()), "within_1m": float((d < 1).float().mean())}
