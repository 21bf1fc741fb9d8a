"""Saving, loading at another size, plain ViTs, and folding for inference."""

import copy
import inspect
import json

import pytest
import timm
import torch
from model_helpers import TINY, ZOO, close, images, stir, vit
from safetensors.torch import save_file
from timm.models import save_for_hf

from vispe.encodings import ENCODINGS

# Options away from their defaults, encoding by encoding; what a reload forgets shows in the outputs.
OPTIONS = {
    "learned": dict(
        prefix_rows=True, init="sincos", sincos_scale=0.3, sincos_theta=50.0, antialias=False, interpolation="bilinear"
    ),
    "sincos2d": dict(preset="diffusers", theta=500.0, base_size=5, interpolation_scale=1.5, resize="rescale"),
    "learnable_fourier": dict(fourier_dim=24, hidden_dim=20, gamma=0.5, groups=2, resize="extend"),
    "rope_axial": dict(theta=30.0, resize="rescale"),
    "rope_mixed": dict(theta=30.0, resize="rescale"),
    "rope_dinov3": dict(
        base=None, min_period=0.5, max_period=20.0, normalize="max", shift=0.1, jitter=1.1, rescale=1.2, resize="extend"
    ),
    "comrope": dict(block_size=4, init_std=0.5, multiplier="per_head", jitter=0.1, offset=0.1, resize="extend"),
    "comrope_ap": dict(block_size=4, init_std=0.5, jitter=0.1, offset=0.1, resize="extend"),
    "comrope_ld": dict(block_size=3, init_std=0.5, multiplier="per_head", jitter=0.1, offset=0.1, resize="extend"),
    "irpe": dict(method="cross", mode="bias", on="qk", ratio=1.2, shared_head=False),
    "cpe": dict(after=[-1, 1], kernel_size=5, dilation=2),
    "gta2d": dict(theta=30.0, transform_values=False, resize="rescale"),
    "liere_comrope": dict(block_size=4, init_std=0.5, resize="extend"),
    "eva02_at": dict(theta=30.0, time_theta=20.0, pretrain_grid=6, resize="extend"),
    "md_lrpe": dict(form="rotate", base=30.0, spread="head", learn_theta=False, resize="rescale"),
    "ms_grape": dict(theta=30.0, heads="per_head", log_scale=0.5, resize="rescale"),
    "grape_multimodal": dict(
        mode="block_mixed", planes=2, block_size=8, theta=30.0, log_scale=0.5, start="random", resize="rescale"
    ),
    "rope3d": dict(theta=30.0, preset="vjepa2", resize="rescale"),
    "rope_eva02": dict(theta=30.0, pretrain_grid=6, resize="extend"),
    "harope": dict(theta=30.0, mode="shared", resize="rescale"),
    "string_cayley": dict(theta=30.0, resize="rescale"),
    "string_circulant": dict(block_size=8, init_std=0.3, resize="rescale"),
    "rope_timm": dict(
        preset="dinov3", temperature=30.0, normalize="max", layout="interleaved", shift=0.1, jitter=1.1, rescale=1.2
    ),
    "liere": dict(block_size=4, layers="per_layer", heads="shared", resize="rescale"),
    "swin_bias": dict(resample="geometric"),
    "swinv2_cpb": dict(pretrained_window=(6, 5), hidden=24, attention="cosine"),
    "beit_bias": dict(resample="bicubic", per_layer=False),
    "timm_rel_mlp": dict(mode="swin", hidden=24, pretrained_window=(6, 5), hidden_drop=0.1),
    "timm_rel_tf": dict(resample="geometric"),
    "alibi2d": dict(resize="rescale"),
    "lookhere": dict(
        directions="corners-none", layer_slopes=(1.2, 0.7), global_slope=0.8, distance="sqrt", fill="max",
        rounding="bfloat16", resize="rescale",
    ),
    "fire": dict(hidden=12, threshold=3.0, init_c=0.3, eps=1e-3),
    "fire2d": dict(grid=(5, 7), hidden=12, init_c=0.3, eps=1e-3),
    "urpe": dict(resample="bicubic", per_layer=True),
    "sincos3d": dict(preset="cogvideox", theta=30.0, resize="rescale"),
    "seqpe": dict(
        method="attn_add", max_digits=3, heads="shared", projection="shared", net_width=24, net_layers=1, net_heads=2
    ),
    "loope": dict(theta=30.0),
    "mix_ffn": dict(kernel_size=5),
    "lepe": dict(kernel_size=5),
    "rope_diffusers": dict(preset="flux", channels=(0, 24, 24), theta=30.0, resize="rescale"),
    "v_detr_3dvrpe": dict(hidden=16, entries=6, limit=3.0, log_scale=100.0, boxes="turned", cell=2.0),
    "coord_fourier": dict(kind="barf", num_freqs=6, progress=0.4, resize="extend"),
    "rope_points": dict(theta=30.0, voxel=0.5, resize="rescale"),
}

