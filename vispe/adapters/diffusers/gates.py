"""Forms of rotary encodings for models that were trained without them: they can start where they change nothing.

Fixed frequencies turn queries and keys from the first step on. A gate, one number a head and axis, multiplies them: at 0
nothing turns, at 1 everything does, and its gradient does not vanish at 0. This is no part of any paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...encodings.base import Encoding
from ...encodings.functional import phase
from ...encodings.harope import HARoPE, HeadRotation, Mode
from ...encodings.rope3d import Rope3d
from ...encodings.rope_axial import RopeAxial
from ...encodings.rope_diffusers import RopeDiffusers
from ...encodings.rotary import Rotary, Rotation
from ...positions import Positions


class Gated(Rotary):
    """A rotary encoding of one layer whose angles a learned gate multiplies.

    Attributes:
        gate: (H, axes); 1 leaves the encoding as it is.
    """

    per_layer = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.no_decay = (*type(self).no_decay, "gate")
        self.gate = nn.Parameter(torch.ones(self.num_heads, self.axes))

    @torch.no_grad()
    def set_identity(self) -> bool:
        self.reset_parameters()
        self.gate.zero_()
        return True

    @classmethod
    def prepare_layers(cls, layers: Sequence[Gated], pos: Positions) -> list[Rotation]:
        one = layers[0]
        one.check_axes(pos)
        coords = one.coordinates(pos)
        freqs, factor = one.extrapolated(one.frequencies().to(coords.device), pos)  # those of a series: gates come after
        gates = torch.stack([layer.gate.float() for layer in layers])[..., None]  # (L, H, A, 1)
        angle = F.pad(phase(coords, freqs * gates), (0, 0, pos.prefix, 0))  # (L, B, H, prefix + N, P)
        return [Rotation(a.cos(), a.sin(), factor=factor) for a in angle.unbind(0)]


class GatedAxial(Gated, RopeAxial):
    pass


class GatedDiffusers(Gated, RopeDiffusers):
    pass


class GatedRope3d(Gated, Rope3d):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.preset != "fixed":
            raise ValueError(f"rope3d: preset {self.preset!r} is no rotation and has no identity start; pass start='init'.")


class GatedHARoPE(Gated, HARoPE):
    """At gate 0 the matrices of mode "conjugate" cancel; they get gradients as soon as the gate has moved."""

    @classmethod
    def prepare_layers(cls, layers: Sequence[GatedHARoPE], pos: Positions) -> list[HeadRotation]:
        turns = super().prepare_layers(layers, pos)
        return [
            HeadRotation(turn.cos, turn.sin, of_q, of_k, factor=turn.factor)
            for turn, of_q, of_k in zip(turns, *cls.head_matrices(layers))
        ]


class HeadMatrices(HARoPE):
    """HARoPE's matrices alone, ahead of the rotary embedding that the model has."""

    set_extrapolation = None  # the model's own table has the frequencies

    def __init__(self, *, dim: int, num_heads: int, mode: Mode = "conjugate") -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=1, mode=mode)

    def set_identity(self) -> bool:
        self.reset_parameters()
        return True

    @classmethod
    def prepare_layers(cls, layers: Sequence[HeadMatrices], pos: Positions) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*cls.head_matrices(layers)))

    def qk(
        self, q: Tensor, k: Tensor, ctx_q: tuple[Tensor, Tensor], ctx_k: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        return q @ ctx_q[0].mT.to(q.dtype), k @ ctx_k[1].mT.to(k.dtype)


GATED: dict[type[Encoding], type[Gated]] = {
    HARoPE: GatedHARoPE, RopeAxial: GatedAxial, RopeDiffusers: GatedDiffusers, Rope3d: GatedRope3d,
}  # fmt: skip
