"""RPE-2D: ordered random positions in training, so that the larger grids of inference lie inside what was trained.

    rows of a sample: n of the L places 0 .. L − 1 without repetition, sorted; columns likewise and independently
    P(k-th = x) = C(x, k) C(L−1−x, n−1−k) / C(L, n),  mean (k+1)(L+1)/(n+1) − 1,  P(gap = g) = C(L−g, n−1) / C(L, n)

Paper: Hou et al., RPE-2D (randomised positions for resolution extrapolation of diffusion transformers), 2025, arXiv
2503.18719; the sampling is the two-axis form of Ruoss et al., ACL 2023, arXiv 2305.16843. No code was published.
Of the paper only the abstract could be had. From it: independent draws on both axes over an expanded range, order instead
of distance, a random resize-and-crop with micro-conditioning, attention scale and time-step shift at high resolution.
OURS, since the method's text could not be had: L = 2 x the train grid, one draw a sample, the placement at inference (the mean
of the training law), and everything concrete in `crop_condition.py` and `time_shift.py`.

A policy is a function of positions; hosts draw nothing by themselves. What a host has to do, ahead of everything that is
compiled or checkpointed:

    pos = policy(pos, batch=x.shape[0], generator=step_generator(seed, rank=rank, step=step))   # training
    pos = policy(pos)                                                                           # evaluation: never draws

A generator made of (seed, rank, step) differs between DDP ranks, and a resumed run draws what the interrupted one would have.
Any encoding that takes grid positions works. A learned table is made for the whole range (grid = policy.places(train)) and
gathered by cell, which needs whole numbers at inference: "arange", "linspace_int".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from .grid import Positions

Inference = Literal["expected", "linspace", "stride", "arange", "centered", "linspace_int"]


def ordered_positions(
    count: int, places: int, *, batch: int = 1, generator: torch.Generator | None, device: torch.device | str | None = None
) -> Tensor:
    """`count` distinct places out of `places`, uniform over all subsets, ascending: (batch, count) int64.

    Args:
        generator: a generator of the caller's own (None takes the global one); numbers are drawn on its device.
        device: of the result; None for the generator's.
    """
    if not 1 <= count <= places:
        raise ValueError(
            f"ordered_positions: cannot place {count} tokens on {places} places; give at least as many places as tokens."
        )
    keys = torch.rand(batch, places, generator=generator, device=None if generator is None else generator.device)
    return keys.topk(count, dim=-1).indices.sort(dim=-1).values.to(device)


@dataclass(frozen=True)
class OrderLaw:
    """Probabilities, float64.

    Attributes:
        pmf: (n, L), that token k stands at place x.
        gaps: (L − n + 1,), that the next token is 1, 2, ... places away, between any two neighbours.
    """

    pmf: Tensor
    gaps: Tensor


def order_statistics(count: int, places: int) -> OrderLaw:
    """The exact law of the draws of `ordered_positions`."""
    whole = math.comb(places, count)
    rows = [
        [math.comb(x, k) * math.comb(places - 1 - x, count - 1 - k) / whole for x in range(places)] for k in range(count)
    ]
    gaps = [math.comb(places - g, count - 1) / whole for g in range(1, places - count + 2)]
    return OrderLaw(torch.tensor(rows, dtype=torch.float64), torch.tensor(gaps, dtype=torch.float64))


def inference_positions(count: int, places: int, mode: Inference = "expected", *, device: torch.device | None = None) -> Tensor:
    """Where `count` tokens stand among `places` trained ones, (count,) float64; arange(places) when both are equal.

    Args:
        mode: "expected" the mean of the training law; "linspace" from end to end; "stride" i · places / count; "arange";
            "centered"; "linspace_int" rounded, halves up.
    """
    if mode not in get_args(Inference):
        raise ValueError(f"inference_positions: mode must be one of {get_args(Inference)}, got {mode!r}.")
    if not 1 <= count <= places:
        raise ValueError(
            f"inference_positions: {count} tokens, but training drew from {places} places; train with a larger span, or "
            f"extrapolate by other means."
        )
    i = torch.arange(count, dtype=torch.float64, device=device)
    if mode == "expected":
        return (i + 1) * (places + 1) / (count + 1) - 1
    if mode == "stride":
        return i * places / count
    if mode == "arange":
        return i
    if mode == "centered":
        return i + (places - count) / 2
    even = i * (places - 1) / max(count - 1, 1)
    return even if mode == "linspace" else (even + 0.5).floor()


def step_generator(
    seed: int, *, rank: int = 0, step: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator for one training step of one process. Steps and ranks give unrelated streams (SplitMix64 of all three)."""
    state = 0
    for part in (seed, rank, step):
        state = _split_mix((state ^ (part & _WORD)) & _WORD)
    return torch.Generator(device=device).manual_seed(state >> 1)  # manual_seed takes 63 bits everywhere


