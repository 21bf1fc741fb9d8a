"""Which token sees which: causal, by rings of an image (CCA, MCA, PyPE), inside a document. Boolean, true where seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .schemes import create_scheme
from .schemes.rings import Rings
from .segments import Image, Segment, Video
from .sequence import build_ids


def ring_mask(segments: Sequence[Segment], scheme: str | Rings) -> Tensor:
    """Causal, but inside an image a token sees the rings up to its own, whichever side they lie on; (S, S) bool.

    Built once from ring ids. Of a scheme that differs by layer, pass `scheme.for_layer(i, depth)`.
    Source: xing0047/cca-llava 8b5bb61, ErikZ719/MCA-LLaVA a9a1e40, SakuraTroyChen/PyPE 6c73390.
    """
    scheme = create_scheme(scheme)
    if not isinstance(scheme, Rings):
        raise ValueError(f"ring_mask: {type(scheme).__name__} has no rings; schemes 'cca', 'mca' and 'pype' have.")
    ids = build_ids(segments, scheme)[0][0]
    parts = [s.height * s.width if isinstance(s, Video) else s.length for s in segments for _ in range(_frames(s))]
    visual = [isinstance(s, (Image, Video)) for s in segments for _ in range(_frames(s))]
    owner = torch.arange(len(parts)).repeat_interleave(torch.tensor(parts))
    seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    inside = (owner[:, None] == owner) & torch.tensor(visual)[owner]
    return torch.where(inside, ids[None] <= ids[:, None], seen)


def _frames(segment: Segment) -> int:
    return segment.frames if isinstance(segment, Video) else 1


def document_mask(documents: Tensor) -> Tensor:
    """Causal inside every document of a packed row: (..., S) to (..., S, S) bool."""
    same = documents[..., :, None] == documents[..., None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=documents.device).tril()
