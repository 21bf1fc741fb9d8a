"""timm: tables and rotations of its four rotary modules, training augmentation with given draws, whole Eva models."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import torch
from timm.layers import GluMlp, SwiGLU
from torch import Tensor, nn

from vispe import create_encoding, patch_grid
from vispe.convert.rope_vit import layer_frequencies
from vispe.encodings import Encoding
from vispe.encodings.rope_dinov3 import augment

from ..cases import Case
from .common import Results, bind, gradients, leaves, run_model, vision_transformer


def run(case: Case) -> Results:
    return {"embed": embed, "aug": aug, "model": model}[case.config["kind"]](case)


def tolerance(case: Case, key: str) -> float | None:
    """Pixel bands reach angles of hundreds of radians, where one float32 rounding is 3e-5 (specification, end of the page)."""
    kwargs = case.config.get("module_kwargs", {})
    return 2e-4 if case.config.get("rope_type") == "cat" and kwargs.get("in_pixels", True) else None


def options(rope_type: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Our options for the arguments of timm's modules, with timm's defaults where they are not the preset's."""
    preset = {"cat": "pixel" if kwargs.get("in_pixels", True) else "eva02", "mixed": "naver_mixed"}.get(rope_type, rope_type)
    ours = {"preset": preset}
    if preset == "eva02":
        ours["reference"] = "none"
    names = {
        "temperature": "temperature", "max_res": "max_res", "ref_feat_shape": "reference", "grid_offset": "offset",
        "grid_indexing": "indexing", "grid_type": "coords", "normalize_coords": "normalize", "mrope_section": "sections",
        "shift_coords": "shift", "jitter_coords": "jitter", "rescale_coords": "rescale",
    }  # fmt: skip
    ours |= {own: kwargs[theirs] for theirs, own in names.items() if kwargs.get(theirs) is not None}
    if kwargs.get("linear_bands"):
        ours["bands"] = "pixel_linear"
    if kwargs.get("min_period") is not None:
        ours["periods"] = (kwargs["min_period"], kwargs["max_period"])
    if "rotate_half" in kwargs:
        ours["layout"] = "half" if kwargs["rotate_half"] else "interleaved"
    return ours


def freqs_of_layers(freqs: Tensor, heads: int, indexing: str) -> list[Tensor]:
    """timm's (2, depth, H, P), in the order of its indexing, to one (H, [row, column], P) a layer."""
    return layer_frequencies(freqs if indexing == "xy" else freqs.flip(0), heads)


def build(case: Case, inputs: dict[str, Tensor]) -> list[Encoding]:
    """One encoding, or one for each layer of a mixed case."""
    c, kwargs = case.config, case.config["module_kwargs"]
    mixed = c["rope_type"] == "mixed"
    heads = kwargs["num_heads"] if mixed else c.get("num_heads", 1)
    ours = options(c["rope_type"], kwargs)

    def one() -> Encoding:
        return create_encoding("rope_timm", dim=kwargs["dim"] if mixed else kwargs["dim"] * heads, num_heads=heads, **ours)

    if not mixed:
        return [one()]
    return [bind(one(), freqs=f) for f in freqs_of_layers(inputs["freqs"], heads, kwargs.get("grid_indexing", "xy"))]


def table(encoding: Encoding, ctx: Any, prefix: int) -> Tensor:
    """timm's (H or none, N, 2D): sines of all channels, then cosines."""
    both = [getattr(ctx, n)[0, :, prefix:] for n in ("sin", "cos")]
    wide = [t.repeat(1, 1, 2) if encoding.layout == "half" else t.repeat_interleave(2, -1) for t in both]
    out = torch.cat(wide, dim=-1)
    return out if encoding.per_layer else out[0]