# what hosts tell, not users
FACTS = {"dim", "num_heads", "axes", "depth", "layer", "grid", "train_grid", "prefix", "patch_size", "mlp_dim"}
RULED = {"rope_timm", "rope_diffusers", "coord_fourier", "loope"}  # `content="image"` of loope needs positions with an image
INIT_ONLY = {"learned_spacetime"}  # its option is gone once weights are loaded


def reload(folder, model, **kwargs):
    save_for_hf(model, folder, model_config={"tag": "test"}, safe_serialization=True)
    return timm.create_model(f"local-dir:{folder}", pretrained=True, **kwargs).eval()


@pytest.mark.parametrize("variant", ZOO)
def test_saved_and_reloaded_at_another_size(variant, tmp_path):
    model = vit(variant)
    twin = reload(tmp_path, model)
    assert torch.equal(twin(images(40, 56)), model(images(40, 56)))
    larger = reload(tmp_path, model, img_size=(48, 64))
    assert larger.patch_embed.img_size == (48, 64)
    close(larger(images(48, 64)), model(images(48, 64)))


def test_every_encoding_with_options_is_tried():
    takes = {name for name in ENCODINGS if name in ZOO and set(inspect.signature(ENCODINGS[name]).parameters) - FACTS}
    assert takes - INIT_ONLY == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_survives(name, tmp_path):
    """Options and host arguments far from their defaults are all in the saved configuration."""
    model = vit(
        name, encoding_kwargs=OPTIONS[name], train_size=(40, 32), reg_tokens=2, qk_norm=True, init_values=0.3, qkv_bias=False
    )
    twin = reload(tmp_path, model)
    for size in ((32, 48), (40, 56)):
        assert torch.equal(twin(images(*size)), model(images(*size)))
    larger = reload(tmp_path, model, img_size=(48, 64))
    close(larger(images(48, 64)), model(images(48, 64)))
    default = vit(name, train_size=(40, 32), reg_tokens=2, qk_norm=True, init_values=0.3, qkv_bias=False)
    same = {n: p.shape for n, p in default.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    if same:  # the options matter
        default.load_state_dict(model.state_dict())
        ours, plain = (m.forward_features(images(40, 56)) for m in (model, default))
        assert not torch.allclose(plain, ours, atol=1e-4)


@pytest.mark.parametrize("variant", ZOO)
def test_saved_after_another_size_became_its_own(variant, tmp_path):
    model = vit(variant)
    model.set_input_size((64, 40))
    twin = reload(tmp_path, model)
    assert twin.patch_embed.img_size == (64, 40) and twin.train_grid == model.train_grid == (4, 6)
    for size in ((64, 40), (32, 48)):
        assert torch.equal(twin(images(*size)), model(images(*size)))
    assert json.loads((tmp_path / "config.json").read_text())["model_args"]["train_size"] == [32, 48]


def test_new_classes_and_channels_at_load(tmp_path):
    model = vit("comrope")
    twin = reload(tmp_path, model, num_classes=3, in_chans=1)
    assert twin(images()[:, :1]).shape == (2, 3)
    gray = images()[:, :1]
    close(twin.forward_features(gray), model.forward_features(gray.expand(-1, 3, -1, -1)), 1e-4)


# ---- plain ViTs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch16_224"])
def test_a_plain_vit_loads_strictly(name):
    """Bit-equal at its own size, and timm's own dynamic resampling at any other."""
    torch.manual_seed(0)
    size = dict(img_size=(32, 48), depth=2, num_classes=5)
    plain = timm.create_model(name, dynamic_img_size=True, **size).eval()
    model = timm.create_model({"t": "vit_ti_learned", "s": "vit_s_learned"}[name[4]], **size).eval()
    state = {k: v.clone() for k, v in plain.state_dict().items()}
    model.load_state_dict(state, strict=True)
    assert "pos_embed" in state  # the caller's dictionary is left as it was
    assert torch.equal(model(images(32, 48)), plain(images(32, 48)))
    close(model(images(48, 96)), plain(images(48, 96)))
    close(model(images(64, 16)), plain(images(64, 16)))


def test_a_plain_vit_loads_from_a_file(tmp_path):
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, **TINY).eval()
    save_file(plain.state_dict(), tmp_path / "plain.safetensors")
    overlay = dict(file=str(tmp_path / "plain.safetensors"), num_classes=5)
    model = timm.create_model("vit_ti_learned", pretrained=True, pretrained_cfg_overlay=overlay, **TINY).eval()
    assert torch.equal(model(images()), plain(images()))


