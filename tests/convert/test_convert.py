"""Foreign weights onto our models: every key accounted for, all or nothing, and the right numbers out."""

from __future__ import annotations

import argparse

import pytest
import timm
import torch
from safetensors.torch import save_file

import vispe
from vispe.convert import SOURCES, adapt, convert, load, recognise

TINY = dict(embed_dim=48, depth=2, num_heads=3, mlp_ratio=2.0, patch_size=8, num_classes=5)


def ours(variant: str, size=(32, 48), **kwargs) -> torch.nn.Module:
    return timm.create_model(f"vit_ti_{variant}", img_size=size, **{**TINY, **kwargs}).eval()


def plain(size=(32, 48), **kwargs) -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=size, **{**TINY, **kwargs}).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def images(*size: int) -> torch.Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def rope_vit_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A state dict as rope-vit saves it, from one of ours."""
    state = {}
    for key, value in model.state_dict().items():
        if not key.startswith("encoding."):
            state[key.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2")] = value.clone()
    layers = torch.stack([layer.freqs.detach() for layer in model.encoding["rope_mixed"]])  # (depth, H, [row, col], P)
    state["freqs"] = layers.permute(2, 0, 1, 3).flip(0).flatten(2)
    cells = torch.arange(24.0)
    return state | {"freqs_t_x": cells % 6, "freqs_t_y": cells // 6}


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


# ---- layouts --------------------------------------------------------------------------------------------------------


def test_plain_vit_strict():
    source, model = plain(), ours("learned")
    report = load(model, source.state_dict())
    assert report.source == "plain" and report.complete and not report.resampled and not report.dropped
    assert set(report.used) == set(model.state_dict())
    torch.testing.assert_close(model(images(32, 48)), source(images(32, 48)), rtol=1e-5, atol=1e-5)


def test_plain_vit_at_another_size_equals_timm():
    source, model = plain(), ours("learned", size=(64, 64))
    report = load(model, source.state_dict(), source_grid=(4, 6))
    assert list(report.resampled) == ["encoding.learned.pos_embed"] and "4x6 to 8x8" in str(report)
    source.set_input_size((64, 64))
    torch.testing.assert_close(model(images(64, 64)), source(images(64, 64)), rtol=1e-5, atol=1e-5)


def test_rope_vit_keys_and_other_sizes():
    """naver-ai/rope-vit 31: coordinates of the train grid saved as buffers must not stop another size."""
    torch.manual_seed(0)
    source = ours("rope_mixed", init_values=0.1)
    state = rope_vit_state(source)
    model = ours("rope_mixed", size=(72, 40), init_values=0.1)
    report = load(model, {"model": state})
    assert report.source == "rope_vit" and set(report.dropped) == {"freqs_t_x", "freqs_t_y"}
    assert report.used["encoding.rope_mixed.1.freqs"] == ("freqs",)
    assert torch.equal(model(images(72, 40)), source(images(72, 40)))


def test_rope_vit_in_the_hub_layout_of_timm():
    torch.manual_seed(0)
    source = ours("rope_mixed", init_values=0.1)
    state = rope_vit_state(source)
    del state["freqs_t_x"], state["freqs_t_y"]
    state["rope.freqs"] = state.pop("freqs").unflatten(-1, (3, -1))  # (2, depth, heads, pairs)
    model = ours("rope_mixed", init_values=0.1)
    assert load(model, state).complete
    assert torch.equal(model(images(32, 48)), source(images(32, 48)))


@pytest.mark.parametrize("classes", [0, 5])
def test_timm_mixed_rope_model(classes):
    """timm's own rope-vit model and ours give the same features from the same weights."""
    torch.manual_seed(0)
    source = timm.create_model(
        "vit_small_patch16_rope_mixed_224", img_size=64, **{**TINY, "patch_size": 16, "num_classes": classes}
    ).eval()
    model = ours("rope_mixed", size=64, patch_size=16, init_values=0.1, num_classes=classes)
    report = load(model, source.state_dict())
    assert report.complete, report.problems()
    torch.testing.assert_close(model(images(64, 64)), source(images(64, 64)), rtol=1e-5, atol=1e-5)


