"""Inception score: how sure the classes of pictures are, and how many classes there are.

    exp( mean over pictures of KL( p(y|x) ‖ p(y) ) ), p(y) the mean over the pictures of a split; the mean over splits

Source: Salimans et al., NeurIPS 2016, arXiv 1606.03498. As in openai/guided-diffusion, splits are consecutive, of 5,000
pictures, the last one shorter; its class probabilities are those of 1,008 logits without bias.
"""

from __future__ import annotations

import torch
from torch import Tensor


def inception_score(probabilities: Tensor, *, split: int = 5000) -> float:
    """The score of class probabilities (N, K), rows of sum 1."""
    if probabilities.ndim != 2 or len(probabilities) == 0:
        raise ValueError(f"inception_score: needs probabilities (N, K), got {tuple(probabilities.shape)}.")
    if split < 1:
        raise ValueError(f"inception_score: split is a number of pictures, at least 1, got {split}.")
    p = probabilities.double()
    if (p < 0).any() or not torch.allclose(p.sum(1), p.new_ones(len(p)), atol=1e-3):
        raise ValueError("inception_score: rows must be probabilities of sum 1; apply softmax to logits.")
    scores = []
    for part in p.split(split):
        kl = torch.special.xlogy(part, part) - torch.special.xlogy(part, part.mean(0, keepdim=True))
        scores.append(kl.sum(1).mean().exp())
    return float(torch.stack(scores).mean())
