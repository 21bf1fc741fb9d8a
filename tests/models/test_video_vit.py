"""Video transformers: names, sizes, attention in space and time by turns, timm's contract."""

import copy

import pytest
import timm
import torch
from model_helpers import close, stir

from vispe.encodings import ENCODINGS
from vispe.encodings.factorised import merge, split
from vispe.models import video_zoo
from vispe.models.video_zoo import SIZES, VARIANTS

TINY = dict(
    embed_dim=96, depth=2, num_heads=2, mlp_ratio=2.0, patch_size=8, img_size=(16, 24), num_frames=8, tubelet_size=2,
    num_classes=5,
)  # fmt: skip
KINDS = ("joint", "factorised")


def vid(variant, *, seed=0, **kwargs):
    torch.manual_seed(seed)
    model = timm.create_model(f"vid_s_{variant}", **{**TINY, **kwargs})
    if not kwargs.get("features_only"):
        stir(model.encoding)
    return model.eval()


def video(frames=8, height=16, width=24, *, batch=2, seed=1):
    return torch.randn(batch, 3, frames, height, width, generator=torch.Generator().manual_seed(seed))


def test_names():
    names = {f"vid_{size}_{variant}" for size in SIZES for variant in VARIANTS}
    assert set(timm.list_models("vid_*", module="video_zoo")) == names == set(video_zoo.__all__)
    wanted = {"learned_spacetime", "sincos3d", "rope3d", "rope_mixed", "comrope", "comrope_ap", "eva02_at", "cpe", "gta2d"}
    assert wanted <= set(VARIANTS) and "eva02_at_ape" in VARIANTS
    grids = {n for n, c in ENCODINGS.items() if 3 in c.card.axes and set(c.card.needs) <= {"coords", "grid"}}
    assert grids | {"eva02_at_ape"} == set(VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_full_size_names_build(variant):
    for size, kind in zip(SIZES, KINDS):
        with torch.device("meta"):
            model = timm.create_model(f"vid_{size}_{variant}", depth=1, attention=kind)
        assert model.patch_embed.grid_size == (8, 14, 14) and model.num_prefix_tokens == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_frames_and_sizes_with_gradients(variant, kind):
    model = vid(variant, attention=kind).train()
    model(video()).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    with torch.no_grad():
        for size in ((2, 8, 8), (12, 16, 24), (8, 32, 8)):
            assert model(video(*size)).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in ("none", "mix_ffn", "cpe")])
def test_order_of_frames_is_seen(variant, kind):
    """With stirred parameters, swapping tubelets changes the output; without an encoding it cannot."""
    x = video()
    swapped = x[:, :, [6, 7, 2, 3, 4, 5, 0, 1]]
    model, none = vid(variant, attention=kind), vid("none", attention=kind)
    for net in (model, none):
        stir(net.blocks)  # at initialisation attention is nearly uniform
    assert (model(x) - model(swapped)).abs().max() > 1e-4
    close(none(x), none(swapped))


def oracle(block, x, encoding, ctx, frames, places):
    """Space and time by turns, one frame and one place at a time."""
    y = x.clone()
    for t in range(frames):
        rows = slice(t * places, (t + 1) * places)
        y[:, rows] = x[:, rows] + block.attn(block.norm1(x[:, rows]), encoding.space, ctx.space)
    z = y.clone()
    for n in range(places):
        z[:, n::places] = y[:, n::places] + block.attn_time(block.norm_time(y[:, n::places]), encoding.time, ctx.time)
    return z + block.mlp(block.norm2(z))


@pytest.mark.parametrize("variant", ["rope_axial", "eva02_at", "alibi2d"])
def test_factorised_block_is_the_loop_over_frames_and_places(variant):
    model = vid(variant, attention="factorised")
    x = torch.randn(2, 4 * 6, 96)
    ctx = model.encoding.prepare(model.positions(4, 2, 3))
    encoding, layer_ctx = model.encoding.layer(ctx, 1)
    close(model.blocks[1](x, encoding, layer_ctx), oracle(model.blocks[1], x, encoding, layer_ctx, 4, 6))


def test_split_and_merge():
    x = torch.arange(2 * 24).view(2, 24, 1).float()
    for over in ("space", "time"):
        parts = split(x, (4, 2, 3), over)
        assert parts.shape == ((8, 6, 1) if over == "space" else (12, 4, 1))
        assert torch.equal(merge(parts, (4, 2, 3), over), x)
    assert split(x, (4, 2, 3), "time")[0, :, 0].tolist() == [0.0, 6.0, 12.0, 18.0]