def test_distilled_and_masked_pretraining():
    state = plain(class_token=True).state_dict()
    masked = state | {"mask_token": torch.zeros(1, 1, 8), "decoder_embed.weight": torch.zeros(8, 48)}
    report = load(ours("learned"), masked)
    assert set(report.dropped) == {"mask_token", "decoder_embed.weight"}

    two = {**state, "dist_token": torch.ones(1, 1, 48), "pos_embed": torch.randn(1, 26, 48)}
    two["head_dist.weight"] = torch.ones(5, 48)
    model = ours("learned", reg_tokens=1, encoding_kwargs={"prefix_rows": True})
    with pytest.raises(ValueError, match="head_dist.weight"):
        load(model, two)
    report = load(model, two, strict=False)
    assert list(report.unexpected) == ["head_dist.weight"] and not report.missing
    assert torch.equal(model.reg_token, two["dist_token"])
    assert torch.equal(model.encoding["learned"].pos_embed, two["pos_embed"])


def test_dinov2_with_registers():
    """A row for the class token and none for the registers, which stand behind it."""
    state = plain(init_values=0.1).state_dict()
    state |= {"register_tokens": torch.randn(1, 4, 48), "mask_token": torch.zeros(1, 48)}
    options = dict(reg_tokens=4, init_values=0.1, encoding_kwargs={"prefix_rows": True})
    model = ours("learned", **options)
    report = load(model, state)
    assert report.source == "plain" and report.complete and list(report.dropped) == ["mask_token"]
    table = model.encoding["learned"].pos_embed
    assert torch.equal(table[:, :1], state["pos_embed"][:, :1]) and not table[:, 1:5].any()
    assert torch.equal(table[:, 5:], state["pos_embed"][:, 1:]) and torch.equal(model.reg_token, state["register_tokens"])


def test_unknown_layout():
    with pytest.raises(ValueError, match=r"2 keys of no known layout, e.g. \['a.weight', 'b.bias'\]; known layouts are"):
        recognise({"a.weight": torch.ones(1), "b.bias": torch.ones(1)})
    with pytest.raises(ValueError, match="source must be 'auto'"):
        convert(plain().state_dict(), ours("learned"), "deit")


DIT = ["x_embedder.proj.weight", "t_embedder.mlp.0.weight", "final_layer.linear.weight"]
DIFFUSION = {"harope", "lightningdit", "fit", "sit", "dit", "diffusers_dit"}  # see test_convert_dit.py


def test_recognise():
    keys = {
        "comrope": ["vision_model.pre_layrnorm.weight", "classification_head.weight"],
        "irpe": ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.attn.rpe_k.lookup_table_weight"],
        "irpe_detr": ["transformer.encoder.layers.0.self_attn.rpe_k.lookup_table_weight", "class_embed.weight"],
        "cpvt": ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_block.0.proj.weight"],
        "liere": ["to_patch_embedding.1.weight", "position_encoder.generator_raw_params"],
        "kprpe": ["net.patch_embed.proj.weight", "net.blocks.0.attn.qkv.weight", "net.keypoint_linear.weight"],
        "seqpe": ["model.patch_embed.proj.weight", "model.blocks.0.attn.qkv.weight", "pe_model.out_proj.weight"],
        "swin": ["patch_embed.proj.weight", "layers.0.blocks.0.attn.relative_position_bias_table"],
        "beit": ["patch_embed.proj.weight", "blocks.0.attn.q_bias", "rel_pos_bias.relative_position_bias_table"],
        "dinov3": ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "storage_tokens", "rope_embed.periods"],
        "eva02": ["patch_embed.proj.weight", "blocks.0.attn.q_proj.weight", "blocks.0.attn.rope.freqs_cos"],
        "rope_vit": ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.gamma_1"],
        "harope": [*DIT, "blocks.0.attn.learnable_rot.sigma"],
        "lightningdit": [*DIT, "blocks.0.mlp.w12.weight"],
        "fit": [*DIT, "blocks.0.mlp.fc1_g.weight"],
        "sit": [*DIT, "projectors.0.0.weight"],
        "dit": DIT,
        "diffusers_dit": ["pos_embed.proj.weight", "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1.weight"],
        "plain": ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight"],
        "vispe": ["patch_embed.proj.weight", "encoding.irpe.0.k.0"],
    }
    assert set(keys) == {*SOURCES, "vispe"} - {"vjepa2"}  # told by a shape: test_convert_vjepa2.py
    for name, names in keys.items():
        assert recognise(dict.fromkeys(names)) == name


