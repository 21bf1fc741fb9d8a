"""timm's EVA-02, SBB, DINOv3 and BEiT models into ours, and the same weights under their original names."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
from timm.layers import SwiGLU
from torch import Tensor, nn

from vispe import load
from vispe.convert import convert
from vispe.models import EncodedVisionTransformer

TINY = dict(embed_dim=48, depth=2, num_heads=3, mlp_ratio=2.0, num_classes=5)
EPS = dict(norm_layer=partial(nn.LayerNorm, eps=1e-6))
DINO = dict(
    encoding="rope_dinov3", reg_tokens=4, init_values=1e-5, global_pool="avg", fc_norm=False,
    norm_layer=partial(nn.LayerNorm, eps=1e-5),
)  # fmt: skip


def noisy(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def official(name: str, size=(64, 64), **kwargs) -> nn.Module:
    return noisy(timm.create_model(name, img_size=size, **{**TINY, **kwargs}))


def ours(size=(64, 64), **kwargs) -> nn.Module:
    return EncodedVisionTransformer(img_size=size, patch_size=16, **{**TINY, **EPS, **kwargs}).eval()


def same_logits(a: nn.Module, b: nn.Module, size=(64, 64)) -> None:
    image = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(a(image), b(image), rtol=1e-5, atol=2e-5)


def eva02(**kwargs) -> nn.Module:
    return ours(
        encoding="learned+rope_eva02", encoding_kwargs={"learned": {"prefix_rows": True}}, mlp_layer=SwiGLU, act_layer=nn.SiLU,
        scale_mlp_norm=True, global_pool="avg", **kwargs,
    )  # fmt: skip


def original_eva02(state: dict[str, Tensor], cos: Tensor) -> dict[str, Tensor]:
    """Names of baaivision/EVA, with its tables of angles under every block."""
    names = {"mlp.fc1_g.": "mlp.w1.", "mlp.fc1_x.": "mlp.w2.", "mlp.fc2.": "mlp.w3.", "mlp.norm.": "mlp.ffn_ln.",
             "q_proj.bias": "q_bias", "v_proj.bias": "v_bias"}  # fmt: skip
    out = {}
    for key, tensor in state.items():
        for new, old in names.items():
            key = key.replace(new, old)
        out[key] = tensor
    tables = {f"blocks.{i}.attn.rope.freqs_cos": cos for i in range(2)}
    return out | tables | {"rope.freqs_cos": cos, "mask_token": torch.zeros(1, 1, 48)}


def test_eva02():
    source = official("eva02_base_patch14_224", patch_size=16, ref_feat_shape=(16, 16))
    model = eva02()
    report = load(model, source.state_dict())
    assert report.source == "eva02" and report.complete and not report.dropped
    same_logits(model, source)


def angles(model: nn.Module) -> Tensor:
    """cos of the model's angles as EVA-02 saves them, (16, head_dim)."""
    return model.encoding["rope_eva02"].prepare(model.positions(4, 4)).cos[0, 0, 1:].repeat_interleave(2, -1)


def test_eva02_under_its_original_names():
    source, model = official("eva02_base_patch14_224", patch_size=16, ref_feat_shape=(16, 16)), eva02()
    report = load(model, original_eva02(source.state_dict(), angles(model)))
    assert report.source == "eva02" and report.complete
    tables = {"rope.freqs_cos", "blocks.0.attn.rope.freqs_cos", "blocks.1.attn.rope.freqs_cos"}
    assert set(report.dropped) == tables | {"mask_token"}
    assert all("that rope_eva02 computes agree" in report.dropped[key] for key in tables)
    same_logits(model, source)


