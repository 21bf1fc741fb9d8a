"""Diagnostics against answers that are known beforehand."""

from __future__ import annotations

import pytest
import timm
import torch
from torch.testing import assert_close

import vispe
from vispe.diagnostics import (
    as_host,
    attention_distance,
    decodability,
    equivariance,
    evaluating,
    logit_decay,
    mean_distance,
    padding_pattern,
    position_r2,
    relevance,
    textures,
    three_cell,
    three_cells,
    walk,
    wavelengths,
)
from vispe.diagnostics.host import patches_of, relative_error, run
from vispe.diagnostics.probe import probe, r2
from vispe.positions import patch_grid

SIZE = (48, 64)  # 6 x 8 patches
TINY = dict(embed_dim=96, depth=2, num_heads=2, mlp_ratio=2.0, patch_size=8, img_size=SIZE, num_classes=5)
POOLED = dict(class_token=False, global_pool="avg")


def vit(variant: str, *, stir: float = 0.2, **kwargs):
    torch.manual_seed(0)
    model = timm.create_model(f"vit_ti_{variant}", **{**TINY, **kwargs}).eval()
    with torch.no_grad():
        for p in model.encoding.parameters():
            p.add_(stir * torch.randn_like(p))
    return model


@pytest.fixture(scope="module")
def images():
    return textures(8, SIZE)


# ---- the model that is read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["none", "rope_mixed", "alibi2d", "irpe_qkv", "cpe", "gta2d", "learned", "mix_ffn"])
def test_steps_are_those_of_the_forward_pass(variant, images):
    model = vit(variant)
    with torch.no_grad():
        steps = list(walk(model, *patches_of(model, images[:2])))
        assert [s.name for s in steps] == ["patches", "input", "block 0", "block 1"]
        assert_close(model.norm(steps[-1].tokens), model.forward_features(images[:2]))
        assert_close(run(model, *patches_of(model, images[:2]))[1], model(images[:2]))


