"""Parts of the small vision-language model: a batch of sequences, and the decoder's blocks with their cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..encodings.rope_sequence import SequenceRotary
from ..encodings.rotary import Rotation
from ..layers.attention import attend
from ..positions.masks import ring_mask
from ..positions.schemes import Scheme
from ..positions.schemes.rings import Rings
from ..positions.segments import Image, Segment, Text, Tiles, Video
from ..positions.sequence import Side


@dataclass(frozen=True)
class Sequences:
    """Rows of text and pictures. What is where comes from segments, never from token ids.

    Attributes:
        rows: the segments of each row, in order.
        text: token ids of each row's texts joined, (n,) int64.
        pictures: of each row, one tensor for each visual segment in order: (frames or tiles, C, H, W), or (C, H, W).
    """

    rows: tuple[tuple[Segment, ...], ...]
    text: tuple[Tensor, ...]
    pictures: tuple[tuple[Tensor, ...], ...]

    def to(self, *args: object, **kwargs: object) -> Sequences:
        """Tensors moved as `Tensor.to` does; token ids keep their dtype."""
        pictures = tuple(tuple(p.to(*args, **kwargs) for p in row) for row in self.pictures)
        device = pictures[0][0].device if pictures and pictures[0] else torch.empty(0).to(*args, **kwargs).device
        return replace(self, text=tuple(t.to(device) for t in self.text), pictures=pictures)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [sum(s.length for s in row) for row in self.rows]

    def check(self) -> None:
        """Refuse rows whose text or pictures are not those of their segments."""
        if not (len(self.rows) == len(self.text) == len(self.pictures)) or not self.rows:
            raise ValueError(
                f"Sequences: segments, text and pictures are given for {len(self.rows)}, {len(self.text)} and "
                f"{len(self.pictures)} rows; give all for every row, and at least one row."
            )
        for i, (row, text, pictures) in enumerate(zip(self.rows, self.text, self.pictures)):
            words = sum(s.n for s in row if isinstance(s, Text))
            seen = sum(not isinstance(s, Text) for s in row)
            if text.ndim != 1 or text.dtype != torch.int64 or len(text) != words:
                raise ValueError(
                    f"Sequences: row {i} has {words} tokens of text in its segments, which need ({words},) int64; got "
                    f"{tuple(text.shape)} {text.dtype}."
                )
            if len(pictures) != seen:
                raise ValueError(f"Sequences: row {i} has {seen} visual segments and {len(pictures)} pictures.")


def picture_of(row: int, segment: Segment, picture: Tensor) -> Tensor:
    """(frames or tiles, C, H, W) of one segment."""
    if isinstance(segment, Image):
        count = 1
    elif isinstance(segment, Video):
        count = segment.frames
    elif _even_tiles(segment):
        count = segment.rows * segment.cols + (segment.thumbnail is not None)
    else:
        raise ValueError(
            f"VisionLanguageModel: row {row}: pictures come as images, videos, or tiles in order 'tiles' with a thumbnail of a "
            f"tile's grid; got {segment}."
        )
    picture = picture[None] if picture.ndim == 3 else picture
    if picture.ndim != 4 or picture.shape[0] != count:
        raise ValueError(
            f"VisionLanguageModel: row {row}: segment {segment.kind!r} needs pictures ({count}, C, H, W), got "
            f"{tuple(picture.shape)}."
        )
    return picture


def _even_tiles(segment: Segment) -> bool:
    """Whether tiles can go through the tower as pictures of one size, and come out in the order of the tokens."""
    if not isinstance(segment, Tiles) or segment.order != "tiles":
        return False
    return segment.thumbnail in (None, (segment.height, segment.width))


@dataclass
class LayerCache:
    """What a layer keeps of earlier tokens: keys and values (B, Hkv, S, D), keys not turned yet, and cosines and sines.

    Keys are turned when they are used, so that ids stay the only truth about places.
    """

    k: Tensor | None = None
    v: Tensor | None = None
    ctx: Rotation | None = None

    def extend(self, k: Tensor, v: Tensor, ctx: Rotation) -> tuple[Tensor, Tensor, Rotation]:
        """Append the new tokens; returns all of them."""
        if self.k is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
            cos, sin = torch.cat((self.ctx.cos, ctx.cos), dim=2), torch.cat((self.ctx.sin, ctx.sin), dim=2)
            ctx = replace(ctx, cos=cos, sin=sin)
        self.k, self.v, self.ctx = k, v, ctx
        return k, v, ctx


class DecoderAttention(nn.Module):
    """Attention of a decoder with any rotary of sequences; key-value heads may be fewer than heads.

    Args:
        dim: channels; head_dim = dim / num_heads.
    """

    def __init__(self, dim: int, *, num_heads: int, kv_heads: int) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.head_dim = num_heads, kv_heads, dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.head_dim)
        self.proj = nn.Linear(dim, dim)

    def forward(
        self, x: Tensor, rotary: SequenceRotary, ctx: Rotation, mask: Tensor, cache: LayerCache | None = None
    ) -> Tensor:
        """x (B, S, C); mask (B or 1, 1, S, S with cached tokens) bool, true where seen; `ctx` is that of the S new tokens."""
        q = self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, S, D)
        k, v = self.kv(x).unflatten(-1, (2, self.kv_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, Hkv, S, D)
        ctx_k = ctx
        if cache is not None:
            k, v, ctx_k = cache.extend(k, v, ctx)
        if self.kv_heads < self.num_heads:
            k, v = (t.repeat_interleave(self.num_heads // self.kv_heads, dim=1) for t in (k, v))
        o = attend(q, k, v, rotary, ctx, ctx_k, scale=self.head_dim**-0.5, mask=mask)
        return self.proj(o.transpose(1, 2).flatten(2))


class DecoderBlock(nn.Module):
    """Pre-norm block: attention and a gated MLP, RMSNorm, as in Llama and its relatives."""

    def __init__(self, dim: int, *, num_heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)
        self.attn = DecoderAttention(dim, num_heads=num_heads, kv_heads=kv_heads)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(
        self, x: Tensor, rotary: SequenceRotary, ctx: Rotation, mask: Tensor, cache: LayerCache | None = None
    ) -> Tensor:
        """x (B, S, C); see DecoderAttention."""
        x = x + self.attn(self.norm1(x), rotary, ctx, mask, cache)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def place_tokens(sequences: Sequences, text: Sequence[Tensor], seen: Sequence[Sequence[Tensor]], dim: int) -> list[Tensor]:
    """Embeddings of each row in order, (S_i, C): texts and pictures, laid out by the segments."""
    out = []
    for row, words, pictures in zip(sequences.rows, text, seen):
        parts, left, start = [], iter(pictures), 0
        for segment in row:
            if isinstance(segment, Text):
                parts.append(words[start : start + segment.n])
                start += segment.n
            else:
                parts.append(next(left))
        out.append(torch.cat(parts) if parts else words.new_zeros(0, dim))
    return out


def row_mask(row: Sequence[Segment], scheme: Scheme) -> Tensor:
    if isinstance(scheme, Rings):
        return ring_mask(row, scheme)
    n = sum(segment.length for segment in row)
    return torch.ones(n, n, dtype=torch.bool).tril()


def padded_mask(batch: Sequences, scheme: Scheme, side: Side) -> Tensor:
    """(B or 1, 1, S, S): rows with equal segments share one mask; padding is seen by nobody but itself."""
    if len(set(batch.rows)) == 1 or (not isinstance(scheme, Rings) and len(set(batch.lengths)) == 1):
        return row_mask(batch.rows[0], scheme)[None, None]
    longest = max(batch.lengths)
    made: dict[tuple[Segment, ...], Tensor] = {}
    out = torch.eye(longest, dtype=torch.bool).repeat(len(batch), 1, 1)
    for mask, row, n in zip(out, batch.rows, batch.lengths):
        if row not in made:
            made[row] = row_mask(row, scheme)
        place = slice(longest - n, longest) if side == "left" else slice(0, n)
        mask[place, place] = made[row]
    return out[:, None]
