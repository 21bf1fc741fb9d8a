"""`vispe.swap`: the same function at the start, every weight kept, saving and loading through timm."""

import copy
import json

import pytest
import timm
import torch
from timm.models import save_for_hf
from timm.optim import param_groups_layer_decay

import vispe
from vispe.adapters import sources
from vispe.encodings import ENCODINGS
from vispe.models.vit_zoo import VARIANTS

SMALL = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)

# One of every family that swap's docstring names, and what each keeps beside the new encoding.
MODELS = {
    "vit_tiny_patch16_224": "learned",
    "deit_tiny_distilled_patch16_224": "learned",
    "deit3_small_patch16_224": "learned",
    "vit_small_patch14_reg4_dinov2": "learned",
    "vit_giant_patch14_dinov2": "learned",
    "vit_base_patch16_clip_quickgelu_224": "learned",
    "vit_base_patch16_siglip_224": "learned",
    "vit_medium_patch16_gap_240": "learned",
    "beit_base_patch16_224": "beit_bias",
    "beitv2_base_patch16_224": "beit_bias",
    "eva_giant_patch14_224": "learned",
    "eva02_tiny_patch14_224": "learned+rope_timm",
    "eva02_base_patch14_224": "learned+rope_timm",
    "vit_small_patch16_dinov3": "rope_timm",
    "vit_small_plus_patch16_dinov3": "rope_timm",
    "vit_base_patch16_rope_mixed_224": "rope_timm",
    "vit_small_patch16_rope_ape_224": "learned+rope_timm",
    "vit_pe_core_tiny_patch16_384": "learned+rope_timm",
    "vit_pe_core_gigantic_patch14_448": "learned+rope_timm",
    "aimv2_large_patch14_224": "learned",
    "vit_medium_patch16_rope_reg1_gap_256": "rope_timm",
}
WITHOUT_IDENTITY = [  # fixed functions of positions, exponentials, sigmoids, a cosine at its top
    "sincos2d", "rope_axial", "rope_dinov3", "rope_eva02", "eva02_at", "gta2d", "alibi2d", "lookhere", "loope", "md_lrpe",
    "ms_grape", "grape_multimodal", "swinv2_cpb", "rope3d", "sincos3d", "harope", "rope_points",
    "rope_diffusers",
]  # fmt: skip


def source(name, **kwargs):
    """A small timm model in eval mode with no parameter at a special value."""
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, "num_heads": 2, **kwargs}).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def images(height=32, width=32):
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def same(a, b, tol=1e-6):
    torch.testing.assert_close(a, b, rtol=0, atol=tol)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_function_and_every_weight(name):
    model = source(name)
    before = copy.deepcopy(model.state_dict())
    swapped = vispe.swap(model, "comrope", encoding_kwargs={"block_size": 4})
    assert swapped.encoding.spec == f"{MODELS[name]}+comrope"
    assert not swapped.training
    same(swapped(images()), model(images()))
    same(swapped.forward_features(images()), model.forward_features(images()))
    new = sum(p.numel() for p in swapped.encoding["comrope"].parameters())
    # Eva and Beit have no parameters for biases of the keys
    keys = sum(b.attn.qkv.bias.numel() // 3 for b in swapped.blocks) if "blocks.0.attn.qkv.bias" in swapped.state_dict() else 0
    fused = any(key.endswith("qkv.bias") for key in before)
    expected = sum(p.numel() for p in model.parameters()) + new + (0 if fused else keys)
    assert sum(p.numel() for p in swapped.parameters()) == expected
    for key, value in before.items():
        same(model.state_dict()[key], value, 0)
    with torch.no_grad():  # the copy owns its weights
        for p in swapped.parameters():
            p.add_(1)
    for key, value in before.items():
        same(model.state_dict()[key], value, 0)


@pytest.mark.parametrize("name", [n for n in VARIANTS if n in ENCODINGS])
def test_every_encoding_starts_from_the_same_function_or_says_why_not(name):
    model = source("vit_medium_patch16_rope_reg1_gap_256")  # neither a table nor any other parameter of positions
    if name == "rope_timm":
        with pytest.raises(ValueError, match="has 'rope_timm' already"):
            vispe.swap(model, name)
        return
    if name in WITHOUT_IDENTITY:
        with pytest.raises(ValueError, match=f"{name} has no setting.*start='init'"):
            vispe.swap(model, name)
        assert vispe.swap(model, name, start="init")(images()).isfinite().all()
        return
    same(vispe.swap(model, name)(images()), model(images()))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "beit_base_patch16_224", "vit_small_patch16_dinov3"])