def embed(case: Case) -> Results:
    c, prefix = case.config, case.config["prefix_tokens"]
    inputs = leaves({"q": case.inputs["q"]} | {n: p for n, p in case.params.items() if n == "freqs"})
    layers = build(case, inputs)
    contexts = type(layers[0]).prepare_layers(layers, patch_grid(c["grid_h"], c["grid_w"], prefix=prefix))
    assert layers[0].layout == ("half" if c["rotate_half_apply"] else "interleaved")
    q = torch.stack([layer.qk(inputs["q"], inputs["q"], ctx, ctx)[0] for layer, ctx in zip(layers, contexts)])
    tables = torch.stack([table(layer, ctx, prefix) for layer, ctx in zip(layers, contexts)])
    loss = (q * case.inputs["cotangent"]).sum()
    return {"out.embed": tables if "freqs" in inputs else tables[0], "out.q_rotated": q, **gradients(loss, inputs)}


def aug(case: Case) -> Results:
    encoding = build(case, {})[0].train()
    draws = {
        "shift": case.inputs.get("shift_hw", torch.zeros(2)),
        "jitter": case.inputs.get("jitter_hw", torch.ones(2)),
        "rescale": case.inputs.get("rescale", torch.ones(1)),
    }
    with mock.patch("vispe.encodings.rope_timm.augment_at_random", lambda coords, **ranges: augment(coords, **draws)):
        ctx = encoding.prepare(patch_grid(case.config["grid_h"], case.config["grid_w"]))
    return {"out.embed": table(encoding, ctx, 0)}


# ---- whole models ---------------------------------------------------------------------------------------------------


def model(case: Case) -> Results:
    kwargs, eps = case.config["eva_kwargs"], case.config["layer_norm_eps"]
    params = leaves(case.params)
    rope_type = kwargs.get("rope_type", "cat")
    rope_names = {
        "rope_temperature": "temperature", "rope_grid_indexing": "grid_indexing", "rope_grid_offset": "grid_offset",
        "ref_feat_shape": "ref_feat_shape", "rope_mrope_section": "mrope_section",
    }  # fmt: skip
    given = {"temperature": 10000.0, "grid_indexing": "ij", "in_pixels": False}
    given |= {name: kwargs[key] for key, name in rope_names.items() if kwargs.get(key) is not None}
    if rope_type in ("cat", "dinov3"):
        given["rotate_half"] = kwargs.get("rope_rotate_half", False)
    rope = options(rope_type, given)
    members = {}
    if kwargs.get("use_abs_pos_emb", True):
        members["learned"] = {"prefix_rows": not kwargs.get("no_embed_class", False)}
    if kwargs.get("use_rot_pos_emb", False):
        members["rope_timm"] = rope
    vit = vision_transformer(
        encoding="+".join(members), options=members if len(members) > 1 else next(iter(members.values())),
        dim=kwargs["embed_dim"], heads=kwargs["num_heads"], depth=kwargs["depth"], patch=kwargs["patch_size"],
        image=kwargs["img_size"], classes=kwargs["num_classes"], mlp_ratio=kwargs["mlp_ratio"], eps=eps, **vit_options(kwargs),
    )  # fmt: skip

    def call(forward) -> Results:
        images = {n: x for n, x in case.inputs.items() if n.startswith("image")}
        return {f"out.{n.replace('image', 'logits')}": forward(x) for n, x in images.items()}

    return run_model(case, vit, "auto", call, params)


def vit_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What timm's VisionTransformer calls the arguments of its Eva."""
    ours: dict[str, Any] = dict(
        qkv_bias=kwargs.get("qkv_bias", True), init_values=kwargs.get("init_values"),
        class_token=kwargs.get("class_token", True), reg_tokens=kwargs.get("num_reg_tokens", 0),
        global_pool=kwargs.get("global_pool", "avg"), fc_norm=kwargs.get("use_fc_norm"),
    )  # fmt: skip
    if kwargs.get("swiglu_mlp"):
        scaled = kwargs.get("scale_mlp", False)
        ours |= dict(mlp_layer=SwiGLU, act_layer=nn.SiLU, scale_mlp_norm=scaled) if scaled else dict(
            mlp_layer=partial(GluMlp, gate_last=False), act_layer=nn.SiLU
        )
    return ours
