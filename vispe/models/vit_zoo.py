"""Names of ViTs in timm: `vit_{ti,s,b,l}_{encoding}`, sizes times encodings and the compositions that papers use."""

from __future__ import annotations

from typing import Any

from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from ..encodings import ENCODINGS
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


def _cfg() -> dict[str, Any]:
    return dict(
        url="",
        input_size=(3, 224, 224),
        fixed_input_size=False,
        first_conv="patch_embed.proj",
        classifier="head",
        mean=IMAGENET_INCEPTION_MEAN,
        std=IMAGENET_INCEPTION_STD,
        interpolation="bicubic",
        crop_pct=0.9,
    )


# timm reads this module's `default_cfgs` while it registers a name, so it stands above the loop.
default_cfgs = generate_default_cfgs({f"vit_{size}_{name}.untrained": _cfg() for size in SIZES for name in VARIANTS})


def _register(size: str, variant: str) -> None:
    name = f"vit_{size}_{variant}"

    def entry(pretrained: bool = False, **kwargs: Any) -> EncodedVisionTransformer:
        merged = {**SIZES[size], "patch_size": 16, **VARIANTS[variant], **kwargs}
        out_indices = merged.pop("out_indices", 3)
        return build_model_with_cfg(
            EncodedVisionTransformer,
            name,
            pretrained,
            pretrained_filter_fn=_filter,
            feature_cfg=dict(out_indices=out_indices, feature_cls="getter"),
            **merged,
        )

    # timm keys its registry by __name__, and a function that is not a module attribute cannot be pickled.
    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"ViT-{size.capitalize()}/16 with {variant}."
    globals()[name] = register_model(entry)


def _filter(state_dict: dict[str, Any], model: EncodedVisionTransformer) -> dict[str, Any]:
    """Weights saved at another image size: tables of every encoding come to the grid of this model."""
    from ..convert import adapt

    return adapt(state_dict, model)


for _size in SIZES:
    for _variant in VARIANTS:
        _register(_size, _variant)
