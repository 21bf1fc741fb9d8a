"""Learned GRAPE planes over several axes: every plane turns by a phase that mixes time, row and column.

    x' = x + Σ_p [(x_a (cos φ_p − 1) − x_b sin φ_p) a_p + (x_a sin φ_p + x_b (cos φ_p − 1)) b_p],   x_a = x·a_p, x_b = x·b_p,
    φ_p = f_p Σ_c w_pc pos_c / ‖w_p‖,   a_p, b_p orthonormal within their plane,   f_p = θ^(−2p/d)^(1/s)

Code: JJJYmmm/Multimodal-RoPEs at cd413b9, after Zhang et al., Group Representational Position Encoding, arXiv 2512.07805.
Modes: "axis" (a bank of planes for each axis, applied one after the other), "mixed" (one bank whose planes mix the axes),
"block_mixed" (the same inside blocks of channels, each with its own planes and its own part of the frequencies).
Kept from the code: planes are orthogonal to nobody but themselves, so the update is a rotation at the "rope" start only; once
trained norms drift, and scores depend on more than differences of positions. One set of planes for all heads and layers.
With fewer planes than d/2 (or than a block's part) frequencies are picked evenly from the series.
Chosen here: any number of axes; products in float32 whatever q's dtype; prefix tokens stay as they are; no weight decay (planes
and mixing weights are normalised, so it would only change the size of steps). The repository's fourth mode, "canonical", is a
plain rotary with its pairs shared out among axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions, Resize, resize_option
from .base import Card, Encoding
from .functional import phase, rotate
from .rotary import positive

MODES = ("axis", "mixed", "block_mixed")


@dataclass(frozen=True)
class PlaneTurns:
    """Banks to apply in order: frame (K, n, 2p, b) with the a of each plane ahead of the b, cos and sin (K, B, 1, n, N, p)."""

    frame: Tensor
    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """x (B, H, N, D) in n blocks of b channels."""
        with torch.autocast(x.device.type, enabled=False):
            blocks = x.to(self.cos.dtype).unflatten(-1, (self.frame.shape[1], -1)).transpose(2, 3)  # (B, H, n, N, b)
            for frame, cos, sin in zip(self.frame, self.cos, self.sin):
                parts = blocks @ frame.mT  # (B, H, n, N, 2p)
                blocks = blocks + (rotate(parts, cos, sin, "half") - parts) @ frame
            return blocks.transpose(2, 3).flatten(-2).type_as(x)


def evenly(series: Tensor, count: int) -> Tensor:
    """`count` entries of the last axis, ends included."""
    last = series.shape[-1] - 1
    if count == last + 1:
        return series
    return series[..., torch.linspace(0, last, count, device=series.device).round().long()]


class GrapeMultimodal(Encoding):
    """Learned planes in which queries and keys turn by their positions.

    Args:
        mode: "mixed", "axis" or "block_mixed" (see above).
        planes: planes of a bank, at most head_dim / 2 ("block_mixed": of a block, at most block_size / 2); None for as many.
        block_size: channels of a block, cut to head_dim; "block_mixed" only.
        theta: base of the frequencies.
        log_scale: s; larger values bring frequencies closer to 1.
        start: "rope", neighbouring channels and one axis a plane, or "random", everything from N(0, 0.02).
        resize: see RopeAxial.

    Attributes:
        first, second: (banks, blocks, planes, channels), the a and b of each plane ahead of orthonormalisation.
        mixing: (1, blocks, planes, axes), w ahead of normalisation; not in mode "axis".
    """

    card = Card(
        title="Multimodal GRAPE (learned planes)",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="x + sum_p (R(f_p w_p · pos) - 1) in the plane (a_p, b_p); a, b, w learned",
        paper="https://arxiv.org/abs/2512.07805",
        year=2025,
        code="JJJYmmm/Multimodal-RoPEs",
        licence="MIT",
        cases=3,
    )
    no_decay = ("first", "second", "mixing")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        mode: Literal["axis", "mixed", "block_mixed"] = "mixed",
        planes: int | None = None,
        block_size: int = 16,
        theta: float = 10000.0,
        log_scale: float = 1.0,
        start: Literal["rope", "random"] = "rope",
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        name = "grape_multimodal"
        if mode not in MODES or start not in ("rope", "random"):
            raise ValueError(f"{name}: mode is one of {MODES}, start 'rope' or 'random'; got {mode!r}, {start!r}.")
        width = min(block_size, self.head_dim) if mode == "block_mixed" else self.head_dim
        if width < 2 or self.head_dim % width:
            fit = [b for b in range(2, self.head_dim + 1) if self.head_dim % b == 0]
            raise ValueError(
                f"{name}: block_size must be at least 2 and divide head_dim, got block_size={block_size}, head_dim="
                f"{self.head_dim}; divisors are {fit}."
            )
        planes = width // 2 if planes is None else planes
        if not 1 <= planes <= width // 2:
            raise ValueError(f"{name}: {width} channels have room for 1 to {width // 2} planes, got planes={planes}.")
        self.mode, self.start, self.resize = mode, start, resize_option(name, resize or "extend")
        self.theta, self.log_scale = positive(name, "theta", theta), positive(name, "log_scale", log_scale)
        shape = (axes if mode == "axis" else 1, self.head_dim // width, planes)
        self.first, self.second = (nn.Parameter(torch.empty(*shape, width)) for _ in range(2))
        if mode != "axis":
            self.mixing = nn.Parameter(torch.empty(*shape, axes))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.start == "random":
            for p in self.parameters():
                nn.init.normal_(p, std=0.02)
            return
        _, blocks, planes, width = self.first.shape
        channel = torch.eye(width)
        self.first.copy_(channel[0 : 2 * planes : 2])
        self.second.copy_(channel[1 : 2 * planes : 2])
        if self.mode != "axis":
            axis = torch.arange(blocks * planes) % self.axes
            self.mixing.copy_(F.one_hot(axis, self.axes).view_as(self.mixing))

    def rates(self) -> Tensor:
        """Radians a cell on each axis, (banks, blocks, axes, planes) float32."""
        _, blocks, planes, _ = self.first.shape
        pairs = self.head_dim // 2
        series = self.theta ** -(torch.arange(pairs, dtype=torch.float32, device=self.first.device) / pairs)
        if pairs % blocks:  # blocks of an odd number of channels: all planes share the series out
            freqs = evenly(series, blocks * planes).view(blocks, 1, planes)
        else:
            freqs = evenly(series.view(blocks, 1, -1), planes)
        freqs = freqs ** (1 / self.log_scale)
        if self.mode == "axis":
            weights = torch.eye(self.axes, device=series.device)[:, None, :, None]  # (axes, 1, axes, 1)
        else:
            weights = F.normalize(self.mixing.float(), dim=-1).mT
        return weights * freqs

    def frame(self) -> Tensor:
        """Orthonormal pairs (banks, blocks, 2 · planes, channels) float32, the a of every plane ahead of the b."""
        a = F.normalize(self.first.float(), dim=-1)
        b = self.second.float()
        b = F.normalize(b - (b * a).sum(-1, keepdim=True) * a, dim=-1)
        return torch.cat((a, b), dim=2)

    def prepare(self, pos: Positions) -> PlaneTurns:
        self.check_axes(pos)
        angle = phase(pos.to("index", self.resize), self.rates()).unsqueeze(2)  # (banks, B, 1, blocks, N, planes)
        lead = (0, 0, pos.prefix, 0)
        return PlaneTurns(self.frame(), F.pad(angle.cos(), lead, value=1.0), F.pad(angle.sin(), lead))

    def qk(self, q: Tensor, k: Tensor, ctx_q: PlaneTurns, ctx_k: PlaneTurns) -> tuple[Tensor, Tensor]:
        return ctx_q.apply(q), ctx_k.apply(k)

    @torch.no_grad()
    def wavelengths(self, grid: tuple[int, ...]) -> Tensor:
        """Wavelength of every plane in cells, (1, banks · blocks · planes)."""
        return (2 * torch.pi / self.rates().norm(dim=2)).view(1, -1)
