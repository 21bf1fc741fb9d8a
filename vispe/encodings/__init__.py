"""How a position becomes signal: the table of encodings. Adding one is its file and one line here."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from .alibi2d import Alibi2d
from .base import Card, Composed, Encoding
from .beit_bias import BeitBias
from .camera_ape import CameraApe
from .cape import Cape
from .comrope import ComRoPEAP, ComRoPELD
from .coord_fourier import CoordFourier
from .cpe import Cpe
from .epipolar import Epipolar
from .eva02_at import Eva02At
from .fire import Fire
from .fire2d import Fire2d
from .grape_multimodal import GrapeMultimodal
from .gta import Gta
from .gta2d import Gta2d
from .harope import HARoPE
from .irpe import Irpe
from .kpe import Kpe
from .kprpe import KPRPE
from .learnable_fourier import LearnableFourier
from .learned import Learned
from .learned_spacetime import LearnedSpacetime
from .lepe import Lepe
from .liere import LieRE
from .liere_comrope import LieREComRoPE
from .lookhere import LookHere
from .loope import Loope
from .md_lrpe import MdLrpe
from .mix_ffn import MixFfn
from .ms_grape import MsGrape
from .none import NoEncoding
from .petr import Petr
from .petr_3dppe import Petr3dppe
from .plucker import Plucker
from .prope import Prope
from .ray_distance import RayDistance
from .ray_fourier import RayFourier
from .rayrope import Rayrope
from .roce import Roce
from .rope3d import Rope3d
from .rope_axial import RopeAxial
from .rope_diffusers import RopeDiffusers
from .rope_dinov3 import RopeDinov3
from .rope_eva02 import RopeEva02
from .rope_mixed import RopeMixed
from .rope_points import RopePoints
from .rope_timm import RopeTimm
from .seqpe import SeqPE
from .sincos2d import SinCos2d
from .sincos3d import SinCos3d
from .stack import EncodingStack
from .streampetr import StreamPetr
from .string_cayley import StringCayley
from .string_circulant import StringCirculant
from .swin_bias import SwinBias
from .swinv2_cpb import SwinV2Cpb
from .timm_rel_mlp import TimmRelMlp
from .timm_rel_tf import TimmRelTf
from .urpe import Urpe
from .v_detr_3dvrpe import VDetr3dvrpe

ENCODINGS: dict[str, type[Encoding]] = {
    "none": NoEncoding,
    "learned": Learned,
    "learned_spacetime": LearnedSpacetime,
    "sincos2d": SinCos2d,
    "learnable_fourier": LearnableFourier,
    "rope_axial": RopeAxial,
    "rope_mixed": RopeMixed,
    "rope_dinov3": RopeDinov3,
    "rope_diffusers": RopeDiffusers,
    "comrope": ComRoPELD,
    "comrope_ap": ComRoPEAP,
    "comrope_ld": ComRoPELD,
    "liere_comrope": LieREComRoPE,
    "eva02_at": Eva02At,
    "md_lrpe": MdLrpe,
    "ms_grape": MsGrape,
    "grape_multimodal": GrapeMultimodal,
    "rope3d": Rope3d,
    "rope_eva02": RopeEva02,
    "harope": HARoPE,
    "string_cayley": StringCayley,
    "string_circulant": StringCirculant,
    "rope_timm": RopeTimm,
    "liere": LieRE,
    "irpe": Irpe,
    "cpe": Cpe,
    "gta2d": Gta2d,
    "swin_bias": SwinBias,
    "swinv2_cpb": SwinV2Cpb,
    "beit_bias": BeitBias,
    "timm_rel_mlp": TimmRelMlp,
    "timm_rel_tf": TimmRelTf,
    "alibi2d": Alibi2d,
    "lookhere": LookHere,
    "fire": Fire,
    "fire2d": Fire2d,
    "kprpe": KPRPE,
    "urpe": Urpe,
    "sincos3d": SinCos3d,
    "seqpe": SeqPE,
    "loope": Loope,
    "mix_ffn": MixFfn,
    "lepe": Lepe,
    "v_detr_3dvrpe": VDetr3dvrpe,
    "coord_fourier": CoordFourier,
    "rope_points": RopePoints,
    "gta": Gta,
    "cape": Cape,
    "camera_ape": CameraApe,
    "plucker": Plucker,
    "prope": Prope,
    "kpe": Kpe,
    "epipolar": Epipolar,
    "ray_distance": RayDistance,
    "ray_fourier": RayFourier,
    "rayrope": Rayrope,
    "roce": Roce,
    "petr": Petr,
    "streampetr": StreamPetr,
    "petr_3dppe": Petr3dppe,
}

__all__ = ["Card", "Composed", "ENCODINGS", "Encoding", "EncodingStack", "create_encoding", "encoding_class", "list_encodings"]


def list_encodings(*, family: str | None = None, axes: int | None = None) -> list[str]:
    """Names in the table, of one family ("additive", "rotary", "bias", ...) or those that accept a number of axes."""
    families = sorted({cls.card.family for cls in ENCODINGS.values()})
    if family is not None and family not in families:
        raise ValueError(f"list_encodings: no family {family!r}; there are {families}.")
    return [
        name
        for name, cls in ENCODINGS.items()
        if (family is None or cls.card.family == family) and (axes is None or axes in cls.card.axes)
    ]


def encoding_class(name: str) -> type[Encoding]:
    """The class behind a name; a misspelt one gets the nearest names."""
    if name not in ENCODINGS:
        near = difflib.get_close_matches(name, ENCODINGS, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"there are {', '.join(ENCODINGS)}."
        raise ValueError(f"unknown encoding {name!r}: {hint}")
    return ENCODINGS[name]


def create_encoding(
    name: str, *, dim: int, num_heads: int, depth: int | None = None, axes: int = 2, **options: Any
) -> Encoding:
    """One encoding (of one layer, where each layer has its own; `EncodingStack` builds those of a whole model).

    Args:
        name: a name of the table.
        dim, num_heads: channels and heads of the attention it serves.
        depth: layers of the host, for the encodings that need to know.
        axes: coordinate axes: 1 sequence, 2 image, 3 video.
        options: the encoding's own, see its class; an unknown one is refused with the accepted names.
    """
    cls = encoding_class(name)
    accepted = inspect.signature(cls).parameters
    unknown = [key for key in options if key not in accepted]
    if unknown:
        own = [key for key in accepted if key not in ("dim", "num_heads", "axes", "depth")]
        near = difflib.get_close_matches(unknown[0], own, n=2, cutoff=0.5)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"it accepts {own}."
        raise ValueError(f"{name}: unknown option {unknown[0]!r}; {hint}")
    missing = [
        key for key, p in accepted.items()
        if p.default is p.empty and key not in ("dim", "num_heads", "axes", "depth") and key not in options
    ]  # fmt: skip
    if missing:
        raise ValueError(f"{name}: needs the option {missing[0]!r}; see {cls.__name__}.")
    if "depth" in accepted:
        options["depth"] = depth
    return cls(dim=dim, num_heads=num_heads, axes=axes, **options)
