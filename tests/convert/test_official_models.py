"""Whole official models into models of the zoo by `vispe.load`, and the official logits out of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.layers import SwiGLU
from torch import nn

import vispe

CASES = Path(__file__).parents[1] / "parity" / "cases"
ROPE = dict(embed_dim=32, num_heads=2, mlp_ratio=2, patch_size=4, img_size=20, num_classes=5, init_values=1e-4)
DEIT = dict(embed_dim=48, num_heads=3, patch_size=4, img_size=24, num_classes=10)
CLIP = {**ROPE, "pre_norm": True, "act_layer": "quick_gelu", "norm_layer": partial(nn.LayerNorm, eps=1e-5), "init_values": None}
CPVT = {**DEIT, "img_size": 20, "mlp_ratio": 2}
EPS = partial(nn.LayerNorm, eps=1e-5)
LIERE = {**ROPE, "img_size": 16, "mlp_ratio": 1, "qkv_bias": False, "norm_layer": EPS, "init_values": None}
EVA = {**ROPE, "global_pool": "avg"}
EVA02 = {
    **EVA, "encoding": "learned+rope_eva02", "encoding_kwargs": {"learned": {"prefix_rows": True}}, "mlp_layer": SwiGLU,
    "act_layer": "silu", "scale_mlp_norm": True, "init_values": None,
}  # fmt: skip
DINOV3 = {**ROPE, "qkv_bias": False, "reg_tokens": 4, "norm_layer": EPS}
SBB = {**EVA, "class_token": False, "reg_tokens": 1}

MODELS = [
    ("rope_axial/vit", "rope_axial", ROPE, "rope_vit"),
    ("rope_mixed/vit_ape", "rope_mixed_ape", ROPE, "rope_vit"),
    ("comrope/vit_ap_b8", "comrope_ap", CLIP, "comrope"),
    ("comrope/vit_ld_b4", "comrope", {**CLIP, "encoding_kwargs": {"block_size": 4}}, "comrope"),
    ("comrope/vit_baseline_liere_b8", "liere_comrope", CLIP, "comrope"),
    ("irpe/model_product_k", "irpe_k", DEIT, "irpe"),
    ("irpe/model_product_qkv", "irpe_qkv", DEIT, "irpe"),
    ("cpe/cpvt_cls_peg0", "cpe", CPVT, "cpvt"),
    ("cpe/cpvt_gap_peg0", "cpe_gap", CPVT, "cpvt"),
    ("liere/vit_g8", "liere", LIERE, "liere"),
    ("rope_timm/model_eva02", "rope_eva02", EVA02, "eva02"),
    ("rope_timm/model_dinov3", "rope_dinov3", DINOV3, "dinov3"),
    ("rope_timm/model_sbb_rope_reg1_gap", "rope_eva02", SBB, "eva02"),
]
DROPPED = {"rope_mixed_ape": {"freqs_t_x", "freqs_t_y"}, "liere": {"pos_embedding"}}


@pytest.mark.parametrize("case, variant, options, source", MODELS, ids=[m[0] for m in MODELS])
def test_official_model(tmp_path, case, variant, options, source):
    tensors = load_file(CASES / f"{case}.safetensors")
    path = tmp_path / "official.safetensors"
    save_file({k.removeprefix("param."): v for k, v in tensors.items() if k.startswith("param.")}, path)
    model = timm.create_model(f"vit_ti_{variant}", depth=2, **options).eval()
    report = vispe.load(model, path)
    assert report.source == source and report.complete
    assert set(report.dropped) == DROPPED.get(variant, set())
    images = {k.removeprefix("in."): v for k, v in tensors.items() if v.ndim == 4 and k.startswith("in.")}
    for name, image in images.items():
        want = tensors["out." + ("logits" + name[1:] if name.startswith("x") else name.replace("image", "logits"))]
        with torch.no_grad():
            torch.testing.assert_close(model(image), want, rtol=1e-5, atol=1e-5)


def test_comrope_with_its_faulty_table_is_refused():
    tensors = load_file(CASES / "comrope" / "vit_ld_b4_with_ape.safetensors")
    state = {k.removeprefix("param."): v for k, v in tensors.items() if k.startswith("param.")}
    model = timm.create_model("vit_ti_comrope", depth=2, **CLIP, encoding_kwargs={"block_size": 4})
    with pytest.raises(ValueError, match="position_embedding: the official code samples its absolute table with swapped axes"):
        vispe.load(model, state)
    assert list(vispe.load(model, state, strict=False).unexpected) == ["vision_model.embeddings.position_embedding"]


def test_twins_pyramid():
    """The official CPVTV2 layout is that of timm's Twins."""
    tensors = load_file(CASES / "cpe" / "cpvtv2_pyramid_tiny.safetensors")
    state = {k.removeprefix("param."): v for k, v in tensors.items() if k.startswith("param.")}
    model = timm.create_model(
        "twins_pcpvt_small", img_size=64, embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), mlp_ratios=(2, 2, 2, 2),
        depths=(2, 2, 2, 1), sr_ratios=(4, 2, 2, 1), num_classes=10,
    ).eval()  # fmt: skip
    report = vispe.load(model, state)
    assert report.source == "cpvt" and report.complete
    torch.testing.assert_close(model(tensors["in.x.64x96"]), tensors["out.logits.64x96"], rtol=1e-4, atol=1e-5)


