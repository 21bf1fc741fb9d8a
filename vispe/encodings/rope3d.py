"""3-D RoPE of video transformers: frames, rows and columns turn equal shares of the channels, the rest stays as it is.

    angle_i = p_axis · θ^(−i / m),  m = ⌊d / 3⌋ // 2 pairs an axis, frames first, channel pairs (2i, 2i+1)

Paper: Assran et al., V-JEPA 2, 2025, arXiv 2506.09985. Code: facebookresearch/vjepa2 at c2963a4 (RoPEAttention). θ =
10000; masked tokens keep the indices they have in the whole video.
V-JEPA 2's code tiles its tables for channel pairs (i, i + m) while it turns pairs (2i, 2i+1): the two channels of a
pair take different angles, lengths change, and scores are not relative. Released weights are trained so:
`preset="vjepa2"`. The default, "fixed", is the rotation that the paper means. Also different there: frequencies in the
dtype of the tokens (float32 here). Chosen here: with 1 or 2 axes the same rule for that many shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..positions import Positions, Resize
from .base import Card
from .extrapolation import Series
from .rotary import Rotary, Rotation, block_frequencies, positive


class Rope3d(Rotary):
    """Fixed axial rotary frequencies with unturned channels at the end.

    Args:
        theta: base of the frequencies, in units of one frame, row or column.
        preset: "fixed", a rotation; "vjepa2", what the released weights of V-JEPA 2 expect.
        resize: see RopeAxial.
    """

    card = Card(
        title="3-D RoPE",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="angle_i = p · theta^(-i/m)",
        paper="https://arxiv.org/abs/2506.09985",
        year=2025,
        code="facebookresearch/vjepa2",
        licence="MIT",
        cases=2,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 3,
        theta: float = 10000.0,
        preset: Literal["fixed", "vjepa2"] = "fixed",
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.pairs = self.head_dim // axes // 2
        if self.pairs < 1:
            raise ValueError(
                f"rope3d: a head of {self.head_dim} channels has no pair for each of {axes} axes; head_dim must be at least "
                f"{2 * axes}: change dim or num_heads."
            )
        if preset not in ("fixed", "vjepa2"):
            raise ValueError(f"rope3d: preset must be 'fixed' or 'vjepa2', got {preset!r}.")
        self.theta, self.preset = positive("rope3d", "theta", theta), preset

    def frequencies(self) -> Tensor:
        freqs = self.theta ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        return block_frequencies(freqs, self.axes)

    def series(self) -> tuple[Series, ...]:
        return (Series(self.theta, self.pairs),) * self.axes

    @classmethod
    def prepare_layers(cls, layers: Sequence[Rope3d], pos: Positions) -> list[Rotation]:
        contexts = super().prepare_layers(layers, pos)
        one = layers[0]
        if one.preset == "fixed":
            return contexts
        return [replace(c, cos=tile(c.cos, one.axes), sin=tile(c.sin, one.axes)) for c in contexts]

    def qk(self, q: Tensor, k: Tensor, ctx_q: Rotation, ctx_k: Rotation) -> tuple[Tensor, Tensor]:
        if self.preset == "fixed":
            return super().qk(q, k, ctx_q, ctx_k)
        q, k = turn_tiled(q, ctx_q.cos, ctx_q.sin), turn_tiled(k, ctx_k.cos, ctx_k.sin)
        return ctx_q.weigh(q), ctx_k.weigh(k)


def tile(table: Tensor, axes: int) -> Tensor:
    """(..., axes · m) to (..., axes · 2m): every axis' m entries twice in a row."""
    return table.unflatten(-1, (axes, -1)).repeat(*[1] * table.ndim, 2).flatten(-2)


def turn_tiled(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + (−x1, x0, −x3, x2, ...) sin with one angle for each channel; channels behind the tables stay."""
    size = cos.shape[-1]
    turned = x[..., :size]
    a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
    out = (turned * cos + torch.stack((-b, a), dim=-1).flatten(-2) * sin).type_as(x)
    return torch.cat((out, x[..., size:]), dim=-1)
