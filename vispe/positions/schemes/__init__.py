"""The table of position schemes of multimodal sequences. Adding one is a small frozen class and one line here."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from .base import Block, Scheme
from .circle import CircleRope
from .generative import ILRope, MMRope, OmniRope
from .line import V2PE, Line, SharedPosition, TadRope
from .mrope import MHRoPE, MRoPE, MRoPEInterleave
from .regional import RegionalRoPE
from .rings import PyPE, Rings
from .tiles import IDAlign, RopeDHR
from .tmrope import TMRoPE, TMRoPE3, audio_tokens
from .video import HoPE, VideoRoPE, VRoPE

SCHEMES: dict[str, tuple[type[Scheme], dict[str, Any]]] = {
    "rope1d": (Line, {}),
    "v2pe": (V2PE, {}),
    "mrope": (MRoPE, {}),
    "mrope_time": (MRoPE, {"tokens_per_second": 2}),
    "mrope_interleave": (MRoPEInterleave, {}),
    "mrope_interleave_reset": (MRoPEInterleave, {"spatial_reset": True}),
    "mhrope": (MHRoPE, {}),
    "vrope": (VRoPE, {}),
    "videorope": (VideoRoPE, {}),
    "hope": (HoPE, {}),
    "tad_rope": (TadRope, {}),
    "circle_rope": (CircleRope, {}),
    "il_rope": (ILRope, {}),
    "omni_rope": (OmniRope, {}),
    "mm_rope": (MMRope, {}),
    "tmrope": (TMRoPE, {}),
    "tmrope3": (TMRoPE3, {}),
    "rope_dhr": (RopeDHR, {}),
    "id_align": (IDAlign, {}),
    "cca": (Rings, {"kind": "nearest"}),
    "mca": (Rings, {"kind": "manhattan"}),
    "pype": (PyPE, {}),
    "shared_position": (SharedPosition, {}),
    "regional_rope": (RegionalRoPE, {}),
}

__all__ = ["Block", "SCHEMES", "Scheme", "audio_tokens", "create_scheme", "list_schemes"]


def list_schemes() -> list[str]:
    return list(SCHEMES)


def create_scheme(name: str | Scheme, **options: Any) -> Scheme:
    """A scheme by its name in the table, with options of its own; a scheme comes back as it is."""
    if isinstance(name, Scheme):
        if options:
            raise ValueError(f"create_scheme: options {sorted(options)} belong to a name; use dataclasses.replace on a scheme.")
        return name
    if name not in SCHEMES:
        near = difflib.get_close_matches(str(name), SCHEMES, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(SCHEMES)}."
        raise ValueError(f"unknown scheme {name!r}: {hint}")
    cls, given = SCHEMES[name]
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ValueError(f"scheme {name!r}: unknown option {unknown[0]!r}; it accepts {known}.")
    return cls(**{**given, **options})
