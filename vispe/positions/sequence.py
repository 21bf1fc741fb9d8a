"""Position ids of sequences of text, images, videos and sounds: built from segments, packed into batches, carried on.

    ids, next_id = build_ids([Text(4), Image(3, 4), Text(2)], "mrope")        # (3, 18)
    ids, mask = pack([ids, shorter], side="left")                             # (3, 2, 18), (2, 18)
    ids, next_id = build_ids([Text(1)], "mrope", start=next_id)               # a generated token, or the next turn

A scheme places every segment relative to its start; what is left, here, is to add the starts. So ids that go on at `next_id`
are those of the whole sequence built at once.

State: ids, next ids and masks equal those of the official code for every scheme that has one (tests/parity, integers exactly,
fractions to 2e-5). ID-Align, RegionalRoPE and SharedPosition's rows and blocks have no code to compare with; V2PE is compared
where the official arange does not add a token. `SequenceRotary` (encodings/rope_sequence.py) turns queries and keys by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .schemes import Block, Scheme, create_scheme
from .segments import VISUAL, Segment, SegmentError

Side = Literal["left", "right"]


def build_ids(
    segments: Sequence[Segment],
    scheme: str | Scheme,
    *,
    start: float = 0,
    rates: Sequence[float] | None = None,
    generator: torch.Generator | None = None,
    row: int = 0,
) -> tuple[Tensor, int | float]:
    """Ids of one sequence.

    Args:
        segments: in order; their lengths add up to the sequence.
        scheme: a name of the table, or a scheme with options.
        start: id of the first token; `next_id` of what came before, for a next turn or a generated token.
        rates: one number for each visual segment (V2PE's delta, HoPE's scale), in place of the scheme's own.
        generator: draws the rates from the authors' choices, one for each visual segment, as they train.
        row: number of the sequence, for messages.

    Returns:
        ids (axes, S), int64 or float32, and the id at which the next segment starts.
    """
    scheme = create_scheme(scheme)
    rates = _rates(segments, scheme, rates, generator, row)
    made: dict[tuple[Segment, float], Block] = {}
    blocks, starts, here = [], [], float(start)
    for number, (segment, rate) in enumerate(zip(segments, rates)):
        block = made.get((segment, rate))
        if block is None:
            block = made[segment, rate] = _place(segment, rate, scheme, segments, number, row)
        blocks.append(block)
        starts.append([0.0 if axis in block.fixed else here for axis in range(scheme.axes)])
        here += block.advance
    if not blocks:
        return torch.zeros(scheme.axes, 0, dtype=scheme.dtype), _number(here, scheme)
    lengths = torch.tensor([block.ids.shape[1] for block in blocks])
    shift = torch.tensor(starts, dtype=torch.float64).repeat_interleave(lengths, dim=0).T
    ids = torch.cat([block.ids for block in blocks], dim=1).add_(shift)
    return _settle(ids, scheme.dtype, f"build_ids: row {row}"), _number(here, scheme)


def _place(segment: Segment, rate: float, scheme: Scheme, segments: Sequence[Segment], number: int, row: int) -> Block:
    try:
        if not hasattr(segment, "check"):
            raise SegmentError(f"expected Text, Image, Video, Audio, AudioVideo or Tiles, got {type(segment).__name__}.")
        segment.check()
        return scheme.block(segment, rate)
    except SegmentError as error:
        kind = getattr(segment, "kind", "?")
        nth = sum(getattr(s, "kind", "?") == kind for s in segments[: number + 1])
        raise ValueError(f"build_ids: row {row}, segment {number} ({kind} {nth}): {error}") from error


def _rates(
    segments: Sequence[Segment],
    scheme: Scheme,
    rates: Sequence[float] | None,
    generator: torch.Generator | None,
    row: int,
) -> list[float]:
    """One number for each segment; 1 where it means nothing."""
    visual = [isinstance(s, VISUAL) for s in segments]
    count = sum(visual)
    if rates is None and generator is None:
        drawn = [scheme.rate] * count
    elif not scheme.choices:
        raise ValueError(f"build_ids: row {row}: scheme {type(scheme).__name__} has no rate a segment; V2PE and HoPE have.")
    elif rates is not None:
        drawn = [float(r) for r in rates]
        if len(drawn) != count or not all(r > 0 for r in drawn):
            raise ValueError(f"build_ids: row {row}: {count} visual segments need as many positive rates, got {drawn}.")
    else:
        picks = torch.randint(len(scheme.choices), (count,), generator=generator, device=generator.device)
        drawn = [scheme.choices[i] for i in picks.tolist()]
    left = iter(drawn)
    return [next(left) if is_visual else 1.0 for is_visual in visual]


def _settle(ids: Tensor, dtype: torch.dtype, where: str) -> Tensor:
    """float64 ids in their final dtype; a fraction is never cut off."""
    if dtype.is_floating_point:
        return ids.to(dtype)
    whole = ids.to(dtype)
    if not torch.equal(whole.to(ids.dtype), ids):
        token = int((whole != ids).any(dim=0).nonzero()[0])
        raise ValueError(
            f"{where}: token {token} has the fractional ids {ids[:, token].tolist()}, which {dtype} cannot hold; use a scheme "
            f"with float ids or whole rates."
        )
    return whole


def _number(value: float, scheme: Scheme) -> int | float:
    return value if scheme.floating else int(value)


def pack(
    rows: Sequence[Tensor], *, side: Side = "left", pad: float = 0, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of ids (axes, S_i) in one batch.

    Args:
        side: where padding goes.
        pad: its id; `scheme.pad` is the official code's.
        dtype: of the batch; None for the rows' own. int64 refuses rows with fractions.

    Returns:
        ids (axes, B, S) and mask (B, S) bool, true for tokens.
    """
    if side not in ("left", "right"):
        raise ValueError(f"pack: side must be 'left' or 'right', got {side!r}.")
    if not rows:
        raise ValueError("pack: needs at least one row.")
    axes = rows[0].shape[0]
    for i, ids in enumerate(rows):
        if ids.ndim != 2 or ids.shape[0] != axes:
            raise ValueError(f"pack: row {i} has shape {tuple(ids.shape)}, expected ({axes}, tokens) as in row 0.")
    if dtype is None:
        dtype = torch.float32 if any(ids.is_floating_point() for ids in rows) else rows[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"pack: {dtype} cannot hold positions; use float32 or int64.")
    longest = max(ids.shape[1] for ids in rows)
    out = torch.full((axes, len(rows), longest), pad, dtype=dtype)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, ids in enumerate(rows):
        n = ids.shape[1]
        place = slice(longest - n, longest) if side == "left" else slice(0, n)
        out[:, i, place] = _settle(ids, dtype, f"pack: row {i}") if ids.dtype != dtype else ids
        mask[i, place] = True
    return out, mask


