"""StanfordMIMI/LieRE: rotations in two and three axes, and its whole ViT with the rotations of layer 0 in every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe import create_encoding
from vispe.convert.liere import triangles
from vispe.encodings import Encoding
from vispe.positions import full_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves, run_model, vision_transformer


def run(case: Case) -> Results:
    return {"rotation": rotation, "vit": vit}[case.config["kind"]](case)


def build(config: dict, raw: Tensor) -> Encoding:
    encoding = create_encoding(
        "liere", dim=config["num_heads"] * config["head_dim"], num_heads=config["num_heads"], axes=raw.shape[0],
        block_size=config["generator_dim"], heads="per_head" if config.get("per_head", True) else "shared",
    )  # fmt: skip
    return bind(encoding, skew=triangles(raw, encoding.blocks))


def rotation(case: Case) -> Results:
    c = case.config
    grid, train = ([n // c["patch"] for n in c[name]] for name in ("image", "train_image"))
    pos = full_grid(tuple(grid), prefix=1, train=tuple(train))
    inputs = leaves(case.params)
    results, rotations, loss = {}, [], 0.0
    for layer in range(c["depth"]):
        encoding = build(c, inputs["generator_raw_params"][:, layer])
        ctx = encoding.prepare(pos)
        q, _ = encoding.qk(case.inputs[f"q{layer}"], case.inputs[f"q{layer}"], ctx, ctx)
        results[f"out.q_rotated{layer}"] = q
        loss = loss + (q * case.inputs[f"cotangent{layer}"]).sum()
        rotations.append(ctx.matrices[0].transpose(0, 1).flatten(1, 2))  # (N + 1, heads · blocks, g, g)
    return results | {"out.rotations": torch.stack(rotations, dim=1), **gradients(loss, inputs)}


# ---- whole models ---------------------------------------------------------------------------------------------------


def vit(case: Case) -> Results:
    c = case.config
    dim = c["num_heads"] * c["head_dim"]
    model = vision_transformer(
        encoding="liere", options={"block_size": c["generator_dim"]}, dim=dim, heads=c["num_heads"], depth=c["depth"],
        patch=c["patch_size"], image=c["image_size"], classes=c["num_classes"], mlp_ratio=c["mlp_dim"] / dim,
        eps=c["layer_norm_eps"], qkv_bias=False,
    )  # fmt: skip

    def call(forward) -> Results:
        images = {n: x for n, x in case.inputs.items() if n.startswith("image")}
        return {f"out.{n.replace('image', 'logits')}": forward(x) for n, x in images.items()}

    return run_model(case, model, "liere", call, leaves(case.params))