def test_eva02_tables_of_another_base_are_refused():
    model = eva02()
    state = original_eva02(official("eva02_base_patch14_224", patch_size=16).state_dict(), angles(model))
    state["blocks.1.attn.rope.freqs_cos"] = state["rope.freqs_cos"].roll(1, 0)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"blocks.1.attn.rope.freqs_cos: the source has cos .* the model's rope_eva02"):
        load(model, state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_sbb_rope_model():
    """A register and no class token; biases for queries and values only."""
    source = official("vit_betwixt_patch16_rope_reg4_gap_256", num_reg_tokens=2, dynamic_img_size=True)
    model = ours(
        encoding="rope_eva02", class_token=False, reg_tokens=2, init_values=1e-5, global_pool="avg",
    )  # fmt: skip
    report = load(model, source.state_dict())
    assert report.source == "eva02" and report.complete
    assert report.used["blocks.0.attn.qkv.bias"] == ("blocks.0.attn.q_bias", "blocks.0.attn.v_bias")
    assert not model.blocks[0].attn.qkv.bias[48:96].any()
    same_logits(model, source, (48, 80))


def test_biases_without_a_place():
    state = official("vit_betwixt_patch16_rope_reg4_gap_256").state_dict()
    model = ours(
        encoding="rope_eva02", class_token=False, reg_tokens=4, init_values=1e-5, global_pool="avg", qkv_bias=False
    )
    with pytest.raises(ValueError, match="q_bias: the model has no blocks.0.attn.qkv.bias; create it with qkv_bias=True"):
        load(model, state)
    zero = {k: torch.zeros_like(v) if k.endswith(("q_bias", "v_bias")) else v for k, v in state.items()}
    report = load(model, zero)
    assert report.dropped["blocks.1.attn.v_bias"] == "a bias of zeros, which adds nothing"


# ---- DINOv3 ---------------------------------------------------------------------------------------------------------


def original_dinov3(state: dict[str, Tensor], *, biased: bool) -> dict[str, Tensor]:
    """Names of facebookresearch/dinov3: biases of three parts of which the mask leaves two, periods in bfloat16."""
    out = {"rope_embed.periods": (100 ** (torch.arange(4.0) / 4)).bfloat16(), "mask_token": torch.zeros(1, 48)}
    for key, tensor in state.items():
        if key.endswith("v_bias"):
            continue
        if key.endswith("q_bias"):
            stem = key.removesuffix("q_bias")
            out[f"{stem}qkv.bias"] = torch.cat((tensor, torch.full_like(tensor, 7.0), state[f"{stem}v_bias"]))
            out[f"{stem}qkv.bias_mask"] = torch.ones(144).view(3, 48).index_fill(0, torch.tensor(1), 0.0).flatten()
        else:
            out[key.replace("gamma_", "ls").replace("reg_token", "storage_tokens").replace("ls1", "ls1.gamma").replace(
                "ls2", "ls2.gamma")] = tensor  # fmt: skip
    if not biased:
        out |= {f"blocks.{i}.attn.qkv.bias": torch.zeros(144) for i in range(2)}
    return out


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_dinov3(biased, original):
    # a head of 16 channels: 4 periods an axis
    source = official("vit_small_patch16_dinov3_qkvb" if biased else "vit_small_patch16_dinov3", dynamic_img_size=True)
    state = original_dinov3(source.state_dict(), biased=biased) if original else source.state_dict()
    model = ours(**DINO, qkv_bias=biased)
    report = load(model, state)
    assert report.complete and report.source == "dinov3"
    if original:
        assert "the same periods" in report.dropped["rope_embed.periods"] and "mask_token" in report.dropped
    same_logits(model, source)
    same_logits(model, source, (48, 80))


def test_dinov3_periods_of_another_base():
    """ecosystem D23: a file's periods never overrule the configuration, and never disagree with it unsaid."""
    state = original_dinov3(official("vit_small_patch16_dinov3").state_dict(), biased=False)
    model = ours(**DINO, qkv_bias=False, encoding_kwargs={"base": 1000.0})
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"period 3 is 31.* in the source and 177.8 in the model's rope_dinov3 .all: "):
        load(model, state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert "rope_embed.periods" in load(model, state, strict=False).unexpected


def test_dinov3_periods_between_two_numbers():
    low, high = 0.5, 90.0
    state = original_dinov3(official("vit_small_patch16_dinov3").state_dict(), biased=False)
    state["rope_embed.periods"] = (low * (high / low) ** torch.linspace(0, 1, 4)).bfloat16()
    options = {"base": None, "min_period": low, "max_period": high}
    assert load(ours(**DINO, qkv_bias=False, encoding_kwargs=options), state).complete
    with pytest.raises(ValueError, match="rope_embed.periods: period"):
        load(ours(**DINO, qkv_bias=False), state)


def test_dinov3_without_its_rope():
    state = original_dinov3(official("vit_small_patch16_dinov3").state_dict(), biased=False)
    with pytest.raises(ValueError, match="rope_embed.periods: the model has no DINOv3 RoPE"):
        load(ours(**{**DINO, "encoding": "none"}, qkv_bias=False), state)
    unsaid = official("vit_small_patch16_dinov3").state_dict()
    report = load(ours(**{**DINO, "encoding": "none"}, qkv_bias=False), unsaid)
    assert "models of this layout turn queries and keys, and this one has no DINOv3 RoPE" in report.notes


# ---- BEiT -----------------------------------------------------------------------------------------------------------


def beit(size=(64, 64), **kwargs) -> nn.Module:
    return ours(size, encoding="beit_bias", init_values=0.1, global_pool="avg", **kwargs)


def test_beit():
    source, model = official("beit_base_patch16_224"), beit()
    state = source.state_dict() | {"blocks.0.attn.relative_position_index": torch.zeros(17, 17, dtype=torch.int64)}
    report = load(model, state)
    assert report.source == "beit" and report.complete
    assert list(report.dropped) == ["blocks.0.attn.relative_position_index"]
    same_logits(model, source)


def test_beit_at_another_size_equals_timm():
    state = official("beit_base_patch16_224").state_dict()
    wanted = timm.create_model("beit_base_patch16_224", img_size=96, **TINY).eval()
    wanted.load_state_dict(timm.models.beit.checkpoint_filter_fn(state, wanted))
    model = beit((96, 96))
    report = load(model, state)
    assert report.resampled["encoding.beit_bias.1.table"] == "4x4 to 6x6 (geometric)"
    same_logits(model, wanted, (96, 96))


def test_beit_with_one_table_for_all():
    source = official("beit_base_patch16_224", use_rel_pos_bias=False, use_shared_rel_pos_bias=True)
    state = source.state_dict()
    assert "rel_pos_bias.relative_position_bias_table" in state
    model = beit()
    assert load(model, state).complete
    tables = [layer.table for layer in model.encoding["beit_bias"]]
    assert torch.equal(*tables) and tables[0].data_ptr() != tables[1].data_ptr()
    shared = beit(encoding_kwargs={"per_layer": False})
    assert load(shared, state).complete
    same_logits(model, source)
    same_logits(shared, source)


def test_beit_tables_of_a_grid_that_nobody_named():
    state = official("beit_base_patch16_224", (48, 80)).state_dict()
    with pytest.raises(ValueError, match=r"table of 48 rows belongs to no grid of 4x4 with 3 rows .* pass source_grid"):
        convert(state, beit())
    new, report = convert(state, beit((80, 48)), source_grid=(3, 5))  # as many rows, another grid
    assert report.resampled["encoding.beit_bias.0.table"] == "3x5 to 5x3 (geometric)"
    assert not torch.equal(new["encoding.beit_bias.0.table"], state["blocks.0.attn.relative_position_bias_table"])


def test_swin_is_another_host():
    state = {"layers.0.blocks.0.attn.relative_position_bias_table": torch.ones(25, 3), "patch_embed.proj.weight": torch.ones(1)}
    with pytest.raises(ValueError, match="a Swin pyramid; EncodedVisionTransformer is a plain ViT .* timm's Swin"):
        load(beit(), state)


# ---- other hosts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eva02_base_patch14_224", "beit_base_patch16_224", "vit_small_patch16_dinov3_qkvb"])
def test_timm_models_take_their_own_keys(name):
    state = official(name).state_dict()
    model = timm.create_model(name, img_size=64, **TINY)
    report = load(model, state)
    assert report.complete and not report.dropped and set(report.used) == set(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_mixed_frequencies_of_both_indexings():
    """timm keeps columns first in "xy" and rows first in "ij" models; ours are rows first in both."""
    freqs = torch.randn(2, 2, 3, 8)
    state = official("vit_betwixt_patch16_rope_reg4_gap_256").state_dict() | {"rope.freqs": freqs}
    for indexing, rows in (("xy", freqs[1]), ("ij", freqs[0])):
        model = ours(
            encoding="rope_timm", encoding_kwargs={"preset": "naver_mixed", "indexing": indexing}, class_token=False,
            reg_tokens=4, init_values=1e-5, global_pool="avg",
        )  # fmt: skip
        report = load(model, state)
        assert report.complete and report.source == "eva02"
        assert torch.equal(model.encoding["rope_timm"][1].freqs[:, 0], rows[1])
