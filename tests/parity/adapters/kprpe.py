"""CVLface's KP-RPE: the biases of all layers for every ctx_type, and the whole tiny face model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vispe import create_encoding, load, patch_grid
from vispe.convert.kprpe import encoding_layers
from vispe.encodings import Encoding
from vispe.encodings.kprpe import relative_keypoints
from vispe.positions import with_keypoints

from ..cases import Case
from .common import Results, bind, gradients, leaves, vision_transformer


def run(case: Case) -> Results:
    return model(case) if "embed_dim" in case.config else biases(case)


def options(c: dict) -> dict:
    kind = c["ctx_type"]
    return {
        "num_keypoints": c["num_keypoints"],
        "heads": "split" if "splithead" in kind else "shared",
        "per_layer": "unshared" in kind,
        "network": "mlp" if kind.endswith("v2") else "linear",
        "method": c["method"],
        "ratio": c["ratio"],
    }


def biases(case: Case) -> Results:
    c = case.config
    p = leaves(case.params)
    depth = c["depth"] if "unshared" in c["ctx_type"] else 1
    layers: list[Encoding] = [
        bind(create_encoding("kprpe", dim=c["heads"], num_heads=c["heads"], **options(c)), **tensors)
        for tensors in encoding_layers({n.removeprefix("keypoint_linear."): t for n, t in p.items()}, depth)
    ]
    pos = with_keypoints(patch_grid(c["grid_height"], c["grid_width"]), case.inputs["keypoints"], outside="allow")
    contexts = type(layers[0]).prepare_layers(layers, pos)
    x = torch.zeros(1, c["heads"], c["grid_height"] * c["grid_width"], 1)
    bias = torch.stack([layer.bias(x, x, ctx, ctx) for layer, ctx in zip(layers, contexts)])
    bias = bias.expand(c["depth"], *bias.shape[1:])
    found = gradients((bias * case.inputs["cotangent"]).sum(), p, params=True)
    return {"out.bias": bias, "out.relative_keypoints": relative_keypoints(pos), **found}


def model(case: Case) -> Results:
    c, p = case.config, case.params
    vit = vision_transformer(
        encoding="learned+kprpe", options={"kprpe": options(c)}, dim=c["embed_dim"], heads=c["num_heads"], depth=c["depth"],
        patch=c["patch_size"], image=c["img_size"], classes=0, mlp_ratio=c["mlp_ratio"], eps=c["layer_norm_eps"],
        class_token=c["class_token"], global_pool="", qkv_bias=c["qkv_bias"], act_layer=getattr(nn, c["act"]),
    )  # fmt: skip
    report = load(vit, p, "kprpe")
    assert set(report.dropped) == {n for n in p if n.startswith("feature.")}

    def embed(keypoints: Tensor) -> Tensor:
        patches = vit.patch_embed(case.inputs["x"])
        pos = with_keypoints(vit.positions(*patches.shape[1:3]), keypoints, outside="allow")
        x, ctx = vit.start(patches.flatten(1, 2), pos)
        for i in range(c["depth"]):
            x = vit.run_block(i, x, ctx)
        return head(vit.norm(x).flatten(1), p, c["batch_norm_eps"])

    keypoints = case.inputs["keypoints"]
    return {"out.y": embed(keypoints), "out.y_keypoints_plus_0.2": embed(keypoints + 0.2)}


def head(x: Tensor, p: dict[str, Tensor], eps: float) -> Tensor:
    """Linear and batch norm, twice."""
    for linear, norm in ((0, 1), (2, 3)):
        stats = [p[f"feature.{norm}.{n}"] for n in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(F.linear(x, p[f"feature.{linear}.weight"]), *stats, eps=eps)
    return x
