"""Rotary tables of diffusers' image and video transformers, by name: the share of each axis, their order, the base.

    angle_i = p_axis · (θ · ntk)^(−2i / d_axis) / linear,   d_axis channels an axis

Source: diffusers 0.42.1. Flux (FluxPosEmbed), HunyuanVideo, Wan, CogVideoX (get_3d_rotary_pos_embed), Lumina2, Lumina-Next
(get_2d_rotary_pos_embed_lumina), HunyuanDiT (get_2d_rotary_pos_embed). The default is Wan's, which fits every even head width.
Different there: some compute in float64 (frequencies here too, angles in float32). Text tokens at the origin are prefix tokens
here: they are not turned. Chosen here: with two axes an image is frame 0, so that the channels of time do not turn.

diffusers hands around tables as wide as the head, every angle twice: side by side for channel pairs (2i, 2i+1), one half after
the other for pairs (i, i + d/2). Its apply function cannot see which it got, and a mix-up is no rotation. `widen` and `narrow`
go between those tables and ours, which hold every angle once; `narrow` refuses tables of the other layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ..positions import Resize
from .base import Card
from .extrapolation import Series
from .functional import Layout
from .rotary import Rotary, positive

Preset = Literal["flux", "hunyuan_video", "wan", "cogvideox", "lumina2", "lumina_next", "hunyuan_dit"]
ORDERS: dict[str, tuple[int, ...]] = {"hunyuan_dit": (2, 1), "lumina_next": (1, 2)}  # 0 time, 1 row, 2 column; others 0, 1, 2


def shares(preset: Preset, head_dim: int) -> tuple[int, ...]:
    """Channels of each axis, in the order of the channels, as the preset shares out a head."""
    if preset not in get_args(Preset):
        raise ValueError(f"rope_diffusers: preset must be one of {get_args(Preset)}, got {preset!r}.")
    d = head_dim
    if preset in ("flux", "hunyuan_video"):  # (16, 56, 56) of 128
        split = (d // 8, 7 * d // 16, 7 * d // 16)
    elif preset == "wan":
        split = (d - 4 * (d // 6), 2 * (d // 6), 2 * (d // 6))
    elif preset == "cogvideox":
        split = (d // 4, d // 8 * 3, d // 8 * 3)
    else:
        count = 3 if preset == "lumina2" else 2
        split = (d // count,) * count
    if sum(split) != d or any(n % 2 for n in split):
        raise ValueError(
            f"rope_diffusers: preset {preset!r} cannot share out a head of {d} channels in pairs (it would be {split}); choose "
            f"another dim or num_heads, or give `channels` for each axis."
        )
    return split


def axis_frequencies(
    channels: int, theta: float, *, linear: float = 1.0, ntk: float = 1.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """(channels / 2,) radians per cell: 1 / (θ · ntk)^(2i / channels) / linear."""
    steps = torch.arange(0, channels, 2, dtype=dtype) / channels
    return 1.0 / (theta * ntk) ** steps / linear


class RopeDiffusers(Rotary):
    """Fixed rotary frequencies as diffusers' transformers have them; channel pairs (2i, 2i+1).

    Args:
        preset: whose shares, order of the axes and base.
        channels: channels of each axis in the preset's order of channels, instead of its shares; they sum to the head's.
        theta: base; None takes the preset's (256 for HunyuanVideo, else 10000).
        linear_factor, ntk_factor: frequencies are divided by the one, the base is multiplied by the other.
        resize: see RopeAxial.
    """

    card = Card(
        title="RoPE of diffusers' models",
        family="rotary",
        axes=(2, 3),
        injection=("qk",),
        formula="angle_i = p · (theta · ntk)^(-2i/d) / linear",
        paper="https://arxiv.org/abs/2104.09864",
        year=2025,
        code="huggingface/diffusers",
        licence="Apache-2.0",
        cases=6,
        relative=True,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        preset: Preset = "wan",
        channels: Sequence[int] | None = None,
        theta: float | None = None,
        linear_factor: float = 1.0,
        ntk_factor: float = 1.0,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.order = ORDERS.get(preset, (0, 1, 2))
        if axes == 3 and 0 not in self.order:
            raise ValueError(f"rope_diffusers: preset {preset!r} is for images, it has no channels for time; got axes=3.")
        if channels is None:
            channels = shares(preset, self.head_dim)
        elif len(channels) != len(self.order) or sum(channels) != self.head_dim or any(n % 2 or n < 0 for n in channels):
            raise ValueError(
                f"rope_diffusers: channels must be {len(self.order)} even numbers that sum to head_dim={self.head_dim}, got "
                f"{tuple(channels)}."
            )
        if preset == "lumina_next" and channels[0] != channels[1]:
            raise ValueError(f"rope_diffusers: lumina_next interleaves two equal axes, got channels={tuple(channels)}.")
        self.preset, self.channels = preset, tuple(channels)
        base = 256.0 if preset == "hunyuan_video" else 10000.0
        self.theta = positive("rope_diffusers", "theta", base if theta is None else theta)
        self.linear_factor = positive("rope_diffusers", "linear_factor", linear_factor)
        self.ntk_factor = positive("rope_diffusers", "ntk_factor", ntk_factor)

    def table(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """(1, axes, P) frequencies."""
        vectors = [
            axis_frequencies(n, self.theta, linear=self.linear_factor, ntk=self.ntk_factor, dtype=dtype) for n in self.channels
        ]
        blocks = torch.block_diag(*[v[None] for v in vectors])  # (axes of the order, P)
        if self.preset == "lumina_next":  # row 0, column 0, row 1, column 1, ...
            blocks = blocks.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)
        rows = torch.zeros(3, blocks.shape[1], dtype=dtype)
        rows[list(self.order)] = blocks
        return rows[None, 3 - self.axes :]

    def frequencies(self) -> Tensor:
        return self.table().float()

    def series(self) -> tuple[Series, ...]:
        pairs = dict(zip(self.order, (n // 2 for n in self.channels)))
        made = [Series(self.theta * self.ntk_factor, pairs.get(axis, 1), 1 / self.linear_factor) for axis in (0, 1, 2)]
        return tuple(made[3 - self.axes :])


def widen(table: Tensor, layout: Layout) -> Tensor:
    """(..., P) cosines or sines of pairs to diffusers' (..., 2P), every number twice."""
    return table.repeat_interleave(2, dim=-1) if layout == "interleaved" else torch.cat((table, table), dim=-1)


def narrow(table: Tensor, layout: Layout) -> Tensor:
    """diffusers' (..., 2P) to (..., P) for `rotate(..., layout)`.

    Raises:
        ValueError: the table is not of this layout; turning channels with it would change their lengths.
    """
    pairs = table.shape[-1] // 2
    ours = table[..., ::2] if layout == "interleaved" else table[..., :pairs]
    if layout not in get_args(Layout) or table.shape[-1] % 2 or not torch.equal(widen(ours, layout), table):
        other = "half" if layout == "interleaved" else "interleaved"
        raise ValueError(
            f"narrow: this table of width {table.shape[-1]} does not hold every number twice in the layout {layout!r}; is it "
            f"{other!r}?"
        )
    return ours
