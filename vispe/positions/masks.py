"""Which token sees which: causal, by rings of an image (CCA, MCA, PyPE), inside a document. Boolean, true where seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .schemes import Scheme, create_scheme
from .schemes.rings import Rings
from .segments import VISUAL, Segment
from .sequence import Side, build_ids


def ring_mask(segments: Sequence[Segment], scheme: str | Rings) -> Tensor:
    """Causal, but inside an image a token sees the rings up to its own, whichever side they lie on; (S, S) bool.

    Built once from ring ids. Of a scheme that differs by layer, pass `scheme.for_layer(i, depth)`. Frames of a video, the tiles
    of an image and its thumbnail have rings of their own, so each of them is an image here (the authors have one image of
    24 x 24 and say nothing of tiles). The adapter of transformers has the same mask, by the same `sees_rings`.
    Source: xing0047/cca-llava 8b5bb61, ErikZ719/MCA-LLaVA a9a1e40, SakuraTroyChen/PyPE 6c73390.
    """
    scheme = create_scheme(scheme)
    if not isinstance(scheme, Rings):
        raise ValueError(f"ring_mask: {type(scheme).__name__} has no rings; schemes 'cca', 'mca' and 'pype' have.")
    ids = build_ids(segments, scheme)[0][0]
    lengths = torch.tensor([segment.length for segment in segments], dtype=torch.long)
    return sees_rings(ids, torch.tensor([isinstance(s, VISUAL) for s in segments], dtype=torch.bool).repeat_interleave(lengths))


def sees_rings(ids: Tensor, visual: Tensor) -> Tensor:
    """The mask (..., S, S) bool of ring ids (..., S) and of which tokens are visual (..., S) bool.

    Images, frames and tiles that touch need no telling apart: the ids of the next all lie behind those of the last, so that
    between them "up to its own" is causal.
    """
    edges = visual[..., 1:] != visual[..., :-1]
    runs = torch.cat((torch.zeros_like(visual[..., :1]), edges), dim=-1).cumsum(-1)
    inside = (runs[..., :, None] == runs[..., None, :]) & visual[..., None, :]
    causal = torch.ones(inside.shape[-2:], dtype=torch.bool, device=ids.device).tril()
    return torch.where(inside, ids[..., None, :] <= ids[..., :, None], causal)


def batch_mask(rows: Sequence[Sequence[Segment]], scheme: str | Scheme, *, side: Side = "left") -> Tensor:
    """What every token of a padded batch sees, (B, S, S) bool: by ring where the scheme has rings, else causal.

    Padding is seen by nobody but itself, so that no softmax is over nothing. `side` is where it goes, as in `pack`.
    """
    if side not in ("left", "right"):
        raise ValueError(f"batch_mask: side must be 'left' or 'right', got {side!r}.")
    scheme = create_scheme(scheme)
    lengths = [sum(segment.length for segment in row) for row in rows]
    longest = max(lengths, default=0)
    out = torch.eye(longest, dtype=torch.bool).repeat(len(rows), 1, 1)
    for mask, row, n in zip(out, rows, lengths):
        place = slice(longest - n, longest) if side == "left" else slice(0, n)
        mask[place, place] = ring_mask(row, scheme) if isinstance(scheme, Rings) else torch.ones(n, n, dtype=torch.bool).tril()
    return out


def document_mask(documents: Tensor) -> Tensor:
    """Causal inside every document of a packed row: (..., S) to (..., S, S) bool."""
    same = documents[..., :, None] == documents[..., None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=documents.device).tril()