def official(case: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The official state dict and everything of a case."""
    tensors = load_file(CASES / f"{case}.safetensors")
    return {k.removeprefix("param."): v for k, v in tensors.items() if k.startswith("param.")}, tensors


def seqpe(**options) -> nn.Module:
    options = {"net_width": 16, "net_heads": 2, **options}
    size = {"embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4, "num_classes": 7, "img_size": (16, 24)}
    return timm.create_model("vit_ti_seqpe", depth=2, encoding_kwargs=options, **size).eval()


def test_seqpe():
    state, tensors = official("seqpe/model_attn_mul")
    model = seqpe()
    report = vispe.load(model, {"state_dict": state})
    assert report.source == "seqpe" and report.complete and not report.dropped
    assert report.used["encoding.seqpe.1.pe_qk.bias"] == ("model.blocks.1.attn.pe_qk.bias",)  # the source's own names
    torch.testing.assert_close(model(tensors["in.x"]), tensors["out.logits"], rtol=1e-5, atol=1e-5)


def test_seqpe_with_one_projection_for_all_layers():
    state, _ = official("seqpe/model_attn_mul")
    one = {"model.pe_qk." + key.rpartition(".")[2]: t for key, t in state.items() if "blocks.0.attn.pe_qk." in key}
    model = seqpe(projection="shared")
    report = vispe.load(model, {key: t for key, t in state.items() if ".attn.pe_qk." not in key} | one)
    assert report.complete and report.used["encoding.seqpe.pe_qk.weight"] == ("model.pe_qk.weight",)


@pytest.mark.parametrize("options, key", [
    ({"net_width": 32}, "pe_model"), ({"net_layers": 1}, "pe_model.transformers.1."), ({"projection": "shared"}, "pe_qk"),
    ({"method": "input_add"}, "pe_qk"),
])  # fmt: skip
def test_seqpe_with_other_options(options, key):
    model = seqpe(**options)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match="encoding.seqpe" if key == "pe_model" else key):
        vispe.load(model, official("seqpe/model_attn_mul")[0])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def kprpe(**kwargs) -> nn.Module:
    return timm.create_model(
        "vit_ti_learned", encoding_kwargs={}, embed_dim=24, depth=2, num_heads=3, mlp_ratio=3,
        patch_size=8, img_size=32, class_token=False, global_pool="", qkv_bias=False, act_layer=nn.ReLU6, norm_layer=EPS,
        **{"encoding": "learned+kprpe", "num_classes": 0, **kwargs},
    ).eval()  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "net.", "module.backbone.net."])
def test_kprpe_behind_its_wrapper(prefix):
    state, _ = official("kprpe/model_splithead_unshared")
    model = kprpe()
    report = vispe.load(model, {f"{prefix}{key}": value for key, value in state.items()})
    full = prefix.removeprefix("module.") if "backbone" in prefix else ""  # wrappers of every key go first
    assert report.source == "kprpe" and report.complete
    assert set(report.dropped) == {f"{full}{key}" for key in state if key.startswith("feature.")}
    assert report.used["encoding.kprpe.1.fc.weight"] == (f"{full}keypoint_linear.weight",)
    rows = state["keypoint_linear.weight"].view(2, 3 * 49, 10)
    assert torch.equal(model.encoding["kprpe"][1].fc.weight, rows[1])


def test_kprpe_misfits():
    state, _ = official("kprpe/model_splithead_unshared")
    with pytest.raises(ValueError, match="feature.0.weight: the model has no place for it"):
        vispe.load(kprpe(num_classes=4), state)
    with pytest.raises(ValueError, match="keypoint_linear.weight: the model has no key points"):
        vispe.load(kprpe(encoding="learned"), state)
    with pytest.raises(ValueError, match="keypoint_linear has 293 rows, which are not the same number for each of 2 layers"):
        vispe.load(kprpe(), state | {"keypoint_linear.weight": torch.zeros(293, 10)})
    twice = {f"face.{key}": value for key, value in state.items()} | {"norm.weight": state["norm.weight"]}
    with pytest.raises(ValueError, match="two keys of the source are the same without their prefix"):
        vispe.load(kprpe(), twice)


def test_liere_layers():
    """The official loop uses layer 0 everywhere; both ways of reading the rest are said."""
    state, _ = official("liere/vit_g8")
    shared, apart = (
        timm.create_model("vit_ti_liere", depth=2, **LIERE, encoding_kwargs={"layers": layers})
        for layers in ("shared", "per_layer")
    )
    assert "layer 0 of 2 taken" in vispe.load(shared, state).notes[0]
    assert "the official code computes every layer with layer 0's" in vispe.load(apart, state).notes[0]
    assert torch.equal(shared.encoding["liere"].skew, apart.encoding["liere"][0].skew)
    raw = state["position_encoder.generator_raw_params"]
    assert torch.equal(apart.encoding["liere"][1].skew[1, 1, 0, :7], raw[1, 1, 2, 0, 1:])
    with pytest.raises(ValueError, match="generator_raw_params: the model has no generators"):
        vispe.load(timm.create_model("vit_ti_none", depth=2, **LIERE), state)
    with pytest.raises(ValueError, match="pos_embedding: the model has no learned table"):
        vispe.load(shared, state | {"pos_embedding": torch.ones(1, 17, 32)})
