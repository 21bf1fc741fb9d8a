"""StanfordMIMI/LieRE: rotations in two and three axes, and its whole ViT with the rotations of layer 0 in every layer."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.func import functional_call

from vispe import create_encoding
from vispe.encodings import Encoding
from vispe.positions import full_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves, vision_transformer


def run(case: Case) -> Results:
    return {"rotation": rotation, "vit": vit}[case.config["kind"]](case)


def triangles(raw: Tensor, blocks: int) -> Tensor:
    """Official (axes, heads · blocks, g, g) of one layer to our `skew`."""
    row, col = torch.triu_indices(raw.shape[-1], raw.shape[-1], 1)
    return raw[..., row, col].unflatten(1, (-1, blocks))


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

NAMES = {
    r"transformer\.layers\.(\d+)\.0\.norm\.(\w+)": r"blocks.\1.norm1.\2",
    r"transformer\.layers\.(\d+)\.0\.fn\.to_qkv\.(\w+)": r"blocks.\1.attn.qkv.\2",
    r"transformer\.layers\.(\d+)\.0\.fn\.to_out\.0\.(\w+)": r"blocks.\1.attn.proj.\2",
    r"transformer\.layers\.(\d+)\.1\.norm\.(\w+)": r"blocks.\1.norm2.\2",
    r"transformer\.layers\.(\d+)\.1\.fn\.net\.0\.(\w+)": r"blocks.\1.mlp.fc1.\2",
    r"transformer\.layers\.(\d+)\.1\.fn\.net\.3\.(\w+)": r"blocks.\1.mlp.fc2.\2",
    r"mlp_head\.0\.(\w+)": r"norm.\1",
    r"mlp_head\.1\.(\w+)": r"head.\1",
    r"cls_token": "cls_token",
    r"to_patch_embedding\.1\.(\w+)": r"patch_embed.proj.\1",
}


def vit(case: Case) -> Results:
    c, params = case.config, leaves(case.params)
    dim = c["num_heads"] * c["head_dim"]
    model = vision_transformer(
        encoding="liere", options={"block_size": c["generator_dim"]}, dim=dim, heads=c["num_heads"], depth=c["depth"],
        patch=c["patch_size"], image=c["image_size"], classes=c["num_classes"], mlp_ratio=c["mlp_dim"] / dim,
        eps=c["layer_norm_eps"], qkv_bias=False,
    )  # fmt: skip
    state = {}
    for key, value in params.items():
        for pattern, ours in NAMES.items():
            if re.fullmatch(pattern, key):
                state[re.sub(pattern, ours, key)] = value
    kernel = state["patch_embed.proj.weight"].view(dim, c["patch_size"], c["patch_size"], -1)  # rows, columns, colours
    state["patch_embed.proj.weight"] = kernel.permute(0, 3, 1, 2)
    raw = params["position_encoder.generator_raw_params"][:, 0]  # the official loop: layer 0 for all
    state["encoding.liere.skew"] = triangles(raw, c["head_dim"] // c["generator_dim"])
    assert set(state) == set(model.state_dict())
    results = {
        f"out.{n.replace('image', 'logits')}": functional_call(model, state, (x,))
        for n, x in case.inputs.items()
        if n.startswith("image")
    }
    return results | gradients((results["out.logits"] * case.inputs["cotangent"]).sum(), params)
