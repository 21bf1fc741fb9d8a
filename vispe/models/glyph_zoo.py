"""Names with weights that vispe ships: `vit_glyph_{encoding}`, trained on Glyph-47 and loaded offline.

    timm.create_model("vit_glyph_comrope.glyph47", pretrained=True)

They show what encodings do; `checkpoints/NAME/README.md` is the card of each.
"""

from __future__ import annotations

from typing import Any

from timm.models import generate_default_cfgs, register_model

from ..shipped import FOLDER
from .entries import make_entry, untrained_cfg
from .vit import EncodedVisionTransformer
from .vit_zoo import VARIANTS, _filter

__all__: list[str] = []

TAG = "glyph47"

SIZE: dict[str, Any] = dict(
    embed_dim=128, depth=6, num_heads=4, patch_size=4, img_size=32, in_chans=1, num_classes=47, class_token=False,
    global_pool="avg",
)  # fmt: skip
SHIPPED: dict[str, dict[str, Any]] = {
    **{name: VARIANTS[name] for name in ("none", "learned", "rope_axial", "rope_mixed", "rope_dinov3", "comrope", "cpe")},
    "learned_sincos": VARIANTS["learned"] | {"encoding_kwargs": {"init": "sincos"}},
}


def _cfg(variant: str) -> dict[str, Any]:
    return untrained_cfg() | dict(
        file=str(FOLDER / f"vit_glyph_{variant}" / "model.safetensors"),
        input_size=(1, 32, 32),
        num_classes=47,
        mean=(0.245,),
        std=(0.255,),
        crop_pct=1.0,
    )


# timm reads this module's `default_cfgs` while it registers a name, so it stands above the loop.
default_cfgs = generate_default_cfgs({f"vit_glyph_{variant}.{TAG}": _cfg(variant) for variant in SHIPPED})


def _register(variant: str) -> None:
    name = f"vit_glyph_{variant}"
    entry = make_entry(
        name,
        EncodedVisionTransformer,
        lambda: {**SIZE, **SHIPPED[variant]},
        _filter,
        module=__name__,
        doc=f"The small ViT of Glyph-47 with {variant}.",
    )
    globals()[name] = register_model(entry)


for _variant in SHIPPED:
    _register(_variant)
