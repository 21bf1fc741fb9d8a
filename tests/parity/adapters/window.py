"""Attention of one window as Swin and BEiT write it, with one of our encodings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vispe.encodings import Encoding
from vispe.layers import attend

from ..cases import Case
from .common import Results, gradients


def window_attention(case: Case, p: dict[str, Tensor], x: Tensor, encoding: Encoding, ctx) -> Results:
    """Output and gradients of qkv -> attention -> proj; `p` and `x` collect gradients, `encoding` is bound to `p`."""
    if "q_bias" in p:
        qkv_bias = torch.cat((p["q_bias"], torch.zeros_like(p["q_bias"]), p["v_bias"]))
    else:
        qkv_bias = p.get("qkv.bias")
    heads = case.config["num_heads"]
    q, k, v = F.linear(x, p["qkv.weight"], qkv_bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    mask = case.inputs.get("mask")  # (windows, N, N), windows run fastest in the batch
    if mask is not None:
        mask = mask.repeat(x.shape[0] // mask.shape[0], 1, 1)[:, None]
    out = attend(q, k, v, encoding, ctx, ctx, scale=q.shape[-1] ** -0.5, mask=mask)
    y = F.linear(out.transpose(1, 2).flatten(2), p["proj.weight"], p["proj.bias"])
    loss = (y * case.inputs["cotangent"]).sum()
    return {"out.y": y, **gradients(loss, {"x": x}), **gradients(loss, p, params=True)}