@dataclass(frozen=True)
class SequenceBatch:
    """Ids of a batch: ids (axes, B, S), mask (B, S) true for tokens, and every row's next id."""

    ids: Tensor
    mask: Tensor
    next_ids: tuple[int | float, ...]


def build_batch(
    rows: Sequence[Sequence[Segment]],
    scheme: str | Scheme,
    *,
    side: Side = "left",
    pad: float | None = None,
    rates: Sequence[Sequence[float]] | None = None,
    generator: torch.Generator | None = None,
) -> SequenceBatch:
    """`build_ids` of every row and `pack`; padding has the id of the official code unless `pad` is given."""
    scheme = create_scheme(scheme)
    built = [
        build_ids(segments, scheme, rates=None if rates is None else rates[i], generator=generator, row=i)
        for i, segments in enumerate(rows)
    ]
    ids, mask = pack([ids for ids, _ in built], side=side, pad=scheme.pad if pad is None else pad)
    return SequenceBatch(ids, mask, tuple(following for _, following in built))


def pack_documents(
    documents: Sequence[Sequence[Segment]], scheme: str | Scheme, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Several documents in one row, every one from id 0: ids (axes, S) and the document of each token (S,) int64.

    Attention must stay inside a document: `document_mask` in positions/masks.py.
    """
    built = [build_ids(d, scheme, generator=generator, row=i)[0] for i, d in enumerate(documents)]
    if not built:
        raise ValueError("pack_documents: needs at least one document.")
    lengths = torch.tensor([ids.shape[1] for ids in built])
    return torch.cat(built, dim=1), torch.arange(len(built)).repeat_interleave(lengths)
