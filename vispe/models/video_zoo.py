"""Names of video transformers in timm: `vid_{s,b}_{encoding}`, for every encoding that takes (frame, row, column)."""

from __future__ import annotations

from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model

from ..encodings import ENCODINGS, EncodingStack
from .entries import make_entry, untrained_cfg
from .video_vit import EncodedVideoTransformer

__all__: list[str] = []

SIZES: dict[str, dict[str, Any]] = {
    "s": dict(embed_dim=384, depth=12, num_heads=6),
    "b": dict(embed_dim=768, depth=12, num_heads=12),
}

VARIANTS: dict[str, str] = {
    **{
        name: name
        for name, cls in ENCODINGS.items()
        if 3 in cls.card.axes and set(cls.card.needs) <= {"coords", "grid"}
    },
    "eva02_at_ape": "learned_spacetime+eva02_at",  # what the paper of EVA02-AT trains
}


# timm reads this module's `default_cfgs` while it registers a name, so it stands above the loop.
default_cfgs = generate_default_cfgs({f"vid_{size}_{name}.untrained": untrained_cfg() for size in SIZES for name in VARIANTS})


def heads(size: str, variant: str) -> int:
    """Heads of 64 channels as in images; of 48, as in ComRoPE's UCF-101 model, where three axes cannot share 64."""
    dim, usual = SIZES[size]["embed_dim"], SIZES[size]["num_heads"]
    facts = {"grid": (1, 1, 1), "train_grid": (1, 1, 1), "prefix": 0, "patch_size": (1, 1), "mlp_dim": dim}
    try:
        with torch.device("meta"):
            EncodingStack(VARIANTS[variant], dim=dim, num_heads=usual, depth=1, axes=3, facts=facts)
    except ValueError:
        return dim // 48
    return usual


def _register(size: str, variant: str) -> None:
    name = f"vid_{size}_{variant}"
    own = {"patch_size": 16, "tubelet_size": 2, "encoding": VARIANTS[variant]}
    entry = make_entry(
        name,
        EncodedVideoTransformer,
        lambda: {**SIZES[size], "num_heads": heads(size, variant), **own},
        _filter,
        module=__name__,
        doc=f"Video ViT-{size.capitalize()} of 2x16x16 tubelets with {variant}.",
    )
    globals()[name] = register_model(entry)


def _filter(state_dict: dict[str, Any], model: EncodedVideoTransformer) -> dict[str, Any]:
    """Weights saved at another size or number of frames: tables come to the grid of this model."""
    args = getattr(model, "pretrained_model_args", None) or {}
    if args.get("img_size") is None and args.get("num_frames") is None:
        return state_dict
    embed = model.patch_embed
    size, frames = args.get("img_size", embed.img_size), args.get("num_frames", embed.num_frames)
    size = (size, size) if isinstance(size, int) else tuple(size)
    return model.encoding.fit(state_dict, model._grid_of((frames, *size)), "encoding.")


for _size in SIZES:
    for _variant in VARIANTS:
        _register(_size, _variant)