def test_logits_are_what_attention_uses(images):
    """Explicit probabilities times values through block 0 give its output, with a rotation and a bias."""
    for variant in ("rope_mixed", "alibi2d"):
        model, seen = vit(variant), {}
        block = model.blocks[0]
        handles = [block.attn.register_forward_hook(lambda m, args, out: seen.update(x=args[0], out=out))]
        model(images[:2])
        handles[0].remove()
        with torch.no_grad():
            steps = list(walk(model, *patches_of(model, images[:2])))
            v = block.attn.qkv(seen["x"]).unflatten(-1, (3, 2, 48))[:, :, 2].transpose(1, 2)
            o = block.attn.proj((steps[2].logits().softmax(-1) @ v).transpose(1, 2).flatten(2))
        assert_close(o, seen["out"].detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_plain_timm_models_become_hosts_that_compute_the_same(name):
    model = timm.create_model(name, img_size=56 if "14" in name else 64, depth=2, num_classes=3).eval()
    size = model.patch_embed.img_size
    x = textures(2, size, seed=3)
    with torch.no_grad():
        assert_close(as_host(model)(x), model(x), atol=1e-5, rtol=1e-4)


def test_what_has_no_form_is_refused():
    with pytest.raises(ValueError, match="ResNet"):
        as_host(timm.create_model("resnet10t"))
    with pytest.raises(ValueError, match="video model"):
        as_host(timm.create_model("vid_s_rope3d", depth=1, img_size=32, num_frames=4))


def test_modes_come_back_module_by_module():
    model = vit("none").train()
    model.blocks[0].eval()
    before = [m.training for m in model.modules()]
    with evaluating(model):
        assert not any(m.training for m in model.modules())
    assert [m.training for m in model.modules()] == before


# ---- attention ----------------------------------------------------------------------------------------------------------


def test_mean_distance_of_attention_made_by_hand():
    coords = patch_grid(1, 3).coords[0]  # three patches in a row
    own = torch.eye(3)[None, None]
    left = torch.tensor([[1.0, 0, 0]] * 3)[None, None]  # all look at the first: distances 0, 1, 2
    alike = torch.full((1, 1, 3, 3), 0.2)  # rows need not sum to 1: prefix tokens took the rest
    both = torch.cat((own, left, alike), dim=1)
    assert_close(mean_distance(both, coords), torch.tensor([0.0, 1.0, 8 / 9]))


def test_alibi_decays_at_its_slopes_and_no_encoding_does_not(images):
    model = vit("alibi2d", stir=0.0)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.zero_()  # content says nothing: the logits of block 0 are the bias
    found = logit_decay(model, images[:2])
    assert_close(found.slope[0], -torch.tensor([2.0**-4, 2.0**-8]), atol=1e-6, rtol=1e-4)
    step = found.mean[0, 0].diff()
    assert (step < 0).all()
    assert logit_decay(vit("none"), images[:2]).slope.abs().max() < 5e-3
    far, near = attention_distance(vit("none"), images[:2]), attention_distance(model, images[:2])
    assert near.distance[0].max() < far.distance[0].min()
    assert_close(far.distance, torch.full_like(far.distance, far.uniform), atol=0.03, rtol=0)


def test_masked_pairs_do_not_count(images):
    found = logit_decay(vit("lookhere"), images[:2])
    assert found.slope.isfinite().all() and (found.slope < 0).all()


def test_wavelengths_layer_by_layer():
    found = wavelengths(vit("rope_mixed"), (6, 8))["rope_mixed"]
    assert found.patches.shape == (2, 2, 24) and found.longer.shape == (2, 2)
    assert_close(found.longer, (found.patches > 8).float().mean(-1))
    assert wavelengths(vit("learned"), (6, 8)) == {}


# ---- equivariance -------------------------------------------------------------------------------------------------------


def test_rope_is_equivariant_to_shifts_and_a_table_is_not(images):
    rope = equivariance(vit("rope_mixed", **POOLED), images[:2])["positions shifted"]
    table = equivariance(vit("learned", **POOLED), images[:2])["positions shifted"]
    assert max(rope.features, rope.logits, rope.scores) < 1e-5
    assert min(table.features, table.logits, table.scores) > 1e-2


def test_without_positions_only_the_content_of_patches_changes(images):
    found = equivariance(vit("none", **POOLED), images[:2])
    for name in ("positions shifted", "positions scaled x2", "input shifted"):
        assert max(found[name].features, found[name].logits) < 1e-5, name
    assert found["input scaled x2"].features > 1e-2


def test_class_tokens_see_the_place_of_rotated_keys(images):
    found = equivariance(vit("rope_mixed"), images[:2])["positions shifted"]
    assert found.scores < 1e-5 < 1e-4 < found.logits


def test_relative_error():
    a = torch.tensor([3.0, 4.0])
    assert relative_error(1.5 * a, a) == pytest.approx(0.5)


# ---- probes -------------------------------------------------------------------------------------------------------------


def test_probe_recovers_a_linear_map_and_finds_nothing_in_noise():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=generator)
    y = x @ torch.randn(20, 2, generator=generator) + 3
    parts = torch.arange(400) % 3
    assert r2(*probe(x, y, parts)).min() > 0.999
    noise = torch.randn(400, 2, generator=generator)
    assert r2(*probe(x, noise, parts)).abs().max() < 0.15


def test_positions_are_found_in_sincos_tokens_and_not_in_noise():
    noise = torch.randn(16, 48, 96, generator=torch.Generator().manual_seed(1))
    pos = patch_grid(6, 8)
    encoding = vispe.create_encoding("sincos2d", dim=96, num_heads=2)
    assert position_r2(noise, pos.coords[0]).max() < 0.05
    assert position_r2(encoding.tokens(0.2 * noise, encoding.prepare(pos)), pos.coords[0]).min() > 0.9


def test_decodability_begins_where_the_encoding_acts(images):
    found = decodability(vit("sincos2d"), images)
    assert found.places == ("patches", "input", "block 0", "block 1") and found.r2.shape == (4, 2)
    assert found.r2[0].max() < 0.1 and found.r2[1:].min() > 0.8
    assert decodability(vit("none"), images).r2.max() < 0.1
    with pytest.raises(ValueError, match="at least 4 images"):
        decodability(vit("none"), images[:3])


# ---- padding ------------------------------------------------------------------------------------------------------------


def test_padding_pattern_of_convolutions_only():
    assert padding_pattern(vit("none"), SIZE).strength.max() < 1e-5
    assert padding_pattern(vit("rope_mixed", **POOLED), SIZE).strength.max() < 1e-5
    found = padding_pattern(vit("cpe"), SIZE)
    strength = dict(zip(found.places, found.strength.tolist()))
    assert strength["patches"] < 1e-5 and strength["input"] < 1e-5 < 0.05 < strength["block 0"]  # PEG stands behind block 0
    cells = found.maps[2]
    assert cells[0].mean() > 1.2 * cells[1:-1, 1:-1].mean(), "the border is where zeros are"


