"""What timm asks of a model beyond forward: features, sizes, classifiers, parameter groups, pruning, dropping patches."""

import re

import pytest
import timm
import torch
from model_helpers import TINY, ZOO, close, images, stir, vit
from timm.models import group_parameters
from timm.optim import create_optimizer_v2

from vispe.encodings import ENCODINGS, NoEncoding
from vispe.models import EncodedVisionTransformer
from vispe.models.vit_zoo import VARIANTS


def by_hand(model, x, upto):
    """Tokens after each of the first `upto` + 1 blocks."""
    grid = x.shape[2] // 8, x.shape[3] // 8
    y, ctx = model.start(model.patch_embed(x).flatten(1, 2), model.positions(*grid))
    found = []
    for i in range(upto + 1):
        y = model.run_block(i, y, ctx)
        found.append(y)
    return found


# ---- features -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ZOO)
def test_forward_intermediates(variant):
    model, x = vit(variant), images(40, 56)
    p = model.num_prefix_tokens
    hand = by_hand(model, x, 2)
    last, maps = model.forward_intermediates(x, indices=[0, 2])
    close(last, model.forward_features(x))
    for got, want in zip(maps, (hand[0], hand[2])):
        close(got, want[:, p:].mT.reshape(2, 96, 5, 7))
    rows = model.forward_intermediates(x, indices=2, output_fmt="NLC", norm=True, intermediates_only=True)
    for got, want in zip(rows, hand[1:]):
        close(got, model.norm(want)[:, p:])
    early = model.forward_intermediates(x, indices=[1], stop_early=True, intermediates_only=True)
    close(early[0], hand[1][:, p:].mT.reshape(2, 96, 5, 7))


def test_forward_intermediates_with_prefix_and_as_a_dictionary():
    model, x = vit("rope_mixed", reg_tokens=4), images(40, 56)
    hand = by_hand(model, x, 2)
    pairs = model.forward_intermediates(x, indices=[1], return_prefix_tokens=True, intermediates_only=True)
    close(pairs[0][0], hand[1][:, 5:].mT.reshape(2, 96, 5, 7))
    close(pairs[0][1], hand[1][:, :5])
    out = model.forward_intermediates(x, indices=[1], return_prefix_tokens=True, output_dict=True)
    assert set(out) == {"image_features", "image_intermediates", "image_intermediates_prefix"}
    close(out["image_features"], model.forward_features(x))
    close(out["image_intermediates_prefix"][0], hand[1][:, :5])
    only = model.forward_intermediates(x, output_dict=True, intermediates_only=True)
    assert set(only) == {"image_intermediates"} and len(only["image_intermediates"]) == 3
    with pytest.raises(ValueError, match="output_fmt must be 'NCHW' or 'NLC', got 'NHWC'"):
        model.forward_intermediates(x, output_fmt="NHWC")


def test_intermediates_equal_those_of_timm():
    """The plain ViT is the reference of every option."""
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, **TINY).eval()
    model = vit("learned")
    model.load_state_dict(plain.state_dict(), strict=True)
    x = images(32, 48)
    for options in (
        dict(), dict(indices=2), dict(indices=[0], norm=True), dict(output_fmt="NLC"), dict(return_prefix_tokens=True),
        dict(intermediates_only=True), dict(output_dict=True, return_prefix_tokens=True),
    ):  # fmt: skip
        torch.testing.assert_close(model.forward_intermediates(x, **options), plain.forward_intermediates(x, **options))


@pytest.mark.parametrize("variant", ZOO)
def test_features_only(variant):
    torch.manual_seed(0)
    model = timm.create_model(f"vit_ti_{variant}", features_only=True, out_indices=(0, 1), **TINY).eval()
    stir(model.model.encoding)
    x = images(40, 56)
    maps = model(x)
    assert [tuple(m.shape) for m in maps] == [(2, 96, 5, 7)] * 2
    assert model.feature_info.channels() == [96, 96] and model.feature_info.reduction() == [8, 8]
    hand = by_hand(model.model, x, 1)
    p = model.model.num_prefix_tokens
    for got, want in zip(maps, hand):
        close(got, want[:, p:].mT.reshape(2, 96, 5, 7))
    sum(m.square().sum() for m in model.train()(x)).backward()
    assert all(q.grad is not None for n, q in model.named_parameters() if not n.startswith("model.norm"))


# ---- sizes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ZOO)
def test_set_input_size(variant):
    """Outputs at a size do not change when it becomes the model's own; tables are resampled, and that is said."""
    model = vit(variant)
    x, back = images(64, 40), images(32, 48)
    want, before = model(x), model(back)
    done = model.set_input_size((64, 40))
    assert model.patch_embed.img_size == (64, 40) and model.patch_embed.grid_size == (8, 5)
    close(model(x), want)
    owners = {name.split(".")[0] for name, encoding in model.encoding.encodings() if hasattr(encoding, "set_grid")}
    assert {text.split(":")[0].split(".")[0] for text in done} == owners
    if "learned" in owners:
        assert "learned: pos_embed resampled from (4, 6) to (8, 5)" in done
        assert model.encoding["learned"].pos_embed.shape[1] == 40 + model.encoding["learned"].prefix_rows
    if not owners:
        close(model(back), before)
    assert model.set_input_size((64, 40)) == []


