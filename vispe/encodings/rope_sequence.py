"""Rotary of multimodal sequences: ids of several axes, of which every rotary pair reads one.

    ids, mask, next_ids = build_batch(...)                                    vispe/positions/sequence.py, ids (axes, B, S)
    rotary = SequenceRotary(head_dim=128, scheme="mrope_interleave", theta=5e6)
    ctx = rotary.prepare(ids)                                                 once a forward
    q, k = rotary.qk(q, k, ctx, ctx)                                          in every layer; q (B, Hq, S, D), k (B, Hkv, S, D)

angle of pair k = ids[map(k)] · f_k with f_k = theta^(−k/P). A pair's row is picked ahead of the product, so that P angles are
computed and not axes · P. Everything is float32 and made anew from numbers: no buffer holds frequencies, so that `.bfloat16()`
cannot round them. The rotation is that of `rotary.py`. Context extension (`SequenceScaling`) changes frequencies ahead of the
choice of axes, and its temperature multiplies cosines and sines, as in the decoders that were released with it.

Sources: transformers 5.24 (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen-Omni), JJJYmmm/Multimodal-RoPEs cd413b9, Wiselnn570/VideoRoPE
7712ca3, hrlics/HoPE 85b76c0, VectorSpaceLab/OmniGen2 0f72fa9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..positions import extrapolate as formulas
from ..positions.schemes import Scheme, create_scheme
from .axis_map import STILL, Allocation, AxisMap, axis_map
from .functional import LAYOUTS, Layout, rotate
from .rotary import Rotation

ScalingMethod = Literal["none", "linear", "ntk", "dynamic", "yarn", "videorope++", "mrope++"]
Spectrum = Literal["shared", "own"]


def inverse_frequencies(pairs: int, theta: float, device: torch.device | None = None) -> Tensor:
    """theta^(−k/P), (P,) float32: rounded step by step as decoders do, so that ids of thousands give the same cosines."""
    channels = 2 * pairs
    return 1.0 / theta ** (torch.arange(0, channels, 2, device=device).float() / channels)


@dataclass(frozen=True)
class SequenceScaling:
    """Context extension of a decoder.

    Args:
        method: "linear" divides all frequencies by the factor; "ntk" takes base theta · factor^(d/(d−2)); "dynamic" does so by
            factor · n / trained − (factor − 1), n the largest id + 1 (of all axes; not the number of tokens), where that passes
            the trained length; "yarn" as in transformers; "videorope++" (Wiselnn570/VideoRoPE, videorope++_v1) slows the pairs
            of time alone, by NTK; "mrope++" (same code) leaves time, takes NTK for columns and the mean of NTK and linear for
            rows; these two without a temperature. With "dynamic", keys that were turned at a shorter length keep their old
            frequencies in a cache.
        factor: s, at least 1.
        trained: ids in training.
        temperature: of "yarn", by which cosines and sines are multiplied; None for 0.1 ln s + 1.
        mscale, mscale_all_dim: of "yarn": where both are set, (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1) instead.
        turns: (beta_fast, beta_slow) of "yarn".
        truncate: of "yarn", round the ends of its ramp to whole pairs.
    """

    method: ScalingMethod = "yarn"
    factor: float = 4.0
    trained: int = 32768
    temperature: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    turns: tuple[float, float] = (32.0, 1.0)
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.method not in get_args(ScalingMethod):
            raise ValueError(f"SequenceScaling: method must be one of {get_args(ScalingMethod)}, got {self.method!r}.")
        if not self.factor >= 1 or self.trained < 2:
            raise ValueError(
                f"SequenceScaling: factor must be at least 1 and trained at least 2 ids, got {self.factor} and {self.trained}."
            )

    @property
    def amount(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.method != "yarn":
            return 1.0
        if self.temperature is not None:
            return self.temperature
        if self.mscale and self.mscale_all_dim:
            top, bottom = (formulas.yarn_temperature(self.factor, slope=0.1 * m) for m in (self.mscale, self.mscale_all_dim))
            return top / bottom
        return formulas.yarn_temperature(self.factor)

    def apply(self, freqs: Tensor, *, theta: float, length: int, axes: AxisMap) -> Tensor:
        """Frequencies (P,) for sequences whose largest id is length − 1, float32."""
        if self.method in ("videorope++", "mrope++"):
            return self._by_axis(freqs, axes).float()
        if self.method == "linear":
            return formulas.interpolate(freqs, self.factor).float()
        if self.method == "yarn":
            options = {"turns": self.turns, "truncate": self.truncate, "ends": "released"}
            return formulas.yarn(freqs, self.factor, theta=theta, span=self.trained, **options).float()
        if self.method == "none":
            return freqs
        dynamic = self.method == "dynamic"
        scale = formulas.dynamic_growth(length, self.trained, self.factor) if dynamic else self.factor
        if scale == 1:
            return freqs
        base = formulas.ntk_base(theta, 2 * freqs.numel(), scale)
        return inverse_frequencies(freqs.numel(), base, freqs.device)

    def _by_axis(self, freqs: Tensor, axes: AxisMap) -> Tensor:
        """The released code counts growth from the first to the last id: (s · L − 1) / (L − 1)."""
        ntk = formulas.ntk(freqs, (self.trained * self.factor - 1) / (self.trained - 1))
        time, row, column = (axes.members(axis).to(freqs.device) for axis in range(3))
        if self.method == "videorope++":
            return torch.where(time, ntk, freqs.double())
        mixed = (formulas.interpolate(freqs, self.factor) + ntk) / 2
        return torch.where(row, mixed, torch.where(column, ntk, freqs.double()))


class SequenceRotary(nn.Module):
    """Rotary by ids of several axes. Without parameters and buffers; one module serves all layers of a decoder.

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
        super().__init__()
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"SequenceRotary: head_dim must be even and positive, got {head_dim}.")
        if not theta > 1:
            raise ValueError(f"SequenceRotary: theta must be above 1, got {theta}.")
        if layout not in LAYOUTS or spectrum not in get_args(Spectrum):
            raise ValueError(
                f"SequenceRotary: layout is one of {LAYOUTS} and spectrum one of {get_args(Spectrum)}, got {layout!r} and "
                f"{spectrum!r}."
            )
        self.head_dim, self.theta, self.layout, self.spectrum, self.scaling = head_dim, float(theta), layout, spectrum, scaling
        self.scheme = None if scheme is None else create_scheme(scheme)
        self.axes = self._map(allocation, sections, axes, kv_heads)
        if spectrum == "own" and (scaling is not None or self.axes.heads > 1):
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
            own = [inverse_frequencies(int(self.axes.members(a).sum()), self.theta, device) for a in range(self.axes.axes)]
            out = torch.zeros(self.axes.pairs, device=device)
            for axis, f in enumerate(own):
                out[self.axes.members(axis).to(out.device)] = f
            return out
        freqs = inverse_frequencies(self.axes.pairs, self.theta, device)
        if self.scaling is None:
            return freqs
        return self.scaling.apply(freqs, theta=self.theta, length=length, axes=self.axes)

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
                if self.axes.plain and self.axes.still:
                    cos = cos.masked_fill_((self.axes.rows(ids.device) == STILL)[:, None], 1.0)
        return Rotation(cos, sin)

    def _checked(self, ids: Tensor) -> Tensor:
        """(axes, B, S)."""
        if ids.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(f"SequenceRotary: {ids.dtype} cannot hold positions; pass ids in int64 or float32.")
        if ids.ndim not in (2, 3) or ids.shape[0] not in (1, self.axes.axes):
            raise ValueError(
                f"SequenceRotary: ids must be ({self.axes.axes}, S) or ({self.axes.axes}, B, S), got {tuple(ids.shape)}; "
                f"`build_ids` and `pack` make them so."
            )
        ids = ids[:, None] if ids.ndim == 2 else ids
        return ids.expand(self.axes.axes, -1, -1) if ids.shape[0] == 1 else ids

    def _angles(self, ids: Tensor, freqs: Tensor) -> Tensor:
        """ids (B, S, axes) to angles (B, H or 1, S, P)."""
        if self.axes.heads == 1:
            rows = self.axes.rows(ids.device)[0]
            picked = ids.index_select(-1, rows.clamp(min=0))  # ahead of the product
            angle = picked.mul_(torch.where(rows == STILL, 0.0, freqs) if self.axes.still else freqs)
            return angle[:, None]
        owner = self.axes.rows(ids.device)[:, 0] if self._whole_heads() else None
        if owner is not None:
            picked = ids.index_select(-1, owner.clamp(min=0)).mT[..., None]  # (B, H, S, 1)
            return picked * torch.where((owner == STILL)[:, None], 0.0, freqs)[:, None]
        rows = self.axes.rows(ids.device)
        picked = ids.index_select(-1, rows.clamp(min=0).flatten()).unflatten(-1, rows.shape)  # (B, S, H, P)
        return (picked * torch.where(rows == STILL, 0.0, freqs)).transpose(1, 2)

    def _whole_heads(self) -> bool:
        return all(len(set(row)) == 1 for row in self.axes.axis)

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
        return f"head_dim={self.head_dim}, theta={self.theta:g}{scheme}, maps={self.axes.heads} x {self.axes.pairs}"