# ---- relevance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant, way", [
    ("none", None), ("learned", "tokens"), ("rope_mixed", "scores"), ("alibi2d", "bias"), ("cpe", "between"),
    ("gta2d", "values"), ("mix_ffn", "mlp"), ("irpe_qkv", "values"), ("md_lrpe", "scores"),
])  # fmt: skip
def test_relevance_is_conserved_and_names_the_way(variant, way, images):
    model = vit(variant)
    found = relevance(model, images[:1], target=2)
    assert found.error < 1e-3 and found.content.shape == (6, 8)
    used = {name for name, value in found.ways.items() if value != 0}
    assert (way in used) if way else not used
    with torch.no_grad():
        nothing = run(vit("none"), *patches_of(model, torch.zeros(1, 3, *SIZE)))[1][0, 2]
        whole = model(images[:1])[0, 2]
    if variant in ("rope_mixed", "learned", "alibi2d"):  # their weights beside the encoding are those of "none"
        assert found.total == pytest.approx(float(whole - nothing), abs=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_relevance_of_a_sum_is_the_sum():
    """A model that only adds up its patches: relevance of a patch is its own part, and position has none."""
    model = vit("none", depth=1, num_classes=1, **POOLED)
    with torch.no_grad():
        model.blocks[0].attn.proj.weight.zero_()
        model.blocks[0].mlp.fc2.weight.zero_()
        model.norm = model.fc_norm = torch.nn.Identity()
        image = textures(1, SIZE, seed=5)
        patches, empty = patches_of(model, image)[0], patches_of(model, 0 * image)[0]
        parts = (model.head.weight @ (patches - empty)[0].mT)[0] / 48
    found = relevance(model, image)
    assert_close(found.content.flatten(), parts, atol=1e-6, rtol=1e-4)
    assert found.position.abs().max() == 0


def test_relevance_refuses(images):
    with pytest.raises(ValueError, match="one image, got a batch of 8"):
        relevance(vit("none"), images)
    with pytest.raises(ValueError, match="class from 0 to 4, got 5"):
        relevance(vit("none"), images[:1], target=5)


def test_models_without_a_classifier_are_explained_along_their_features(images):
    found = relevance(vit("rope_mixed", num_classes=0), images[:1])
    assert found.target is None and found.error < 1e-3


# ---- three cells --------------------------------------------------------------------------------------------------------


def test_three_cells_answers_are_what_the_images_show():
    images, answers = three_cells(50, (5, 7), (4, 4))
    assert images.shape == (50, 3, 20, 28) and answers.shape == (50, 6)
    cells = images[:, :, ::4, ::4]
    places = [(cells[:, i] > 1).flatten(1).int().argmax(-1) for i in range(3)]
    rows, cols = ([p // 7 for p in places], [p % 7 for p in places])
    want = [line[a] < line[b] for line in (rows, cols) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert_close(answers, torch.stack(want, -1).float())
    assert ((cells != 0).any(1).sum((1, 2)) == 3).all()
    with pytest.raises(ValueError, match="at least 3 rows"):
        three_cells(1, (2, 5), (4, 4))


def test_probe_answers_with_positions_and_guesses_without():
    with_positions = three_cell(vit("sincos2d", **POOLED), SIZE, images=512)
    without = three_cell(vit("none", **POOLED), SIZE, images=512)
    assert with_positions.accuracy.mean() > 0.85
    assert abs(float(without.accuracy.mean()) - 0.5) < 0.1


def test_training_a_copy_leaves_the_model_and_random_numbers_alone():
    model = vit("sincos2d", patch_size=16, **POOLED)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    found = three_cell(model, SIZE, mode="train", images=512, steps=150, batch=64)
    assert_close(torch.rand(3), expected)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert found.accuracy.mean() > 0.6
    with pytest.raises(ValueError, match="'probe' or 'train'"):
        three_cell(model, SIZE, mode="tune")


def test_textures_look_alike_everywhere():
    made = textures(64, (16, 24), channels=2)
    assert made.shape == (64, 2, 16, 24) and torch.equal(made, textures(64, (16, 24), channels=2))
    spread = made.std((0, 1))  # of each pixel over images
    assert spread.max() / spread.min() < 2 and made.mean((2, 3)).abs().max() < 1e-5
