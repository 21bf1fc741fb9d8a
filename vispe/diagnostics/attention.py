"""How far attention looks, and how its logits fall off with distance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.vit import EncodedVisionTransformer
from ..positions import Positions
from .host import patches_of, walk

MASKED = -1e30  # logits below forbid a key


@dataclass(frozen=True)
class AttentionDistance:
    """Mean distance in patches, weighted by attention: distance (L, H); `uniform` is that of attention to all alike."""

    distance: Tensor
    uniform: float


@dataclass(frozen=True)
class LogitDecay:
    """Attention logits against distance.

    Attributes:
        distance: (K,) whole patches.
        mean: (L, H, K) mean logit at that distance, each query's mean taken off (softmax ignores it); nan where
            masks hide every such pair.
        slope: (L, H) logit a patch, of the least-squares line through all pairs; negative: attention decays.
    """

    distance: Tensor
    mean: Tensor
    slope: Tensor


def mean_distance(probabilities: Tensor, coords: Tensor) -> Tensor:
    """Σ_k p(q, k) ‖x_q − x_k‖ averaged over queries and batch, (H,).

    Source: Dosovitskiy et al., arXiv 2010.11929, figure 7; Raghu et al., arXiv 2108.08810.

    Args:
        probabilities: (B, H, N, N) among tokens with a place; rows are normalised again, without what prefix tokens took.
        coords: (N, axes).
    """
    p = probabilities / probabilities.sum(-1, keepdim=True).clamp_min(1e-12)
    return (p * torch.cdist(coords, coords)).sum(-1).mean((0, 2))


def decay(logits: Tensor, coords: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances (K,), mean centred logits (H, K) and slopes (H,) of logits (B, H, N, N) at coords (N, axes)."""
    values = centred(logits.double()).mean(0)  # (H, N, N)
    open_ = (logits > MASKED).all(0)
    distance = torch.cdist(coords, coords).double()
    cells = distance.round()
    bins = cells.unique()
    mean = torch.stack([_mean(values, open_ & (cells == d)) for d in bins], -1)
    spread = (distance - _mean(distance.expand_as(values), open_, (-1,), True)) * open_
    slope = (values * spread).sum((-2, -1)) / spread.square().sum((-2, -1)).clamp_min(1e-12)
    return bins.float(), mean.float(), slope.float()


def centred(logits: Tensor) -> Tensor:
    """Logits (..., Nq, Nk) with each query's mean over the keys that it may see taken off; 0 where it may not."""
    open_ = logits > MASKED
    return torch.where(open_, logits - _mean(logits, open_, (-1,), True), 0.0)


def _mean(x: Tensor, where: Tensor, dims: tuple[int, ...] = (-2, -1), keepdim: bool = False) -> Tensor:
    """Mean of x where `where` is true; nan where that is nowhere."""
    count = where.expand_as(x).sum(dims, keepdim=keepdim)
    return torch.where(where, x, 0.0).sum(dims, keepdim=keepdim) / count


@torch.no_grad()
def attention_distance(host: EncodedVisionTransformer, images: Tensor) -> AttentionDistance:
    """`mean_distance` of every layer and head on these images (eval mode)."""
    patches, pos = patches_of(host, images)
    coords, prefix = pos.coords[0], pos.prefix
    layers = walk_logits(host, patches, pos)
    found = torch.stack([mean_distance(p.softmax(-1)[..., prefix:, prefix:], coords) for p in layers])
    return AttentionDistance(found, float(torch.cdist(coords, coords).mean()))


@torch.no_grad()
def logit_decay(host: EncodedVisionTransformer, images: Tensor) -> LogitDecay:
    """`decay` of every layer and head on these images (eval mode)."""
    patches, pos = patches_of(host, images)
    found = [decay(logits[..., pos.prefix :, pos.prefix :], pos.coords[0]) for logits in walk_logits(host, patches, pos)]
    bins, means, slopes = zip(*found)
    return LogitDecay(bins[0], torch.stack(means), torch.stack(slopes))


def walk_logits(host: EncodedVisionTransformer, patches: Tensor, pos: Positions) -> Iterator[Tensor]:
    """Logits (B, H, T, T) layer by layer; one layer's are alive at a time."""
    for step in walk(host, patches, pos):
        if step.logits is not None:
            yield step.logits()