# ---- the account ----------------------------------------------------------------------------------------------------


def test_missing_and_extra_keys_are_named_and_nothing_is_loaded():
    model = ours("learned")
    before = snapshot(model)
    state = plain().state_dict()
    del state["blocks.1.attn.proj.bias"]
    state["blocks.0.attn.extra"] = torch.ones(3)
    with pytest.raises(ValueError, match="missing in the source: blocks.1.attn.proj.bias; blocks.0.attn.extra"):
        load(model, state)
    assert same(model, before)
    report = load(model, state, strict=False)
    assert report.missing == ["blocks.1.attn.proj.bias"] and list(report.unexpected) == ["blocks.0.attn.extra"]
    assert torch.equal(model.blocks[1].attn.proj.bias, before["blocks.1.attn.proj.bias"])
    assert torch.equal(model.blocks[0].attn.proj.bias, state["blocks.0.attn.proj.bias"])


def test_other_shapes():
    model = ours("learned", num_classes=7)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"head.weight .*\(5, 48\), the model has \(7, 48\)"):
        load(model, plain().state_dict())
    assert same(model, before)
    report = load(model, plain().state_dict(), strict=False)
    assert report.missing == ["head.weight", "head.bias"] and set(report.unexpected) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("source", sorted(set(SOURCES) - {"swin", *DIFFUSION}))
@pytest.mark.parametrize("variant", ["rope_dinov3", "learned", "irpe_qkv", "cpe", "comrope", "rope_mixed_ape", "seqpe"])
def test_every_key_of_the_source_is_accounted_for(variant, source):
    model = ours(variant)
    state = {
        **plain().state_dict(), "freqs": torch.ones(2, 2, 24), "blocks.0.gamma_1": torch.ones(48),
        "pos_block.0.proj.bias": torch.ones(48), "blocks.1.attn.rpe_k.lookup_table_weight": torch.ones(1, 16, 50),
        "vision_model.encoder.layers.0.self_attn.freqs": torch.ones(3, 1, 2, 8, 8), "rubbish": torch.ones(1),
        "blocks.0.attn.relative_position_bias_table": torch.ones(10, 3), "blocks.1.attn.q_bias": torch.ones(48),
        "blocks.1.attn.v_bias": torch.ones(48), "blocks.0.attn.rope.freqs_cos": torch.ones(16, 16),
        "rope_embed.periods": torch.ones(4), "storage_tokens": torch.ones(1, 4, 48),
        "blocks.0.attn.pe_qk.weight": torch.ones(96, 48), "pe_model.cls_token_embed": torch.ones(1, 1, 48),
        "keypoint_linear.weight": torch.ones(98, 10), "keypoint_linear.bias": torch.ones(98),
        "position_encoder.generator_raw_params": torch.ones(2, 2, 6, 8, 8), "pos_embedding": torch.ones(1, 25, 48),
    }  # fmt: skip
    if variant == "rope_mixed_ape":  # its table has no row for the class token
        state["pos_embed"] = state["pos_embed"][:, 1:]
    new, report = convert(state, model, source)
    origins = {key for keys in report.used.values() for key in keys}
    assert origins | set(report.dropped) | set(report.unexpected) == set(state)
    assert not origins & set(report.unexpected) and "rubbish" in report.unexpected
    assert set(new) == set(report.used) and set(report.missing) == set(model.state_dict()) - set(new)


def test_a_table_without_a_place_is_refused():
    with pytest.raises(ValueError, match="pos_embed: the model has no learned table"):
        load(ours("rope_axial"), plain().state_dict())


def test_input_stays_as_it_is():
    state = rope_vit_state(ours("rope_mixed", init_values=0.1))
    before = {k: v.clone() for k, v in state.items()}
    load(ours("rope_mixed", init_values=0.1), state)
    assert list(state) == list(before) and all(torch.equal(state[k], v) for k, v in before.items())


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".ckpt"])
@pytest.mark.parametrize("wrapper", ["", "model", "state_dict"])
def test_files_and_wrappers(tmp_path, suffix, wrapper):
    source = plain()
    state = {f"module.{k}" if wrapper else k: v for k, v in source.state_dict().items()}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        content = {wrapper: state, "epoch": 3, "args": argparse.Namespace(lr=0.1)} if wrapper else state
        torch.save(content, path)
    model = ours("learned")
    assert vispe.load(model, path).complete
    assert torch.equal(model(images(32, 48)), ours_from(source)(images(32, 48)))


