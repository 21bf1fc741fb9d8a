"""Encodings out of models that have no host here: Swin's attentions as timm has them, and iRPE's tables in DETR."""

from __future__ import annotations

import pytest
import timm
import torch

import vispe
from vispe import create_encoding, patch_grid
from vispe.convert.swin import encoding_tensors
from vispe.encodings import EncodingStack
from vispe.layers.attention import attend


def attention_of(name: str, **kwargs) -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=32, embed_dim=24, depths=(1,), num_heads=(3,), num_classes=0, **kwargs).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.layers[0].blocks[0].attn


def projected(attention: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    qkv = torch.nn.functional.linear(x, attention.qkv.weight, bias)
    return tuple(qkv.unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4))


def test_swin_table():
    attention = attention_of("swin_tiny_patch4_window7_224", window_size=4)
    encoding = create_encoding("swin_bias", dim=24, num_heads=3, grid=(4, 4))
    encoding.load_state_dict(encoding_tensors(attention.state_dict()))
    x, ctx = torch.randn(2, 16, 24), encoding.prepare(patch_grid(4, 4))
    with torch.no_grad():
        q, k, v = projected(attention, x, attention.qkv.bias)
        out = attend(q, k, v, encoding, ctx, ctx, scale=8**-0.5).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention.proj(out), attention(x), rtol=1e-5, atol=1e-6)


def test_swinv2_cosine_attention():
    attention = attention_of("swinv2_tiny_window8_256", window_size=8)
    encoding = create_encoding("swinv2_cpb", dim=24, num_heads=3, grid=(8, 8), attention="cosine")
    missing = encoding.load_state_dict(encoding_tensors(attention.state_dict()), strict=False)
    assert not missing.missing_keys and not missing.unexpected_keys
    x, ctx = torch.randn(2, 64, 24), encoding.prepare(patch_grid(8, 8))
    bias = torch.cat((attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias))
    with torch.no_grad():
        q, k, v = projected(attention, x, bias)
        out = attend(q, k, v, encoding, ctx, ctx, scale=encoding_scale(encoding)).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention.proj(out), attention(x), rtol=1e-4, atol=1e-5)


def encoding_scale(encoding: torch.nn.Module) -> float:
    return encoding.head_dim**-0.5


def detr(sides: str, heads: int, buckets: int, layers: int = 3) -> dict[str, torch.Tensor]:
    state = {"class_embed.weight": torch.ones(2, 24), "transformer.decoder.layers.0.linear1.weight": torch.ones(4, 24)}
    for i in range(layers):
        root = f"transformer.encoder.layers.{i}.self_attn"
        state[f"{root}.in_proj_weight"] = torch.ones(72, 24)
        for side in sides:
            shape = (heads, buckets, 8) if side == "v" else (heads, 8, buckets)
            state[f"{root}.rpe_{side}.lookup_table_weight"] = torch.randn(shape)
    return state


@pytest.mark.parametrize("sides, heads, ratio, buckets", [("k", 1, 1.9, 49), ("qkv", 3, 2.0, 81)])
def test_irpe_tables_of_detr(sides, heads, ratio, buckets):
    state = detr(sides, heads, buckets)
    options = {"on": sides, "ratio": ratio, "shared_head": heads == 1}
    stack = EncodingStack("irpe", dim=24, num_heads=3, depth=3, options=options)
    report = vispe.load(stack, {"model": state})
    assert report.source == "irpe_detr" and report.complete and len(report.used) == 3 * len(sides)
    assert set(report.dropped) == {key for key in state if ".rpe_" not in key}
    for i in range(3):
        for side in sides:
            table = (stack["irpe"][i].values if side == "v" else getattr(stack["irpe"][i], side))[0]
            assert torch.equal(table, state[f"transformer.encoder.layers.{i}.self_attn.rpe_{side}.lookup_table_weight"])


def test_irpe_tables_of_a_deeper_detr():
    stack = EncodingStack("irpe", dim=24, num_heads=3, depth=2)
    with pytest.raises(ValueError, match="layers.2.self_attn.rpe_k.lookup_table_weight: the model has no such table"):
        vispe.load(stack, detr("k", 1, 49))