def test_set_patch_size():
    model = vit("rope_axial")
    assert model.set_input_size((64, 96), patch_size=16) == ["patch_embed.proj resampled from (8, 8) to (16, 16)"]
    assert model.forward_features(images(64, 96)).shape == (2, 25, 96)
    with pytest.raises(ValueError, match="no multiple of the patch size"):
        model.set_input_size((60, 96))


def test_set_coords():
    """"extend" keeps the step of a patch, "rescale" the extent of the image; None goes back."""
    train, large = images(32, 48), images(64, 96)
    defaults = {"rope_axial": "extend", "comrope": "rescale", "rope_dinov3": "rescale", "rope_mixed_ape": "extend"}
    for variant, default in defaults.items():
        model = vit(variant)
        outs = {}
        for mode in ("extend", "rescale", None):
            model.set_coords(mode)
            outs[mode] = model(train), model(large)
        close(outs["extend"][0], outs["rescale"][0])
        assert (outs["extend"][1] - outs["rescale"][1]).abs().max() > 1e-4
        assert torch.equal(outs[None][1], outs[default][1])
    for made, variant in (("rescale", "rope_axial"), ("extend", "comrope")):  # None goes back to what was asked for
        model = vit(variant, encoding_kwargs={"resize": made})
        want = model(large)
        model.set_coords("extend" if made == "rescale" else "rescale")
        assert not torch.equal(model(large), want)
        model.set_coords(None)
        assert torch.equal(model(large), want)
    with pytest.raises(ValueError, match="'extend', 'rescale' or None, got 'scale'"):
        model.set_coords("scale")


@pytest.mark.parametrize("variant", ZOO)
def test_coords_of_every_encoding(variant):
    """The switch is harmless where an encoding has no such choice, and always comes back."""
    model, x = vit(variant), images(64, 40)
    want = model(x)
    for mode in ("extend", "rescale"):
        model.set_coords(mode)
        assert model(x).isfinite().all()
    model.set_coords(None)
    assert torch.equal(model(x), want)


def test_train_size_is_the_reference_of_rescaling():
    """Doubling the image under "rescale" leaves patch (i, j) of the small image between patches 2i and 2i + 1 of the large."""
    model = vit("rope_axial", train_size=(32, 48), img_size=(64, 96))
    assert model.train_grid == (4, 6)
    model.set_coords("rescale")
    pos = model.positions(8, 12)
    coords = model.encoding["rope_axial"].coordinates(pos)[0]
    close(coords[0], torch.tensor([-0.25, -0.25]))
    close(coords[13], torch.tensor([0.25, 0.25]))


@pytest.mark.parametrize("variant", ["learned", "comrope", "cpe"])
def test_padded_images(variant):
    model = vit(variant, dynamic_img_pad=True)
    assert model.forward_features(images(30, 41)).shape == (2, 1 + 4 * 6, 96)
    maps = model.forward_intermediates(images(30, 41), indices=[2], intermediates_only=True)
    assert maps[0].shape == (2, 96, 4, 6)


# ---- classifier, groups -------------------------------------------------------------------------------------------------


def test_reset_classifier():
    model = vit("comrope")
    x = images()
    features = model.forward_features(x)
    model.reset_classifier(7)
    assert model(x).shape == (2, 7) and model.num_classes == 7
    assert torch.equal(model.forward_features(x), features)
    model.reset_classifier(0, "avg")
    close(model(x), model.fc_norm(features[:, 1:].mean(1)))
    assert vit("comrope", num_classes=0)(x).shape == (2, 96)


@pytest.mark.parametrize("variant", ZOO)
def test_group_matcher(variant):
    """Encodings of a layer go with their block, shared ones with the stem, none with the head."""
    model = vit(variant, reg_tokens=1)
    groups = group_parameters(model, model.group_matcher(), reverse=True)
    assert set(groups) == {n for n, _ in model.named_parameters()}
    stem, head = groups["patch_embed.proj.weight"], groups["head.weight"]
    blocks = [groups[f"blocks.{i}.attn.qkv.weight"] for i in range(3)]
    assert [stem, *blocks, head] == [0, 1, 2, 3, 4] and groups["norm.weight" if variant != "cpe_gap" else "norm.bias"] == 3
    for name, group in groups.items():
        if name.startswith("encoding."):
            layer = re.match(r"encoding\.\w+\.(?:pegs\.)?(\d+)\.", name)
            assert group == (blocks[int(layer[1])] if layer else stem), name


