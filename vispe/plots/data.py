"""How alike an encoding makes two places: numbers behind the pictures, through the hooks that models call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..encodings.base import Encoding
from ..positions import Positions

Kind = Literal["logits", "added", "impulse", "none"]


@dataclass(frozen=True)
class Decay:
    """Similarity against distance: distances (K,) in cells, and over the tokens at each the mean, lowest and highest (H, K)."""

    distance: Tensor
    mean: Tensor
    low: Tensor
    high: Tensor


def signal_kind(encoding: Encoding) -> Kind:
    """What a similarity of places means for this encoding.

    "logits": it acts on scores, compare those; "added": it adds vectors, compare their directions; "impulse": it filters
    tokens, so similarity depends on content and the response to one token stands for it; "none": it does none of these.
    """

    def overrides(hook: str) -> bool:
        return getattr(type(encoding), hook) is not getattr(Encoding, hook)

    if overrides("qk") or overrides("bias"):
        return "logits"
    if overrides("tokens"):
        return "added"
    return "impulse" if overrides("between") else "none"


@torch.no_grad()
def similarity_map(encoding: Encoding, pos: Positions, query: int, *, content: Tensor | None = None) -> Tensor:
    """How alike token `query` is to every token, (H, N), or (1, N) for what is added to tokens; 1 at no distance.

    For encodings of scores: the logits when query and key carry the same content at every token, averaged over contents and
    divided by the same without the encoding. For a rotary encoding that is the mean over pairs of cos(phase difference).
    For added vectors: their cosine similarity.

    Args:
        encoding: one layer's encoding, in the mode (train or eval) it is in.
        pos: N positions; prefix tokens are left out of the map.
        query: index among the N tokens.
        content: (S, H, D) to average over; None takes both signs of every unit vector, whose mean is exactly that of any
            random content without a preferred direction.
    """
    query = _checked(query, pos)
    kind = signal_kind(encoding)
    if kind == "impulse":
        raise ValueError(
            f"similarity_map: {type(encoding).__name__} filters the tokens, so similarity depends on content; use "
            f"impulse_response."
        )
    ctx = encoding.prepare(pos)
    if kind == "added":
        count = pos.prefix + pos.coords.shape[1]
        vectors = encoding.tokens(torch.zeros(1, count, encoding.dim), ctx)[0, pos.prefix :].float()
        vectors = F.normalize(vectors[:, -encoding.dim :], dim=-1)
        return (vectors @ vectors[query])[None]
    if content is None:
        unit = torch.eye(encoding.head_dim) * encoding.head_dim**0.5
        content = torch.cat((unit, -unit))[:, None].expand(-1, encoding.num_heads, -1)
    parts = [_logits(encoding, part, ctx, pos, query) for part in content.split(16)]
    plain = content.square().sum(-1).mean(0) * encoding.head_dim**-0.5  # (H,)
    return torch.cat(parts).mean(0) / plain[:, None]


def _logits(encoding: Encoding, content: Tensor, ctx: object, pos: Positions, query: int) -> Tensor:
    """Logits (S, H, N) of one query against all tokens for contents (S, H, D), the way `attend` forms them."""
    x = content[:, :, None].expand(-1, -1, pos.prefix + pos.coords.shape[1], -1)
    bias = encoding.bias(x, x, ctx, ctx)
    q, k = encoding.qk(x, x, ctx, ctx)
    row = pos.prefix + query
    logits = (q[:, :, row, None] * encoding.head_dim**-0.5 * k).sum(-1)  # (S, H, prefix + N)
    if bias is not None:
        logits = logits + bias[:, :, row]
    return logits[..., pos.prefix :].float()


@torch.no_grad()
def impulse_response(encoding: Encoding, pos: Positions, query: int, *, depth: int = 12) -> Tensor:
    """Size of the change, at every token, when one token is raised by 1 in all channels: (1, N), root mean square.

    The filters after all `depth` blocks are applied one behind the other, with nothing in between.
    """
    query = _checked(query, pos)
    ctx = encoding.prepare(pos)
    base = torch.zeros(1, pos.prefix + pos.coords.shape[1], encoding.dim)
    raised = base.clone()
    raised[:, pos.prefix + query] = 1.0
    both = torch.cat((base, raised))
    for i in range(-1, depth):
        both = encoding.between(both, ctx, i)
    return (both[1] - both[0])[None, pos.prefix :].square().mean(-1).sqrt()


def decay_curve(encoding: Encoding, pos: Positions, query: int, *, content: Tensor | None = None) -> Decay:
    """`similarity_map` (`impulse_response` for filters) against Euclidean distance, rounded to whole cells."""
    if signal_kind(encoding) == "impulse":
        values = impulse_response(encoding, pos, query)
    else:
        values = similarity_map(encoding, pos, query, content=content)
    distance = (pos.coords[0] - pos.coords[0, query]).norm(dim=-1).round()
    bins = distance.unique()
    groups = [values[:, distance == d] for d in bins]
    return Decay(
        bins,
        torch.stack([g.mean(-1) for g in groups], -1),
        torch.stack([g.amin(-1) for g in groups], -1),
        torch.stack([g.amax(-1) for g in groups], -1),
    )


def _checked(query: int, pos: Positions) -> int:
    count = pos.coords.shape[1]
    if not 0 <= query < count:
        raise ValueError(f"query must be a token from 0 to {count - 1}, got {query}.")
    return query