_WORD = 2**64 - 1


def _split_mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


@dataclass(frozen=True)
class RandomPositions:
    """A policy: positions of a grid to ordered random ones in training, to fixed ones at inference.

    Args:
        span: L over the train grid, one number or one an axis (1 leaves an axis as it is); ours.
        draws: "per_sample" or "per_batch" (one draw for all, for hosts whose tables have no batch axis).
        inference: see `inference_positions`.
    """

    span: float | Sequence[float] = 2.0
    draws: Literal["per_sample", "per_batch"] = "per_sample"
    inference: Inference = "expected"

    def __post_init__(self) -> None:
        if self.draws not in ("per_sample", "per_batch"):
            raise ValueError(f"RandomPositions: draws must be 'per_sample' or 'per_batch', got {self.draws!r}.")
        if self.inference not in get_args(Inference):
            raise ValueError(f"RandomPositions: inference must be one of {get_args(Inference)}, got {self.inference!r}.")
        spans = (self.span,) if isinstance(self.span, (int, float)) else tuple(self.span)
        if not spans or min(spans) < 1:
            raise ValueError(f"RandomPositions: span must be at least 1, got {self.span!r}.")

    def places(self, train: Sequence[int]) -> tuple[int, ...]:
        """L on each axis."""
        spans = (self.span,) * len(train) if isinstance(self.span, (int, float)) else tuple(self.span)
        if len(spans) != len(train):
            raise ValueError(f"RandomPositions: span {self.span!r} has another number of axes than the grid {tuple(train)}.")
        return tuple(math.ceil(n * s) for n, s in zip(train, spans))

    def __call__(self, pos: Positions, *, batch: int = 1, generator: torch.Generator | None = None) -> Positions:
        """The same tokens at other places of a frame of L cells an axis.

        Args:
            pos: grid positions; dropped tokens and crops keep their rows and columns.
            batch: samples, each with a draw of its own ("per_sample").
            generator: draws when given; without it the result is that of inference, and no random number is used.
        """
        if pos.units != "index" or pos.extent is None or pos.train is None:
            raise ValueError(
                "RandomPositions: needs grid positions (patch_grid, with their train grid), got custom coordinates."
            )
        places, device = self.places(pos.train), pos.coords.device
        if generator is None:
            axes = [inference_positions(n, m, self.inference, device=device)[None] for n, m in zip(pos.extent, places)]
            whole = self.inference in ("arange", "linspace_int") or tuple(pos.extent) == places
        else:
            draws = batch if self.draws == "per_sample" else 1
            axes = [
                ordered_positions(n, m, batch=draws, generator=generator, device=device) for n, m in zip(pos.extent, places)
            ]
            whole = True
        cells = pos.coords.long().unbind(-1)  # (B or 1, N) each
        size = max(axes[0].shape[0], pos.coords.shape[0])
        found = [a.expand(size, -1).gather(1, c.expand(size, -1)) for a, c in zip(axes, cells)]
        coords = torch.stack(found, dim=-1).to(pos.coords.dtype)
        # Between cells there is no index: encodings that gather from tables refuse such positions.
        indices = cell_indices(coords, places) if whole else None
        return replace(pos, coords=coords, grid=None, extent=places, train=places, indices=indices)


def cell_indices(coords: Tensor, size: Sequence[int]) -> Tensor:
    """Row-major cells (B, N) int64 of whole coordinates (B, N, axes) in a frame."""
    index = torch.zeros_like(coords[..., 0], dtype=torch.int64)
    for c, n in zip(coords.long().unbind(-1), size):
        index = index * n + c
    return index