def ours_from(source: torch.nn.Module) -> torch.nn.Module:
    model = ours("learned")
    model.load_state_dict(source.state_dict())
    return model


def test_our_training_checkpoints(tmp_path):
    source = ours("comrope")
    average = {f"ema.module.{k}": v + 1 for k, v in source.state_dict().items()}
    plain = {f"net.{k}": v for k, v in source.state_dict().items()}
    torch.save({"state_dict": plain | average | {"criterion.weight": torch.ones(5)}}, tmp_path / "last.ckpt")
    model = ours("comrope")
    said = ["taken from 'ema.module.'; ['criterion.weight'] passed over", "averaged weights taken"]
    assert load(model, tmp_path / "last.ckpt").notes == said
    assert torch.equal(model.head.bias, source.head.bias + 1)  # the averaged weights


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("damage", ["truncated", "noise", "empty"])
def test_broken_files(tmp_path, suffix, damage):
    path = tmp_path / f"broken{suffix}"
    state = plain().state_dict()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "noise": b"\x07" * 4096, "empty": b""}[damage])
    model = ours("learned")
    before = snapshot(model)
    with pytest.raises(ValueError, match=f"{path.name} .*cannot be read as weights.*truncated, corrupt"):
        load(model, path)
    assert same(model, before)


def test_files_that_are_no_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(ours("learned"), tmp_path / "absent.pth")
    (tmp_path / "weights.h5").write_bytes(b"x")
    with pytest.raises(ValueError, match="must end in one of"):
        load(ours("learned"), tmp_path / "weights.h5")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(ValueError, match=r"none.pth: load: no tensors inside; the top level holds \['epoch'\]"):
        load(ours("learned"), tmp_path / "none.pth")
    torch.save({"model": Harmful()}, tmp_path / "code.pth")
    with pytest.raises(ValueError, match="holds more than tensors"):
        load(ours("learned"), tmp_path / "code.pth")


class Harmful:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_averages_beside_the_weights_are_passed_over_aloud(tmp_path):
    state = plain().state_dict()
    content = {"model": state, "model_ema": {k: v + 1 for k, v in state.items()}, "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "a.pth")
    assert "taken from 'model'; ['model_ema'] passed over" in load(ours("learned"), tmp_path / "a.pth").notes


# ---- timm's hook ----------------------------------------------------------------------------------------------------


def test_saved_model_at_another_size(tmp_path):
    """A model of a rectangular image, saved by timm and created again for another one: its grid is in the configuration."""
    torch.manual_seed(0)
    source = ours("learned")
    timm.models.save_for_hf(source, tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=(64, 24)).eval()
    assert model.encoding["learned"].grid == (8, 3)
    source.set_input_size((64, 24))
    torch.testing.assert_close(model.encoding["learned"].pos_embed, source.encoding["learned"].pos_embed)


@pytest.mark.parametrize("variant", ["learned", "rope_axial_ape", "comrope"])
def test_saved_model_after_another_size_was_set(tmp_path, variant):
    torch.manual_seed(0)
    source = ours(variant)
    source.set_input_size((48, 64))
    timm.models.save_for_hf(source, tmp_path)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    for size in ((48, 64), (64, 40)):
        assert torch.equal(model(images(*size)), source(images(*size)))


def test_adapt_leaves_the_rest_to_timm():
    state = plain().state_dict() | {"blocks.0.attn.extra": torch.ones(3)}
    adapted = adapt(state, ours("learned", num_classes=9))
    assert adapted["head.weight"].shape == (5, 48) and "blocks.0.attn.extra" in adapted


def test_adapt_takes_a_source_grid():
    torch.manual_seed(0)
    state = ours("learned").state_dict()
    model = ours("learned", size=(64, 40))
    with pytest.raises(ValueError, match="source_grid"):
        adapt(state, model)
    table = adapt(state, model, source_grid=(4, 6))["encoding.learned.pos_embed"]
    assert table.shape == (1, 41, 48)
