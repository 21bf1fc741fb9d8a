"""Names of ViTs in timm: `vit_{ti,s,b,l}_{encoding}`, sizes times encodings and the compositions that papers use."""

from __future__ import annotations

from typing import Any

from timm.models import generate_default_cfgs, register_model

from ..encodings import ENCODINGS
from .entries import make_entry, untrained_cfg
from .vit import EncodedVisionTransformer

__all__: list[str] = []

SIZES: dict[str, dict[str, Any]] = {
    "ti": dict(embed_dim=192, depth=12, num_heads=3),
    "s": dict(embed_dim=384, depth=12, num_heads=6),
    "b": dict(embed_dim=768, depth=12, num_heads=12),
    "l": dict(embed_dim=1024, depth=24, num_heads=16),
}

_APE = {"prefix_rows": False, "antialias": False}  # rope-vit: rows for patches only, resampled without antialiasing
_DEIT = {"prefix_rows": True, "antialias": False}  # DeiT with iRPE keeps its whole table, class token's row included

COMPOSITIONS: dict[str, dict[str, Any]] = {
    "rope_axial_ape": dict(encoding="learned+rope_axial", encoding_kwargs={"learned": _APE}),
    "rope_mixed_ape": dict(encoding="learned+rope_mixed", encoding_kwargs={"learned": _APE}),
    "irpe_k": dict(encoding="learned+irpe", encoding_kwargs={"learned": _DEIT, "irpe": {"on": "k"}}),
    "irpe_qk": dict(encoding="learned+irpe", encoding_kwargs={"learned": _DEIT, "irpe": {"on": "qk"}}),
    "irpe_qkv": dict(encoding="learned+irpe", encoding_kwargs={"learned": _DEIT, "irpe": {"on": "qkv"}}),
    "cpe_gap": dict(encoding="cpe", class_token=False, global_pool="avg", fc_norm=False),
}

VARIANTS: dict[str, dict[str, Any]] = {
    **{
        name: dict(encoding=name)
        for name, cls in ENCODINGS.items()
        if 2 in cls.card.axes and set(cls.card.needs) <= {"coords", "grid"}
    },
    "learned": dict(encoding="learned", encoding_kwargs={"prefix_rows": True}),  # the table of a plain timm ViT
    **COMPOSITIONS,
}


# timm reads this module's `default_cfgs` while it registers a name, so it stands above the loop.
default_cfgs = generate_default_cfgs({f"vit_{size}_{name}.untrained": untrained_cfg() for size in SIZES for name in VARIANTS})


def _register(size: str, variant: str) -> None:
    name = f"vit_{size}_{variant}"
    entry = make_entry(
        name,
        EncodedVisionTransformer,
        lambda: {**SIZES[size], "patch_size": 16, **VARIANTS[variant]},
        _filter,
        module=__name__,
        doc=f"ViT-{size.capitalize()}/16 with {variant}.",
    )
    globals()[name] = register_model(entry)


def _filter(state_dict: dict[str, Any], model: EncodedVisionTransformer) -> dict[str, Any]:
    """Weights saved at another image size: tables of every encoding come to the grid of this model."""
    from ..convert import adapt

    return adapt(state_dict, model)


for _size in SIZES:
    for _variant in VARIANTS:
        _register(_size, _variant)
