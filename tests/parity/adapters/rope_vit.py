"""The DeiT-III ViT that rope_axial and rope_mixed share."""

from __future__ import annotations

from ..cases import Case
from .common import Results, leaves, run_model, vision_transformer


def vit(case: Case) -> Results:
    c = case.config
    name = "rope_mixed" if c["rope_mixed"] else "rope_axial"
    options = {"theta": c["theta"]}
    if c["use_ape"]:  # rope-vit resamples without antialiasing and has no row for the class token
        options = {name: options, "learned": {"prefix_rows": False, "antialias": False}}
    model = vision_transformer(
        encoding=f"learned+{name}" if c["use_ape"] else name, options=options, dim=c["num_heads"] * c["head_dim"],
        heads=c["num_heads"], depth=c["depth"], patch=c["patch_size"], image=c["image_size"], classes=c["num_classes"],
        mlp_ratio=c["mlp_ratio"], eps=c["layer_norm_eps"], init_values=1e-4 if c.get("layer_scale") else None,
    )  # fmt: skip

    def call(forward) -> Results:
        images = {n: x for n, x in case.inputs.items() if n.startswith("image")}
        return {f"out.{name.replace('image', 'logits')}": forward(x) for name, x in images.items()}

    return run_model(case, model, "rope_vit", call, leaves(case.params))
