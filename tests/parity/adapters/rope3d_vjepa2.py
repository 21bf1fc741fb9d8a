"""facebookresearch/vjepa2: attention with its 3-D RoPE, all tokens and masked ones, and its rotation of one axis."""

from __future__ import annotations

import torch
from torch.func import functional_call

from vispe import create_encoding
from vispe.layers import Attention
from vispe.positions import custom_positions, video_grid

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "attention", c["kind"]
    heads, dim = c["num_heads"], c["num_heads"] * c["head_dim"]
    options = {"preset": "vjepa2", "theta": c["theta"]}
    encoding = create_encoding("rope3d", dim=dim, num_heads=heads, axes=3, **options)
    whole = video_grid(c["frames"], c["grid_h"], c["grid_w"])
    pos = whole.take(case.inputs["token_ids"])
    inputs = leaves({"x": case.inputs["x"]} | case.params)
    ctx = encoding.prepare(pos)
    attention = Attention(dim, num_heads=heads, qkv_bias="qkv.bias" in case.params).eval()
    y = functional_call(attention, {n: inputs[n] for n in case.params}, (inputs["x"], encoding, ctx))

    # One axis by itself is the encoding of a sequence with as many channels, at the frames of the tokens it is given.
    q_axis = case.inputs["q_axis"]
    axis = create_encoding("rope3d", dim=q_axis.shape[1] * q_axis.shape[-1], num_heads=q_axis.shape[1], axes=1, **options)
    frames = whole.coords[0, :, :1]
    frame_ctx = axis.prepare(custom_positions(frames))
    rotated, _ = axis.qk(q_axis, q_axis, frame_ctx, frame_ctx)
    shape = case.inputs["token_ids"].shape
    places = {f"out.{n}": p.to(torch.int64).view(shape) for n, p in zip(("frame", "row", "col"), pos.coords.unbind(-1))}
    return {
        "out.y": y, "out.q_axis_frame_rotated": rotated, **places,
        **gradients((y * case.inputs["cotangent"]).sum(), inputs),
    }  # fmt: skip
