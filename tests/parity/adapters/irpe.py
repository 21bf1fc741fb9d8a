"""microsoft/Cream iRPE: bucket ids, single modules, attentions of DeiT and DETR, whole DeiTs."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from vispe import create_encoding, patch_grid
from vispe.convert.irpe import table_name
from vispe.encodings.irpe import Irpe, table_size
from vispe.layers import Attention, attend

from ..cases import Case
from .common import Results, gradients, leaves, run_model, size, vision_transformer

METHODS = {"euc": "euclidean"}
PARTS = {"cross": (".rows", ".cols")}


def run(case: Case) -> Results:
    c = case.config
    if "entries" in c:
        return official_maps(case)
    if "depth" in c:
        return model(case)
    if "enc_rpe2d" in c:
        return detr(case)
    if "embed_dim" in c:
        return attention(case)
    return module(case) if "rpe_on" in c else maps(case)


def options(config: dict[str, Any], on: str | None = None) -> dict[str, Any]:
    return {
        "method": METHODS.get(config["method"], config["method"]), "ratio": config["ratio"], "on": on or config["rpe_on"],
        "mode": "bias" if config["mode"] == "bias" else "contextual", "shared_head": config["shared_head"],
    }  # fmt: skip


def build(config: dict[str, Any], dim: int, heads: int, tables: dict[str, Tensor], on: str | None = None) -> Irpe:
    """The encoding with the official tables (by their official names) in it."""
    prefix = config.get("skip_tokens", 0)
    encoding = create_encoding("irpe", dim=dim, num_heads=heads, prefix=prefix, **options(config, on)).eval()
    for side in encoding.on:
        name = "values" if side == "v" else side
        own = {table_name(k): t for k, t in tables.items()}
        parts = [own[f"{name}.{i}"] for i in range(len(getattr(encoding, name)))]
        assert all(t.shape == p.shape for t, p in zip(parts, getattr(encoding, name)))
        delattr(encoding, name)
        setattr(encoding, name, parts)
    return encoding


# ---- ids ------------------------------------------------------------------------------------------------------------


def ids(method: str, ratio: float, height: int, width: int, skip: int) -> dict[str, Tensor]:
    """Bucket ids (N, N) by the suffix that the official names of their parts have."""
    method = METHODS.get(method, method)
    encoding = create_encoding("irpe", dim=8, num_heads=1, method=method, ratio=ratio, prefix=skip)
    parts = encoding.prepare(patch_grid(height, width, prefix=skip)).ids[:, 0]
    return dict(zip(PARTS.get(method, ("",)), parts))


def maps(case: Case) -> Results:
    c = case.config
    return {
        f"out.bucket_ids.h{h}w{w}.skip{skip}{part}": table
        for h, w in c["grids"]
        for skip in c["skip_tokens"]
        for part, table in ids(c["method"], c["ratio"], h, w, skip).items()
    }


def official_maps(case: Case) -> Results:
    out = {}
    for method, ratio, height, width, skip in case.config["entries"]:
        for part, table in ids(method, ratio, height, width, skip).items():
            where = f"{method}.ratio{ratio}.h{height}w{width}.skip{skip}{part}"
            rows = {"first": skip, "middle": skip + (height * width) // 2, "last": len(table) - 1}
            out |= {f"out.ids_{name}_query.{where}": table[row] for name, row in rows.items()}
            buckets = table_size(METHODS.get(method, method), ratio) + (skip > 0)
            out[f"out.bincount.{where}"] = torch.bincount(table.flatten(), minlength=buckets)
    return out


# ---- modules --------------------------------------------------------------------------------------------------------


def module(case: Case) -> Results:
    """One official module: what it adds to the logits (on q not yet transposed), or to the output."""
    c = case.config
    inputs = leaves({"x": case.inputs["x"]} | {f"rpe_{c['rpe_on']}.{k}": v for k, v in case.params.items()})
    dim = c["heads"] * c["head_dim"]
    tables = {k: v for k, v in inputs.items() if k != "x"}
    encoding = build(c, dim, c["heads"], tables)
    ctx = encoding.prepare(patch_grid(c["height"], c["width"], prefix=c["skip_tokens"]))
    x = inputs["x"]
    if c["rpe_on"] == "v":
        nothing = x.new_zeros(*x.shape[:3], c["head_dim"])
        y = encoding.mix(x, nothing, ctx, ctx)
    else:
        x = x * c["head_dim"] ** 0.5  # the official module is given scaled tokens, ours scales
        y = encoding.bias(x, x, ctx, ctx)
        y = y.mT if c["rpe_on"] == "q" else y
    found = gradients((y * case.inputs["cotangent"]).sum(), inputs)
    named = {re.sub(r"^grad\.rpe_[qkv]\.", "grad.param.", k): v for k, v in found.items()}
    return {"out.y": y, **named}


def attention(case: Case) -> Results:
    """DeiT's attention, on one grid or on several with the same weights."""
    c = case.config
    inputs = leaves({n: x for n, x in case.inputs.items() if n.startswith("x")} | case.params)
    host = Attention(c["embed_dim"], num_heads=c["num_heads"], qkv_bias=c.get("qkv_bias", "qkv.bias" in case.params)).eval()
    tables = {k: v for k, v in inputs.items() if table_name(k)}
    encoding = build(c, c["embed_dim"], c["num_heads"], tables)
    params = {k: v for k, v in inputs.items() if k in case.params and k not in tables}
    out = {}
    for name, x in inputs.items():
        if name.startswith("x"):
            grid = tuple(map(int, name[2:].split("x"))) if "." in name else (c["height"], c["width"])
            ctx = encoding.prepare(patch_grid(*grid, prefix=c["skip_tokens"]))
            out[f"out.y{name[1:]}"] = functional_call(host, params, (x, encoding, ctx), strict=True)
    if "cotangent" in case.inputs:
        out |= gradients((out["out.y"] * case.inputs["cotangent"]).sum(), inputs, params=True)
    return out