@pytest.mark.parametrize("variant", ["learned", "rope_mixed_ape", "irpe_qkv", "cpe"])
def test_layer_decay(variant):
    model = vit(variant)
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.05, layer_decay=0.5)
    names = {id(p): n for n, p in model.named_parameters()}
    scale = {names[id(p)]: g["lr_scale"] for g in optimizer.param_groups for p in g["params"]}
    assert scale["head.weight"] == 1.0
    if "learned" in model.encoding:
        assert scale["encoding.learned.pos_embed"] == scale["cls_token"] == 0.5**4
    if "rope_mixed" in model.encoding:
        assert scale["encoding.rope_mixed.2.freqs"] == scale["blocks.2.attn.qkv.weight"] == 0.5


def test_shared_layers_of_a_shared_encoding_stay_in_the_stem():
    """A number in a name means a block only where the encoding has one instance, or one generator, for each block."""

    class Shared(NoEncoding):
        def __init__(self, *, dim, num_heads, axes=2):
            super().__init__(dim=dim, num_heads=num_heads, axes=axes)
            self.mlp = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    ENCODINGS["shared_for_test"] = Shared
    try:
        model = EncodedVisionTransformer(encoding="shared_for_test", **TINY)
    finally:
        del ENCODINGS["shared_for_test"]
    groups = group_parameters(model, model.group_matcher(), reverse=True)
    assert {groups[f"encoding.shared_for_test.mlp.{i}.weight"] for i in (0, 1)} == {groups["cls_token"]}


def test_no_weight_decay():
    assert vit("learned").no_weight_decay() >= {"cls_token", "encoding.learned.pos_embed"}
    assert "encoding.rope_mixed.1.freqs" in vit("rope_mixed_ape").no_weight_decay()
    names = {n for n, _ in vit("comrope").named_parameters()}
    assert {n for n in vit("comrope").no_weight_decay() if n.startswith("encoding.")} <= names


# ---- pruning, dropping, masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ZOO)
def test_prune_intermediate_layers(variant):
    kwargs = dict(encoding_kwargs={"after": [0, 2]}) if variant.startswith("cpe") else {}
    model, x = vit(variant, **kwargs), images(40, 56)
    want = by_hand(model, x, 1)[1]
    assert model.prune_intermediate_layers([0, 1]) == [0, 1]
    assert len(model.blocks) == 2 and isinstance(model.head, torch.nn.Identity)
    rows = model.forward_intermediates(x, indices=[1], output_fmt="NLC", intermediates_only=True)
    close(rows[0], want[:, model.num_prefix_tokens :])
    model.train()(x).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def convolves(variant):
    cards = [ENCODINGS[name].card for name in VARIANTS[variant]["encoding"].split("+")]
    return any("grid" in c.needs and {"between", "hidden", "beside"} & set(c.injection) for c in cards)


@pytest.mark.parametrize("variant", [v for v in ZOO if not convolves(v)])
def test_patch_dropout(variant):
    """The kept patches, their own positions: equal to a forward of just these tokens at these positions."""
    model, x = vit(variant, patch_drop_rate=0.5), images(40, 56)
    model.train()
    torch.manual_seed(5)
    got = model.forward_features(x)
    tokens = model.patch_embed(x).flatten(1, 2)
    torch.manual_seed(5)
    kept, keep = model.patch_drop(tokens)
    assert kept.shape[1] == 17 and got.shape[1] == model.num_prefix_tokens + 17
    model.eval()
    y, ctx = model.start(kept, model.positions(5, 7).take(keep))
    for i in range(3):
        y = model.run_block(i, y, ctx)
    close(got, model.norm(y))
    assert model.forward_features(x).shape[1] == model.num_prefix_tokens + 35
    model.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("variant", [v for v in ZOO if convolves(v)])
def test_patch_dropout_with_a_convolution(variant):
    model = vit(variant, patch_drop_rate=0.5).train()
    with pytest.raises(ValueError, match="the tokens are no full grid .* switch patch dropout or masking off"):
        model(images())


@pytest.mark.parametrize("variant", ["learned", "comrope", "irpe_qkv"])
def test_attention_masks(variant):
    """A mask joins the encoding's own bias; a causal model does not see later tokens."""
    model, x = vit(variant), images(32, 48)
    causal = model.forward_features(x, is_causal=True)
    mask = torch.ones(25, 25, dtype=torch.bool).tril()
    close(model.forward_features(x, attn_mask=mask), causal)
    close(model.forward_features(x, attn_mask=torch.zeros(25, 25).masked_fill(~mask, float("-inf"))), causal)
    other = x.clone()
    other[:, :, 24:] += 1  # the last row of patches
    close(model.forward_features(other, is_causal=True)[:, :19], causal[:, :19])
    assert (model.forward_features(other)[:, :19] - model.forward_features(x)[:, :19]).abs().max() > 1e-3
    with pytest.raises(ValueError, match="either attn_mask or is_causal"):
        model.forward_features(x, attn_mask=mask, is_causal=True)


@pytest.mark.parametrize("variant", ["rope_mixed", "irpe_qkv", "gta2d"])
def test_qk_norm_and_gates(variant):
    """timm's attention options go together with the hooks."""
    model = vit(variant, qk_norm=True, init_values=0.1, drop_path_rate=0.1)
    model.train()(images()).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