def full_tables(ctx: Rotation) -> tuple[Tensor, Tensor]:
    """cos and sin (B, S, D), maps by heads (B, H, S, D), each pair's number at k and k + P: as transformers hands them on."""
    tables = (torch.cat((t, t), dim=-1) for t in (ctx.cos, ctx.sin))
    cos, sin = (t[:, 0] if t.shape[1] == 1 else t for t in tables)
    return cos, sin


def scaling_of(config: dict[str, Any]) -> SequenceScaling | None:
    """The scaling that a decoder's configuration asks for (`rope_type`, `factor`, ... of transformers); None for "default"."""
    kind = config.get("rope_type", config.get("type", "default"))
    if kind in ("default", "mrope"):
        return None
    if kind not in ("linear", "dynamic", "yarn"):
        raise ValueError(f"scaling_of: rope_type {kind!r} is not known; there are default, linear, dynamic and yarn.")
    top = config.get("max_position_embeddings")
    trained = top or 32768
    if kind == "yarn":
        trained = config.get("original_max_position_embeddings") or trained
    factor = config.get("factor")
    if factor is None and top is None:
        raise ValueError(f"scaling_of: {kind!r} needs a factor, or max_position_embeddings to compute it from.")
    return SequenceScaling(
        kind, factor=top / trained if factor is None else factor, trained=trained, temperature=config.get("attention_factor"),
        mscale=config.get("mscale"), mscale_all_dim=config.get("mscale_all_dim"), truncate=config.get("truncate", True),
        turns=(config.get("beta_fast") or 32.0, config.get("beta_slow") or 1.0),
    )  # fmt: skip