def detr(case: Case) -> Results:
    """DETR's encoder self-attention: (L, B, E), positions added to queries and keys, padded keys masked."""
    c = case.config
    inputs = leaves({n: case.inputs[n] for n in ("src", "pos")} | case.params)
    heads = c["num_heads"]
    tables = {k: v for k, v in inputs.items() if table_name(k)}
    encoding = build(c, c["embed_dim"], heads, tables)
    ctx = encoding.prepare(patch_grid(c["height"], c["width"], prefix=c["skip_tokens"]))
    moved = inputs["src"] + inputs["pos"]
    sides = zip((moved, moved, inputs["src"]), inputs["in_proj_weight"].chunk(3), inputs["in_proj_bias"].chunk(3))
    q, k, v = (
        torch.nn.functional.linear(x, w, b).transpose(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in sides
    )  # (B, H, L, D)
    keep = None
    if "key_padding_mask" in case.inputs:
        keep = (case.inputs["key_padding_mask"] == 0)[:, None, None]
    scale = encoding.head_dim**-0.5
    o = attend(q, k, v, encoding, ctx, ctx, scale=scale, mask=keep).transpose(1, 2).flatten(2).transpose(0, 1)
    y = torch.nn.functional.linear(o, inputs["out_proj.weight"], inputs["out_proj.bias"])
    probs = probabilities(case, q, k, tables, ctx, keep, scale)
    found = gradients((y * case.inputs["cotangent"]).sum(), inputs, params=True)
    return {"out.y": y, "out.mean_attention": probs.mean(1), **found}


def probabilities(
    case: Case, q: Tensor, k: Tensor, tables: dict[str, Tensor], ctx: Any, keep: Tensor | None, scale: float
) -> Tensor:
    """Attention to unit vectors, with an encoding that leaves values alone: (B, H, L, L)."""
    c = case.config
    on = c["rpe_on"].replace("v", "")
    encoding = build(c, c["embed_dim"], c["num_heads"], tables, on) if on else create_encoding(
        "none", dim=c["embed_dim"], num_heads=c["num_heads"]
    )  # fmt: skip
    unit = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    return attend(q, k, unit, encoding, ctx, ctx, scale=scale, mask=keep)


# ---- whole models ---------------------------------------------------------------------------------------------------


def model(case: Case) -> Results:
    c = case.config
    own = options(c)
    with_table = c["absolute_pos_embed"]
    if with_table:
        own = {"irpe": own, "learned": {"prefix_rows": True, "antialias": False}}
    host = vision_transformer(
        encoding="learned+irpe" if with_table else "irpe", options=own, dim=c["embed_dim"], heads=c["num_heads"],
        depth=c["depth"], patch=c["patch_size"], image=size(c["img_size"]), classes=c["num_classes"], mlp_ratio=c["mlp_ratio"],
        eps=c["layer_norm_eps"], class_token=c["class_token"], qkv_bias=c["qkv_bias"],
        global_pool="token" if c["class_token"] else "avg", fc_norm=False,
    )  # fmt: skip
    return run_model(
        case, host, "irpe",
        lambda forward: {f"out.logits{n[1:]}": forward(x) for n, x in case.inputs.items() if n.startswith("x")},
        leaves(case.params),
    )  # fmt: skip
