"""Whole official models into models of the zoo by `vispe.load`, and the official logits out of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vispe

CASES = Path(__file__).parents[1] / "parity" / "cases"
ROPE = dict(embed_dim=32, num_heads=2, mlp_ratio=2, patch_size=4, img_size=20, num_classes=5, init_values=1e-4)
DEIT = dict(embed_dim=48, num_heads=3, patch_size=4, img_size=24, num_classes=10)
CLIP = {**ROPE, "pre_norm": True, "act_layer": "quick_gelu", "norm_layer": partial(nn.LayerNorm, eps=1e-5), "init_values": None}
CPVT = {**DEIT, "img_size": 20, "mlp_ratio": 2}

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
]


@pytest.mark.parametrize("case, variant, options, source", MODELS, ids=[m[0] for m in MODELS])
def test_official_model(tmp_path, case, variant, options, source):
    tensors = load_file(CASES / f"{case}.safetensors")
    path = tmp_path / "official.safetensors"
    save_file({k.removeprefix("param."): v for k, v in tensors.items() if k.startswith("param.")}, path)
    model = timm.create_model(f"vit_ti_{variant}", depth=2, **options).eval()
    report = vispe.load(model, path)
    assert report.source == source and report.complete
    assert set(report.dropped) == ({"freqs_t_x", "freqs_t_y"} if "mixed" in variant else set())
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
