"""naver-ai/rope-vit, learned frequencies: the initial draw, tables, rotated queries and keys, whole DeiT-III ViTs."""

from __future__ import annotations

import math
from unittest import mock

import torch

from vispe import create_encoding, patch_grid
from vispe.convert.rope_vit import layer_frequencies

from ..cases import Case
from .common import Results, bind, gradients, leaves
from .rope_vit import vit


def run(case: Case) -> Results:
    return {"init": init, "rotation": rotation, "vit": vit}[case.config["kind"]](case)


def build(config: dict):
    heads, theta = config["num_heads"], config.get("theta", config.get("theta_init"))
    return create_encoding("rope_mixed", dim=heads * config["head_dim"], num_heads=heads, theta=theta)


def init(case: Case) -> Results:
    encoding = build(case.config)
    with mock.patch("torch.rand", return_value=case.inputs["head_angles"] / (2 * math.pi)):  # the draw of the official code
        encoding.reset_parameters()
    return {"out.freqs": encoding.freqs.detach().transpose(0, 1).flip(0)}  # (H, [row, col], P) -> (2 [x, y], H, P)


def rotation(case: Case) -> Results:
    c = case.config
    inputs = leaves({n: case.inputs[n] for n in "qk"} | case.params)
    layers = [bind(build(c), freqs=f) for f in layer_frequencies(inputs["freqs"], c["num_heads"])]
    contexts = type(layers[0]).prepare_layers(layers, patch_grid(c["grid_h"], c["grid_w"], prefix=c["prefix_tokens"]))
    results, loss = {}, 0.0
    for i, (layer, ctx) in enumerate(zip(layers, contexts)):
        q, k = layer.qk(inputs["q"], inputs["k"], ctx, ctx)
        loss = loss + (q * case.inputs[f"cotangent_q{i}"]).sum() + (k * case.inputs[f"cotangent_k{i}"]).sum()
        results |= {f"out.q_rotated{i}": q, f"out.k_rotated{i}": k}
    for name in ("cos", "sin"):
        results[f"out.{name}"] = torch.stack([getattr(ctx, name)[0, :, c["prefix_tokens"] :] for ctx in contexts])
    return results | gradients(loss, inputs)
