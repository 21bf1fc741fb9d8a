"""Studentxll/HARoPE: the learned matrices, rotated queries and keys in both modes, whole attentions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vispe import create_encoding, patch_grid
from vispe.convert.comrope import upper_triangle
from vispe.encodings import Encoding
from vispe.encodings.harope import HeadRotation, svd_matrices
from vispe.encodings.rotary import block_frequencies
from vispe.layers import Attention
from vispe.positions import custom_positions
from vispe.positions.extrapolate import base_frequencies

from ..cases import Case
from . import dit
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    return KINDS[kind(case.config)](case)


def kind(config: dict) -> str:
    """Cases of this folder carry no name of their kind; what they configure tells them apart."""
    if "hidden_size" in config:
        return "dit"
    return "attention" if "qkv_bias" in config else "qk" if "grid_h" in config else "svd"


def ours(official: dict[str, Tensor], root: str = "") -> dict[str, Tensor]:
    """The parameters of our encoding from official ones: of A only A − Aᵀ acts, halved."""
    skew = {f"skew_{x}": 0.5 * upper_triangle(official[f"{root}A_{x}"]) for x in "uv"}
    return skew | {"sigma": official[f"{root}sigma"]}


def svd(case: Case) -> Results:
    params = leaves(case.params)
    tensors = ours(params)
    upper = torch.stack((tensors["skew_u"], tensors["skew_v"]))[None]
    m, inverse_transposed = (t[0] for t in svd_matrices(upper, tensors["sigma"][None], mode="conjugate"))
    inverse = inverse_transposed.mT
    loss = (m * case.inputs["cotangent_M"]).sum() + (inverse * case.inputs["cotangent_M_inv"]).sum()
    return {"out.M": m, "out.M_inv": inverse, **gradients(loss, params)}


def encoding(case: Case, heads: int, head_dim: int, mode: str, params: dict[str, Tensor], root: str = "") -> Encoding:
    made = create_encoding("harope", dim=heads * head_dim, num_heads=heads, theta=float(case.config["theta"]), mode=mode)
    return bind(made, **ours(params, root))


def context(made: Encoding, config: dict, dtype: torch.dtype) -> HeadRotation:
    """Of the case's grid. Cases in float64 have float64 tables: our core at double frequencies and places."""
    pos = patch_grid(config["grid_h"], config["grid_w"])
    if dtype == torch.float64:
        double = block_frequencies(base_frequencies(config["theta"], made.head_dim // 2), 2)
        made.frequencies, pos = lambda: double, custom_positions(pos.coords.double())
    return made.prepare(pos)


def qk(case: Case) -> Results:
    c = case.config
    assert c["axes_dim"] == [c["head_dim"] // 2] * 2, c["axes_dim"]
    params, inputs = leaves(case.params), leaves({n: case.inputs[n] for n in "qk"})
    made = encoding(case, c["heads"], c["head_dim"], c["mode"], params)
    ctx = context(made, c, inputs["q"].dtype)
    tables = {f"out.{n}": getattr(ctx, n)[0, 0].repeat_interleave(2, dim=-1) for n in ("cos", "sin")}
    q, k = made.qk(inputs["q"], inputs["k"], ctx, ctx)
    loss = (q * case.inputs["cotangent_q"]).sum() + (k * case.inputs["cotangent_k"]).sum()
    return {"out.q": q, "out.k": k, "out.scores": q @ k.mT, **tables, **gradients(loss, params | inputs)}


def attention(case: Case) -> Results:
    c = case.config
    params, inputs = leaves(case.params), leaves({"x": case.inputs["x"]})
    root = "learnable_rot."
    layer = Attention(
        c["dim"], num_heads=c["num_heads"], qkv_bias=c["qkv_bias"], qk_norm=c["qk_norm"],
        norm_layer=partial(nn.LayerNorm, eps=c.get("qk_norm_eps", 1e-5)),
    )  # fmt: skip
    bind(layer, **{n: p for n, p in params.items() if not n.startswith(root)})
    made = encoding(case, c["num_heads"], c["head_dim"], c.get("mode", "conjugate"), params, root)
    out = layer(inputs["x"], made, context(made, c, inputs["x"].dtype))
    none = create_encoding("none", dim=c["dim"], num_heads=c["num_heads"])  # without its rotary, official code skips M too
    bare = layer(inputs["x"], none, None)
    found = gradients((out * case.inputs["cotangent"]).sum(), params | inputs)
    return {"out.x": out, "out.x_no_rotary": bare, **found}


def whole(case: Case) -> Results:
    """The repository's DiT."""
    return dit.whole(case, "HARoPE")


KINDS = {"svd": svd, "qk": qk, "attention": attention, "dit": whole}
