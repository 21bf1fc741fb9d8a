"""Rotary of multimodal sequences: ids of several axes, of which every rotary pair reads one.

    rotary = SequenceRotary(head_dim=128, scheme="mrope_interleave", theta=5e6)
    batch = build_batch(rows, rotary.scheme)      positions/sequence.py; batch.ids (axes, B, S), batch.mask, batch.next_ids
    ctx = rotary.prepare(batch.ids)               once a forward
    q, k = rotary.qk(q, k, ctx, ctx)              in every layer; q (B, Hq, S, D), k (B, Hkv, S, D)

angle of pair k = ids[map(k)] · f_k with f_k = theta^(−k/P). A pair's row is picked ahead of the product, so that P angles are
computed and not axes · P. Everything is float32 and made anew from numbers: no buffer holds frequencies, so that `.bfloat16()`
cannot round them. The rotation is that of `rotary.py`. Context extension (`SequenceScaling`) changes frequencies ahead of the
choice of axes, and its temperature multiplies cosines and sines, as in the decoders that were released with it. Different from
transformers: tables stay float32 beside queries and keys of half precision, where its models cast them first.

Sources: transformers 5.24 (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen-Omni), JJJYmmm/Multimodal-RoPEs cd413b9, Wiselnn570/VideoRoPE
7712ca3, hrlics/HoPE 85b76c0, VectorSpaceLab/OmniGen2 0f72fa9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ..positions.schemes import Scheme, create_scheme
from ..positions.segments import Segment
from ..positions.sequence import SequenceBatch, Side, build_batch
from .axis_map import STILL, Allocation, AxisMap, axis_map
from .base import Card, Encoding
from .functional import LAYOUTS, Layout, rotate
from .rotary import Rotation
from .sequence_scaling import SequenceScaling, inverse_frequencies, scaling_of

__all__ = ["SequenceRotary", "SequenceScaling", "full_tables", "inverse_frequencies", "scaling_of"]

Spectrum = Literal["shared", "own"]


class SequenceRotary(Encoding):
    """Rotary by ids of several axes. Without parameters and buffers; one module serves all layers of a decoder.

    It has the hooks of an encoding, so that vispe's attention takes it, but `prepare` takes ids and not positions. It fits any
    number of heads.

    Args:
        head_dim: D, even.
        scheme: a scheme of vispe/positions/schemes, whose official allocation is the default.
        allocation: a rule of `axis_map`, in the place of the scheme's.
        sections: pairs of (time, row, column), for "heads": key-value heads; None for the published shares.
        axes: a map of your own, in the place of the three above.
        kv_heads: key-value heads, for "heads" alone.
        theta: base of the frequencies.
        spectrum: "shared", one series for all axes, or "own", a full series on each axis' pairs (OmniGen2; its map is chunked).
        layout: pairs of channels (k, k + P), "half", or (2k, 2k + 1), "interleaved" (OmniGen2).
        scaling: context extension; None for none.
    """

    card = Card("Rotary for sequences", "rotary", (1, 2, 3, 4), ("qk",), "angle_k = ids[map(k)] · theta^(−k/P)", relative=True)

    def __init__(
        self,
        *,
        head_dim: int,
        scheme: str | Scheme | None = None,
        allocation: Allocation | None = None,
        sections: Sequence[int] | None = None,
        axes: AxisMap | None = None,
        kv_heads: int | None = None,
        theta: float = 1e6,
        spectrum: Spectrum = "shared",
        layout: Layout = "half",
        scaling: SequenceScaling | None = None,
    ) -> None:
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"SequenceRotary: head_dim must be even and positive, got {head_dim}.")
        super().__init__(dim=head_dim, num_heads=1, axes=1)
        if not theta > 1:
            raise ValueError(f"SequenceRotary: theta must be above 1, got {theta}.")
        if layout not in LAYOUTS or spectrum not in get_args(Spectrum):
            raise ValueError(
                f"SequenceRotary: layout is one of {LAYOUTS} and spectrum one of {get_args(Spectrum)}, got {layout!r} and "
                f"{spectrum!r}."
            )
        self.theta, self.layout, self.spectrum, self.scaling = float(theta), layout, spectrum, scaling
        self.scheme = None if scheme is None else create_scheme(scheme)
        self.map = self._map(allocation, sections, axes, kv_heads)
        self.axes = self.map.axes
        if spectrum == "own" and (scaling is not None or self.map.heads > 1):
            raise ValueError("SequenceRotary: a full spectrum for each axis takes neither a scaling nor a map by heads.")

    def _map(
        self,
        allocation: Allocation | None,
        sections: Sequence[int] | None,
        axes: AxisMap | None,
        kv_heads: int | None,
    ) -> AxisMap:
        rule = allocation or (None if self.scheme is None else self.scheme.allocation)
        if axes is None:
            if rule is None:
                raise ValueError("SequenceRotary: give a scheme, an allocation or a map (axes=).")
            axes = axis_map(rule, pairs=self.head_dim // 2, sections=sections, heads=kv_heads if rule == "heads" else None)
        elif allocation is not None or sections is not None:
            raise ValueError("SequenceRotary: a map of your own (axes=) leaves no room for an allocation or sections.")
        if 2 * axes.pairs > self.head_dim:
            raise ValueError(f"SequenceRotary: {axes.pairs} pairs need {2 * axes.pairs} channels, head_dim is {self.head_dim}.")
        if self.scheme is not None and self.scheme.axes not in (1, axes.axes) and axes.axes > 1:
            raise ValueError(
                f"SequenceRotary: {type(self.scheme).__name__} makes {self.scheme.axes} rows of ids, the map reads {axes.axes}."
            )
        return axes

    def frequencies(self, length: int = 0, device: torch.device | None = None) -> Tensor:
        """(P,) float32, for sequences whose largest id is length − 1 (which matters to "dynamic" alone)."""
        if self.spectrum == "own":
            own = [inverse_frequencies(int(self.map.members(a).sum()), self.theta, device) for a in range(self.axes)]
            out = torch.zeros(self.map.pairs, device=device)
            for axis, f in enumerate(own):
                out[self.map.members(axis).to(out.device)] = f
            return out
        freqs = inverse_frequencies(self.map.pairs, self.theta, device)
        if self.scaling is None:
            return freqs
        return self.scaling.apply(freqs, theta=self.theta, length=length, axes=self.map)

    def prepare(self, ids: Tensor, *, length: int | None = None) -> Rotation:
        """Cosines and sines of a batch.

        Args:
            ids: (axes, S) or (axes, B, S), int64 or float32; one row serves maps of any number of axes, as text's ids do.
            length: largest id + 1 for "dynamic"; None to look it up in the ids (transformers counts padding in).

        Returns:
            cos and sin (B or 1, kv heads or 1, S, P) float32, the temperature multiplied in.
        """
        ids = self._checked(ids)
        with torch.autocast(ids.device.type, enabled=False), torch.no_grad():
            if length is None:
                dynamic = self.scaling is not None and self.scaling.method == "dynamic"
                length = math.ceil(ids.max().item() + 1) if dynamic and ids.numel() else 0
            angle = self._angles(ids.float().movedim(0, -1), self.frequencies(length, ids.device))
            sin, cos = angle.sin(), angle.cos_()
            amount = 1.0 if self.scaling is None else self.scaling.amount
            if amount != 1:
                cos, sin = cos.mul_(amount), sin.mul_(amount)
                if self.map.plain and self.map.still:
                    cos = cos.masked_fill_((self.map.rows(ids.device) == STILL)[:, None], 1.0)
        return Rotation(cos, sin)

    def prepare_rows(
        self,
        rows: Sequence[Sequence[Segment]],
        *,
        depth: int = 1,
        side: Side = "left",
        pad: float | None = None,
        rates: Sequence[Sequence[float]] | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
    ) -> tuple[list[Rotation], list[SequenceBatch]]:
        """Contexts and ids of every layer of a decoder, for schemes whose ids may differ by layer (Circle-RoPE's, PyPE's).

        Layers with equal schemes share one object. Arguments are those of `build_batch`.
        """
        if self.scheme is None:
            raise ValueError("SequenceRotary: builds no ids without a scheme; pass scheme=, or ids to prepare().")
        made: dict[Scheme, tuple[Rotation, SequenceBatch]] = {}
        layers = [self.scheme.for_layer(layer, depth) for layer in range(depth)]
        for scheme in layers:
            if scheme not in made:
                batch = build_batch(rows, scheme, side=side, pad=pad, rates=rates, generator=generator)
                made[scheme] = self.prepare(batch.ids.to(device)), batch
        return [made[scheme][0] for scheme in layers], [made[scheme][1] for scheme in layers]

    def _checked(self, ids: Tensor) -> Tensor:
        """(axes, B, S)."""
        if ids.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(f"SequenceRotary: {ids.dtype} cannot hold positions; pass ids in int64 or float32.")
        if ids.ndim not in (2, 3) or ids.shape[0] not in (1, self.axes):
            raise ValueError(
                f"SequenceRotary: ids must be ({self.axes}, S) or ({self.axes}, B, S), got {tuple(ids.shape)}; "
                f"`build_ids` and `pack` make them so."
            )
        ids = ids[:, None] if ids.ndim == 2 else ids
        return ids.expand(self.axes, -1, -1) if ids.shape[0] == 1 else ids

    def _angles(self, ids: Tensor, freqs: Tensor) -> Tensor:
        """ids (B, S, axes) to angles (B, H or 1, S, P)."""
        if self.map.heads == 1:
            rows = self.map.rows(ids.device)[0]
            picked = ids.index_select(-1, rows.clamp(min=0))  # ahead of the product
            angle = picked.mul_(torch.where(rows == STILL, 0.0, freqs) if self.map.still else freqs)
            return angle[:, None]
        owner = self.map.rows(ids.device)[:, 0] if self._whole_heads() else None
        if owner is not None:
            picked = ids.index_select(-1, owner.clamp(min=0)).mT[..., None]  # (B, H, S, 1)
            return picked * torch.where((owner == STILL)[:, None], 0.0, freqs)[:, None]
        rows = self.map.rows(ids.device)
        picked = ids.index_select(-1, rows.clamp(min=0).flatten()).unflatten(-1, rows.shape)  # (B, S, H, P)
        return (picked * torch.where(rows == STILL, 0.0, freqs)).transpose(1, 2)

    def _whole_heads(self) -> bool:
        return all(len(set(row)) == 1 for row in self.map.axis)

    def qk(self, q: Tensor, k: Tensor, ctx_q: Rotation, ctx_k: Rotation) -> tuple[Tensor, Tensor]:
        """Turn queries (B, Hq, S, D) and keys (B, Hkv, S, D); of grouped queries each follows its key-value head."""
        return self.turn(q, ctx_q), self.turn(k, ctx_k)

    def turn(self, x: Tensor, ctx: Rotation) -> Tensor:
        """Queries or keys (B, H, S, D) turned; channels past the map's pairs stay."""
        cos, sin, maps = ctx.cos, ctx.sin, ctx.cos.shape[1]
        if maps not in (1, x.shape[1]):
            if x.shape[1] % maps:
                raise ValueError(f"SequenceRotary: {x.shape[1]} heads do not follow {maps} key-value heads evenly.")
            cos, sin = (t.repeat_interleave(x.shape[1] // maps, dim=1) for t in (cos, sin))
        return ctx.weigh(rotate(x, cos, sin, self.layout))

    def extra_repr(self) -> str:
        scheme = "" if self.scheme is None else f", scheme={type(self.scheme).__name__}"
        return f"head_dim={self.head_dim}, theta={self.theta:g}{scheme}, maps={self.map.heads} x {self.map.pairs}"


def full_tables(ctx: Rotation) -> tuple[Tensor, Tensor]:
    """cos and sin (B, S, D), maps by heads (B, H, S, D), each pair's number at k and k + P: as transformers hands them on."""
    tables = (torch.cat((t, t), dim=-1) for t in (ctx.cos, ctx.sin))
    cos, sin = (t[:, 0] if t.shape[1] == 1 else t for t in tables)
    return cos, sin