def test_axes_of_the_three_parts():
    stack = vid("eva02_at_ape", attention="factorised").encoding
    assert list(stack.joint) == ["learned_spacetime"] and stack.joint["learned_spacetime"].axes == 3
    assert list(stack.space) == list(stack.time) == ["eva02_at"]
    assert (stack.space["eva02_at"].axes, stack.time["eva02_at"].axes) == (2, 3)
    stack = vid("comrope", attention="factorised").encoding
    assert (stack.space.first("comrope").axes, stack.time.first("comrope").axes) == (2, 1)
    assert any(name.startswith("time.comrope.1.") for name in dict(stack.named_parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_is_equal(kind):
    model = vid("comrope", attention=kind)
    twin = copy.deepcopy(model)
    twin.set_grad_checkpointing()
    for m in (model, twin):
        m.train()(video()).square().sum().backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        close(p.grad, q.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_saves_and_reloads(kind, tmp_path):
    from timm.models import save_for_hf

    model = vid("learned_spacetime", attention=kind, img_size=16)
    save_for_hf(model, tmp_path, model_args=dict(TINY, attention=kind, img_size=16), safe_serialization=True)
    same = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert same.attention == kind
    close(same(video(8, 16, 16)), model(video(8, 16, 16)))
    longer = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_frames=12, img_size=24).eval()
    model.set_input_size(24, num_frames=12)
    close(longer(video(12, 24, 24)), model(video(12, 24, 24)))


@pytest.mark.parametrize("kind", KINDS)
def test_input_size_and_model_arguments(kind):
    model = vid("learned_spacetime", attention=kind)
    before = model(video(12, 24, 24))
    done = model.set_input_size(24, num_frames=12)
    assert len(done) == 1 and "resampled from (4, 2, 3) to (6, 3, 3)" in done[0]
    close(model(video(12, 24, 24)), before)
    args = model._model_args
    assert (args["num_frames"], tuple(args["train_size"]), args["train_frames"]) == (12, (16, 24), 8)
    with pytest.raises(ValueError, match=r"9 frames of \(24, 24\) pixels are no multiple of the tubelet \(2, 8, 8\)"):
        model.set_input_size(num_frames=9)
    assert model.patch_embed.num_frames == 12
    model.set_input_size(patch_size=4)
    assert model.patch_embed.grid_size == (6, 6, 6) and model(video(12, 24, 24)).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_coordinates_extend_or_rescale(kind):
    model = vid("rope_axial", attention=kind)
    long = video(16, 16, 24)
    extended = model(long)
    model.set_coords("rescale")
    assert (model(long) - extended).abs().max() > 1e-5
    model.set_coords(None)
    close(model(long), extended)


def test_train_reference_is_apart_from_the_size():
    a = vid("rope_axial", encoding_kwargs={"resize": "rescale"})
    b = vid("rope_axial", encoding_kwargs={"resize": "rescale"}, num_frames=16, train_frames=8)
    b.load_state_dict(a.state_dict())
    close(a(video(16)), b(video(16)))
    assert b.train_grid == (4, 2, 3) and b.patch_embed.grid_size == (8, 2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_features(kind):
    model = vid("rope_mixed", attention=kind)
    last, found = model.forward_intermediates(video(4, 24, 16), indices=[0, 1])
    assert [tuple(f.shape) for f in found] == [(2, 96, 2, 3, 2)] * 2 and last.shape == (2, 12, 96)
    getter = vid("rope_mixed", attention=kind, features_only=True, out_indices=(1,))
    assert getter(video())[0].shape == (2, 96, 4, 2, 3)
    model.reset_classifier(7)
    assert model(video()).shape == (2, 7)
    model.prune_intermediate_layers([0])
    assert model(video()).isfinite().all() and len(model.blocks) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_parameter_groups(kind):
    from timm.models import group_parameters

    model = vid("rope_mixed", attention=kind)
    exempt = {name for name in model.no_weight_decay() if name.startswith("encoding.")}
    assert exempt == {name for name, _ in model.named_parameters() if name.endswith("freqs")} and exempt
    groups = group_parameters(model, model.group_matcher(), reverse=True)
    places = {name: group for name, group in groups.items() if name.startswith("encoding.")}
    assert len(set(places.values())) == 2  # every layer's with its block


@pytest.mark.parametrize("kind", KINDS)
def test_fold(kind):
    model = vid("comrope", attention=kind)
    want = model(video(12, 24, 16))
    close(model.fold()(video(12, 24, 16)), want, tol=1e-4)


def test_class_token_and_patch_drop_in_joint_attention():
    model = vid("rope_axial", class_token=True, reg_tokens=2, global_pool="token", patch_drop_rate=0.5)
    assert model(video()).shape == (2, 5)
    model.train()(video()).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_compile(kind):
    model = vid("rope_mixed", attention=kind).requires_grad_(False)
    x = video()
    close(torch.export.export(model, (x,)).module()(x), model(x), tol=1e-4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in ((8, 16, 24), (4, 24, 16)):
        close(compiled(video(*size)), model(video(*size)), tol=1e-4)
    torch.compiler.reset()


def test_padding():
    model = vid("none", dynamic_img_pad=True)
    assert model(video(7, 15, 20)).shape == (2, 5)
    with pytest.raises(ValueError, match=r"multiples of the tubelet \(2, 8, 8\), got \(7, 16, 24\)"):
        vid("none")(video(7))


def test_refusals():
    with pytest.raises(ValueError, match="attention must be one of"):
        vid("none", attention="divided")
    with pytest.raises(ValueError, match="factorised attention needs every token in its place, got class_token=True"):
        vid("none", attention="factorised", class_token=True)
    with pytest.raises(ValueError, match=r"needs videos \(batch, channels, frames, height, width\), got 4 axes"):
        vid("none")(torch.randn(1, 3, 16, 24))
    with pytest.raises(ValueError, match="a mask over all tokens has no meaning"):
        vid("none", attention="factorised").forward_features(video(), is_causal=True)
    with pytest.raises(ValueError, match=r"no multiple|must be multiples of the tubelet"):
        vid("none", num_frames=9)


def test_heads():
    """64 channels a head as in images, 48 where three axes cannot share 64."""
    assert (video_zoo.heads("s", "rope_mixed"), video_zoo.heads("s", "rope_axial")) == (6, 8)
    assert (video_zoo.heads("b", "eva02_at_ape"), video_zoo.heads("b", "comrope_ap")) == (12, 16)
