"""Fixed sin-cos tables: the six layouts in circulation, by name.

    table[n] = [sin(p_a ω_k), cos(p_a ω_k)] over axes a and frequencies ω_k = θ^(−k/q),  q = C / (2 · axes)

Sources: MAE and DiT (facebookresearch/mae, util/pos_embed.py), MoCo v3, timm (build_sincos2d_pos_embed), SimpleViT /
big_vision, DETR (PositionEmbeddingSine), diffusers (get_2d_sincos_pos_embed). Computed in float32 for the actual grid.
Chosen here: every preset takes any grid in row-major order; MoCo v3's and timm's `reverse_coord` code enumerates a non-square
grid column by column, which no row-major patch sequence can use.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions, Resize, resize_option
from .base import Card, Encoding
from .rotary import positive

Order = Literal["row_col", "col_row"]
Stacking = Literal["axis", "function", "interleaved"]
Omega = Literal["open", "closed"]
Preset = Literal["mae", "dit", "mocov3", "simplevit", "timm", "timm_interleaved", "diffusers", "detr"]

PRESETS: dict[str, dict] = {
    "mae": dict(theta=10000.0, order="col_row", stacking="axis", omega="open"),
    "dit": dict(theta=10000.0, order="col_row", stacking="axis", omega="open"),
    "mocov3": dict(theta=10000.0, order="row_col", stacking="axis", omega="open"),
    "simplevit": dict(theta=10000.0, order="col_row", stacking="axis", omega="closed"),
    "timm": dict(theta=10000.0, order="row_col", stacking="function", omega="open"),
    "timm_interleaved": dict(theta=10000.0, order="row_col", stacking="axis", omega="open"),
    "diffusers": dict(theta=10000.0, order="col_row", stacking="axis", omega="open"),
    "detr": dict(theta=10000.0, order="row_col", stacking="interleaved", omega="open"),
}


def sincos(
    coords: Tensor, dim: int, *, theta: float, order: Order, stacking: Stacking, omega: Omega = "open"
) -> Tensor:
    """Sin-cos features (B, N, dim) of coordinates (B, N, axes), axes given row before column.

    Args:
        order: which axis comes first in the channels.
        stacking: "axis" [sin a, cos a, sin b, cos b], "function" [sin a, sin b, cos a, cos b],
            "interleaved" [sin a0, cos a0, sin a1, cos a1, ...].
        omega: "open" ω_k = θ^(−k/q), "closed" ω_k = θ^(−k/(q−1)), whose last frequency is exactly 1/θ.
    """
    axes = coords.shape[-1]
    count = dim // (2 * axes)
    if dim % (2 * axes) or (omega == "closed" and count < 2):
        raise ValueError(
            f"sincos2d: dim={dim} does not fit {axes} axes; it must be a multiple of {2 * axes}"
            + (f" and at least {4 * axes}." if omega == "closed" else ".")
        )
    steps = torch.arange(count, dtype=coords.dtype, device=coords.device)
    freqs = theta ** -(steps / (count if omega == "open" else count - 1))
    angle = coords[..., None] * freqs  # (B, N, axes, q)
    if order == "col_row":
        angle = angle.flip(-2)
    elif order != "row_col":
        raise ValueError(f"sincos2d: order must be 'row_col' or 'col_row', got {order!r}.")
    if stacking == "axis":
        return torch.cat((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    if stacking == "function":
        return torch.cat((angle.sin().flatten(-2), angle.cos().flatten(-2)), dim=-1)
    if stacking == "interleaved":
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-3)
    raise ValueError(f"sincos2d: stacking must be 'axis', 'function' or 'interleaved', got {stacking!r}.")


class SinCos2d(Encoding):
    """A fixed sin-cos table, added to the tokens ahead of block 0; prefix tokens get zeros.

    Args:
        preset: whose channel layout and frequencies to use.
        theta: base of the frequencies; None takes the preset's 10000.
        base_size: "diffusers" only: positions are index · base_size / side / interpolation_scale (default: side of the
            train grid, so that the table is that of the train grid, stretched).
        interpolation_scale: "diffusers" only.
        resize: "extend" lets indices grow with the grid, "rescale" squeezes them onto the train grid.
    """

    card = Card(
        title="2-D sin-cos table",
        family="additive",
        axes=(1, 2, 3),
        injection=("tokens",),
        formula="x_n + [sin(p w_k), cos(p w_k)]",
        paper="https://arxiv.org/abs/1706.03762",
        year=2017,
        code="facebookresearch/mae",
        licence="CC-BY-NC-4.0",
        cases=14,
    )

    default_resize: Resize = "extend"

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        preset: Preset = "mae",
        theta: float | None = None,
        base_size: int | None = None,
        interpolation_scale: float = 1.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if preset not in PRESETS:
            raise ValueError(f"sincos2d: preset must be one of {tuple(PRESETS)}, got {preset!r}.")
        if preset != "diffusers" and (base_size is not None or interpolation_scale != 1.0):
            raise ValueError(f"sincos2d: base_size and interpolation_scale belong to preset 'diffusers', not to {preset!r}.")
        self.preset, self.base_size, self.interpolation_scale = preset, base_size, interpolation_scale
        self.layout = {**PRESETS[preset], **({} if theta is None else {"theta": positive("sincos2d", "theta", theta)})}
        self.resize = resize_option("sincos2d", self.default_resize if resize is None else resize)
        sincos(torch.zeros(1, 1, axes), dim, **self.layout)  # refuses a width that does not divide, at construction

    def coordinates(self, pos: Positions) -> Tensor:
        if self.preset != "diffusers" or pos.units == "custom":
            coords = pos.to("index", self.resize)
            return coords + 1 if self.preset == "detr" and pos.units == "index" else coords
        base = pos.train if self.base_size is None else (self.base_size,) * pos.axes
        scaled = [c * b / n for c, b, n in zip(pos.coords.unbind(-1), base, pos.extent)]
        return torch.stack(scaled, dim=-1) / self.interpolation_scale

    def prepare(self, pos: Positions) -> Tensor:
        """(1 or B, prefix + N, C) float32."""
        self.check_axes(pos)
        return F.pad(sincos(self.coordinates(pos), self.dim, **self.layout), (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