@pytest.mark.parametrize("variant", ["rope_mixed", "gta2d", "irpe"])
def test_a_plain_vit_without_its_table_is_this_vit_without_its_encoding(variant):
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, **TINY).eval()
    plain.pos_embed.data.zero_()
    model = vit(variant)
    missing = model.load_state_dict(plain.state_dict(), strict=False)
    assert missing.unexpected_keys == ["pos_embed"] and all(k.startswith("encoding.") for k in missing.missing_keys)
    assert (model(images()) - plain(images())).abs().max() > 3e-5
    for p in model.encoding.parameters():
        p.data.zero_()
    if variant != "gta2d":
        close(model(images()), plain(images()), 1e-6)


# ---- folding ------------------------------------------------------------------------------------------------------------

FOLDED = [
    ("comrope", {}), ("comrope_ap", {}), ("comrope_ld", {"block_size": 3}), ("comrope_ld", {"block_size": 2}),
    ("comrope_ld", {"multiplier": "per_head"}), ("comrope_ap", {"block_size": 12}),
    ("comrope_ld", {"block_size": 16, "resize": "extend"}),
]  # fmt: skip


@pytest.mark.parametrize("variant, options", FOLDED)
@pytest.mark.parametrize("prefix", [dict(class_token=False, global_pool="avg"), dict(reg_tokens=4)])
def test_folding(variant, options, prefix):
    model = vit(variant, encoding_kwargs=options, **prefix)
    folded = copy.deepcopy(model).fold()
    assert not any("skew" in name for name, _ in folded.named_parameters())
    for size in ((32, 48), (40, 56), (8, 64)):
        close(folded(images(*size)), model(images(*size)))
    for resize in ("extend", "rescale", None):
        folded.set_coords(resize), model.set_coords(resize)
        close(folded(images(64, 40)), model(images(64, 40)))
    again = copy.deepcopy(vit(variant, seed=9, encoding_kwargs=options, **prefix)).fold()
    again.load_state_dict(folded.state_dict(), strict=True)
    assert torch.equal(again(images(40, 56)), folded(images(40, 56)))


def test_folding_more():
    """A composition keeps its other members; bases that turn nothing fold to nothing; some models cannot be folded."""
    torch.manual_seed(0)
    model = timm.create_model("vit_ti_none", encoding="learned+comrope", **TINY).eval()
    stir(model.encoding)
    folded = copy.deepcopy(model).fold()
    close(folded(images(40, 56)), model(images(40, 56)))
    no_bias = vit("comrope", qkv_bias=False)
    close(copy.deepcopy(no_bias).fold()(images(40, 56)), no_bias(images(40, 56)))
    still = vit("comrope")
    for p in still.encoding.parameters():
        p.data.zero_()
    close(copy.deepcopy(still).fold()(images(40, 56)), still(images(40, 56)))
    plain = vit("rope_axial")
    assert torch.equal(copy.deepcopy(plain).fold()(images()), plain(images()))
    with pytest.raises(ValueError, match="comrope cannot be folded through q_norm and k_norm"):
        vit("comrope", qk_norm=True).fold()


def test_a_folded_model_exports_and_has_wavelengths():
    model = vit("comrope")
    folded = copy.deepcopy(model).fold()
    program = torch.export.export(folded, (images(40, 56),)).module()
    close(program(images(40, 56)), model(images(40, 56)))
    for layer, plain in zip(model.encoding["comrope"], folded.encoding["comrope"]):
        close(plain.wavelengths((5, 7)), layer.wavelengths((5, 7)), 1e-4)


def test_options_cover_the_table():
    """Every option is away from its default above; where a preset rules some out, those that it takes."""
    for name, options in OPTIONS.items():
        own = inspect.signature(ENCODINGS[name]).parameters
        if name not in RULED:
            assert set(own) - FACTS <= set(options), (name, set(own) - FACTS - set(options))
        assert all(options[k] != own[k].default for k in options), name
