"""autonomousvision/gta, DiT branch: one attention with transformed values, and its rotary baseline."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vispe import create_encoding, patch_grid
from vispe.layers import Attention

from ..cases import Case
from .common import Results, gradients, leaves


class OfficialRMSNorm(nn.Module):
    """x / (|x| d^-1/2 + 1e-8) · scale, as that branch normalises queries and keys."""

    def __init__(self, dim: int, **_: object) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-8) * self.scale


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "dit_attention", c["kind"]
    dim = c["heads"] * c["head_dim"]
    encoding = create_encoding(
        "gta2d", dim=dim, num_heads=c["heads"], theta=c["frequency_base"], transform_values=c["transform_values"]
    )
    normed = "q_norm.scale" in case.params
    attention = Attention(
        dim, num_heads=c["heads"], qkv_bias="qkv.bias" in case.params, qk_norm=normed,
        norm_layer=OfficialRMSNorm if normed else None,
    ).eval()  # fmt: skip
    ctx = encoding.prepare(patch_grid(c["grid_height"], c["grid_width"], prefix=c.get("prefix_tokens", 0)))
    inputs = leaves({"x": case.inputs["x"]} | case.params)
    params = {k: v for k, v in inputs.items() if k != "x"}
    y = functional_call(attention, params, (inputs["x"], encoding, ctx), strict=True)
    cos, sin = ctx.cos[0, 0], ctx.sin[0, 0]
    matrices = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)
    return {"out.y": y, "out.so2_matrices": matrices, **gradients((y * case.inputs["cotangent"]).sum(), inputs, params=True)}