def test_gradients_leave_the_identity(name):
    swapped = vispe.swap(source(name), "comrope+cpe", encoding_kwargs={"comrope": {"block_size": 4}})
    swapped(images()).square().sum().backward()
    for member in ("comrope", "cpe"):
        assert max(float(p.grad.abs().max()) for p in swapped.encoding[member].parameters()) > 1e-6
    optimizer = torch.optim.SGD(swapped.parameters(), lr=0.1)
    before = swapped(images()).detach()
    optimizer.step()
    assert not torch.allclose(swapped(images()), before)


def test_removed_means_the_model_without_its_encoding():
    model = source("vit_tiny_patch16_224")
    swapped = vispe.swap(model, "rope_mixed", old="remove")
    assert swapped.encoding.spec == "rope_mixed" and "encoding.learned.pos_embed" not in swapped.state_dict()
    with torch.no_grad():
        model.pos_embed.zero_()
    same(swapped(images()), model(images()))
    plain = vispe.swap(source("beit_base_patch16_224"), "none", old="remove")
    assert plain.encoding.spec == "none"
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    tokens = images().unfold(2, 8, 8).unfold(3, 8, 8).flatten(2, 3)[:, :, order]
    mixed = tokens.unflatten(2, (4, 4)).permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 32, 32)
    same(plain(mixed), plain(images()), 1e-5)  # without positions, the order of the patches does not matter


@pytest.mark.parametrize(
    "name",
    ["vit_giant_patch14_dinov2", "eva02_base_patch14_224", "beit_base_patch16_224", "deit_tiny_distilled_patch16_224"],
)
def test_saves_and_loads_through_timm(name, tmp_path):
    swapped = vispe.swap(source(name), "comrope", encoding_kwargs={"block_size": 4, "jitter": 1.0})
    save_for_hf(swapped, tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] == "vispe_vit"
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert loaded.encoding.spec == swapped.encoding.spec
    assert loaded.encoding["comrope"][0].jitter == 1.0
    same(loaded(images()), swapped(images()))
    assert tuple(loaded.pretrained_cfg["mean"]) == tuple(source(name).pretrained_cfg["mean"])
    larger = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=(40, 48), num_classes=3).eval()
    assert larger(images(40, 48)).shape == (2, 3)


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224", "eva02_base_patch14_224", "vit_small_patch16_dinov3", "vit_base_patch16_rope_mixed_224",
        "vit_small_patch16_rope_ape_224", "vit_medium_patch16_rope_reg1_gap_256",
    ],
)  # fmt: skip
def test_other_sizes_keep_the_old_encoding_as_timm_does(name):
    model = source(name, dynamic_img_size=True)
    swapped = vispe.swap(model, "comrope")
    same(swapped(images(48, 40)), model(images(48, 40)))


def test_distilled_models_keep_both_heads():
    model = source("deit_tiny_distilled_patch16_224")
    swapped = vispe.swap(model, "comrope")
    for m in (model.train(), swapped.train()):
        m.set_distilled_training(True)
    for ours, theirs in zip(swapped(images()), model(images()), strict=True):
        same(ours, theirs)
    swapped.reset_classifier(3)
    assert [y.shape for y in swapped(images())] == [(2, 3), (2, 3)]
    with pytest.raises(ValueError, match="distilled=True needs"):
        timm.create_model("vispe_vit", **SMALL, distilled=True)


def test_towers_without_a_classifier():
    model = source("vit_tiny_patch16_224")
    model.reset_classifier(0, "avg")
    swapped = vispe.swap(model, "comrope")
    assert swapped(images()).shape == (2, 32)
    same(swapped(images()), model(images()))


def test_dtype_training_and_frozen_parameters_come_along():
    model = source("vit_tiny_patch16_224").double().train()
    model.patch_embed.requires_grad_(False)
    model.set_grad_checkpointing(True)
    swapped = vispe.swap(model, "irpe")
    assert swapped.training and swapped.grad_checkpointing
    assert {p.dtype for p in swapped.parameters()} == {torch.float64}
    assert not any(p.requires_grad for p in swapped.patch_embed.parameters())
    assert all(p.requires_grad for p in swapped.encoding.parameters())


def test_rates_and_norms_come_along():
    model = source("vit_tiny_patch16_224", drop_path_rate=0.2, proj_drop_rate=0.1, attn_drop_rate=0.3, patch_drop_rate=0.25)
    swapped = vispe.swap(model, "cpe")
    block = swapped.blocks[1]
    assert block.drop_path1.drop_prob == pytest.approx(0.2) and block.mlp.drop1.p == 0.1 and block.attn.attn_drop.p == 0.3
    assert swapped.patch_drop.prob == 0.25
    assert vispe.swap(source("vit_base_patch16_clip_224.openai"), "cpe").norm.eps == source(
        "vit_base_patch16_clip_224.openai"
    ).norm.eps


def test_both_kinds_of_beit_tables_add_up():
    model = source("beit_base_patch16_224", use_shared_rel_pos_bias=True)
    same(vispe.swap(model, "cpe")(images()), model(images()))
    model = source("beit_base_patch16_224", use_shared_rel_pos_bias=True, use_rel_pos_bias=False)
    swapped = vispe.swap(model, "cpe")
    assert "encoding.beit_bias.table" in swapped.state_dict()
    same(swapped(images()), model(images()))


@pytest.mark.parametrize(
    "make,words",
    [
        (lambda: timm.create_model("convit_tiny"), "ConVit"),
        (lambda: source("vit_base_patch16_xp_224"), "ParallelScalingBlock"),
        (lambda: source("eva02_enormous_patch14_clip_224"), "EvaBlockPostNorm"),
        (lambda: source("vit_small_plus_patch16_dinov3", attn_type="rope", qkv_fused=False, num_kv_heads=1), "shared by heads"),
        (lambda: source("vit_dwee_patch16_reg1_gap_256"), "DiffAttention"),
        (lambda: timm.create_model("resnet18"), "ResNet"),
        (lambda: source("vit_tiny_patch16_224", act_layer=torch.nn.Tanh), "activation Tanh"),
        (lambda: source("vit_tiny_patch16_224", norm_layer=torch.nn.GroupNorm), "GroupNorm"),
        (lambda: timm.create_model("vit_ti_comrope", **SMALL), "EncodedVisionTransformer"),
    ],
)
def test_what_has_no_form_is_named(make, words):
    try:
        model = make()
    except TypeError:  # a norm that timm itself cannot build
        model = source("vit_tiny_patch16_224")
        model.blocks[0].norm1 = torch.nn.GroupNorm(2, 32)
    with pytest.raises(ValueError, match=words):
        vispe.swap(model, "comrope")


def test_a_changed_part_is_found():
    model = source("vit_tiny_patch16_224")
    model.blocks[1].norm2 = torch.nn.LayerNorm(32, eps=0.5)
    with pytest.raises(ValueError, match="blocks.1.norm2"):
        vispe.swap(model, "comrope")
    model = source("aimv2_large_patch14_224")
    model.blocks[1].norm1.eps = 0.5  # a norm that does not show it
    with pytest.raises(ValueError, match="blocks.1.norm1"):
        vispe.swap(model, "comrope")
    model = source("vit_small_patch16_dinov3")
    model.fc_norm = torch.nn.LayerNorm(32, eps=1e-5)
    with pytest.raises(ValueError, match="norm is LayerNorm.* would be absent"):
        vispe.swap(model, "comrope")


def test_bad_requests():
    model = source("vit_tiny_patch16_224")
    with pytest.raises(ValueError, match="'keep' or 'remove'"):
        vispe.swap(model, "comrope", old="none")
    with pytest.raises(ValueError, match="did you mean"):
        vispe.swap(model, "comropee")
    with pytest.raises(ValueError, match="already"):
        vispe.swap(model, "learned")
    with pytest.raises(ValueError, match="no members"):
        vispe.swap(model, "comrope+cpe", encoding_kwargs={"block_size": 4})
    with pytest.raises(ValueError, match="block_size"):
        vispe.swap(model, "comrope", encoding_kwargs={"block_sise": 4})
    model.patch_embed.img_size = None
    with pytest.raises(ValueError, match="image size"):
        vispe.swap(model, "comrope")


def test_arguments_are_plain():
    for name in MODELS:
        json.dumps(sources.arguments(source(name)))


def test_weights_load_at_another_size(tmp_path):
    """timm#1794: `checkpoint_path` fails at another image size, since it skips the filter; `vispe.load` resamples."""
    swapped = vispe.swap(source("vit_tiny_patch16_224"), "rope_mixed")
    save_for_hf(swapped, tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    larger = timm.create_model("vispe_vit", **{**config["model_args"], "img_size": (48, 48)}).eval()
    report = vispe.load(larger, tmp_path / "model.safetensors")
    assert report.complete and "encoding.learned.pos_embed" in report.resampled
    expected = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=(48, 48)).eval()
    same(larger(images(48, 48)), expected(images(48, 48)))
    swapped.set_input_size((48, 48))
    same(larger(images(48, 48)), swapped(images(48, 48)))


def test_features_and_layer_decay_groups():
    swapped = vispe.swap(source("eva02_tiny_patch14_224"), "comrope")
    arguments = {**swapped._model_args, "out_indices": (0, 1)}
    assert [f.shape for f in timm.create_model("vispe_vit", features_only=True, **arguments)(images())] == [(2, 32, 4, 4)] * 2
    groups = param_groups_layer_decay(swapped, 0.1, swapped.no_weight_decay(), layer_decay=0.5)
    names = {id(p): name for name, p in swapped.named_parameters()}
    decayed = {names[id(p)] for g in groups if g["weight_decay"] for p in g["params"]}
    assert decayed and not any(name.startswith("encoding.") for name in decayed)
