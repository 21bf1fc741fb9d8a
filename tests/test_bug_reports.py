"""Public reports of wrong positions, each with its smallest input and the right value.

One test a report, named by a repository and a number; the first line says what went wrong there.
"""

import copy
import math

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models import save_for_hf

from vispe.encodings import ENCODINGS, create_encoding
from vispe.encodings.functional import resample_table, rotate
from vispe.encodings.rotary import Rotary
from vispe.layers import attend
from vispe.models.vit_zoo import VARIANTS
from vispe.positions import custom_positions, patch_grid

TINY = dict(embed_dim=64, depth=2, num_heads=2, mlp_ratio=2.0, patch_size=8, img_size=(32, 32), num_classes=5)


def vit(variant, *, seed=0, **kwargs):
    torch.manual_seed(seed)
    return timm.create_model(f"vit_ti_{variant}", **{**TINY, **kwargs}).eval()


def images(height=32, width=32, *, batch=2):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def encoding(name, **options):
    torch.manual_seed(0)
    return create_encoding(name, dim=128, num_heads=2, depth=2, **options).eval()


def close(a, b, tol=1e-5):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def learned(grid, dim, rows, *, prefix=0, **options):
    """A learned table with given rows, (prefix rows + cells, C)."""
    table = create_encoding("learned", dim=dim, num_heads=1, grid=grid, prefix=prefix, **options)
    table.pos_embed.data = rows[None].clone()
    return table


# ---- learned tables at other sizes --------------------------------------------------------------------------------------


def test_timm_2190_table_of_a_rectangular_image():
    """The source grid was assumed square."""
    table = learned((4, 12), 1, torch.arange(48.0)[:, None])
    rows = table.prepare(patch_grid(5, 7))[0, :, 0].view(5, 7)
    close(rows[0], torch.tensor([-0.141, 1.515, 3.285, 4.981, 6.677, 8.447, 10.102]), 1e-3)
    close(rows[-1, [0, -1]], torch.tensor([36.898, 47.141]), 1e-3)
    want = F.interpolate(torch.arange(48.0).view(1, 1, 4, 12), (5, 7), mode="bicubic", antialias=True)
    close(rows, want[0, 0])


def test_timm_1365_table_without_prefix_rows():
    """Rows were shifted by the number of prefix tokens, though the table had none for them."""
    body = torch.randn(16, 8)
    table = learned((4, 4), 8, body, prefix=5, prefix_rows=False)
    assert table.set_grid((6, 6)) == ["pos_embed resampled from (4, 4) to (6, 6)"]
    assert table.pos_embed.shape == (1, 36, 8)
    want = F.interpolate(body.mT.view(1, 8, 4, 4), (6, 6), mode="bicubic", antialias=True).flatten(2).mT
    close(table.pos_embed.detach(), want)
    added = table.prepare(patch_grid(6, 6, prefix=5))
    assert torch.equal(added[:, :5], torch.zeros(1, 5, 8)) and torch.equal(added[:, 5:], table.pos_embed)


def test_timm_426_distilled_models_have_two_prefix_rows():
    """One prefix row was split off where there are two."""
    rows = torch.randn(2 + 16, 8)
    table = learned((4, 4), 8, rows, prefix=2, prefix_rows=True)
    table.set_grid((6, 6))
    assert table.pos_embed.shape == (1, 38, 8) and torch.equal(table.pos_embed[0, :2], rows[:2])
    close(table.pos_embed[:, 2:].detach(), resample_table(rows[None, 2:], (4, 4), (6, 6), antialias=True, mode="bicubic"))


@pytest.mark.parametrize("old", [7, 14, 16, 24, 37])
def test_dino_8_sizes_are_not_rounded(old):
    """A scale factor in floating point lost a row: 37 to 39 gave 38."""
    table = torch.randn(1, old * old, 1)
    for new in range(5, 40):
        assert resample_table(table, (old, old), (new, new), antialias=True, mode="bicubic").shape[1] == new * new
        assert resample_table(table, (old, old), (new, 3), antialias=False, mode="bicubic").shape[1] == new * 3


@pytest.mark.parametrize("antialias", [True, False])
def test_waft_2_rows_stay_rows(antialias):
    """Height and width were swapped twice: right for squares only."""
    rows = torch.arange(3.0).repeat_interleave(5)[None, :, None]
    out = resample_table(rows, (3, 5), (6, 10), antialias=antialias, mode="bicubic").view(6, 10)
    close(out, out[:, :1].expand(6, 10))
    assert (out[:, 0].diff() > 0).all()


def test_dinov2_288_no_resampling_in_a_graph_of_fixed_size():
    """Antialiased bicubic resampling has no ONNX operator; it belongs into set_input_size."""
    model = vit("learned")
    model.set_input_size((40, 24))
    program = torch.export.export(model, (images(40, 24),))
    names = [str(node.target) for node in program.graph.nodes]
    assert not any("upsample" in n or "interpolate" in n for n in names)
    assert any("scaled_dot_product" in n for n in names)
    close(program.module()(images(40, 24)), model(images(40, 24)))


# ---- prefix tokens and dropped tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, cls in ENCODINGS.items() if issubclass(cls, Rotary) and cls.card.relative])
def test_timm_2549_dropped_patches_keep_their_positions(name):
    """Kept patches got the first positions, or the table had the wrong length."""
    e = encoding(name)
    pos = patch_grid(4, 4)
    keep = torch.tensor([15, 3, 8, 0, 6, 12, 9, 2])
    q, k = torch.randn(2, 1, 2, 16, 64).unbind(0)
    full, part = e.prepare(pos), e.prepare(pos.take(keep))
    a, b = e.qk(q, k, full, full)
    c, d = e.qk(q[:, :, keep], k[:, :, keep], part, part)
    close(c @ d.mT, (a @ b.mT)[:, :, keep][..., keep], 1e-4)


@pytest.mark.parametrize("variant", ["rope_axial", "rope_mixed"])
def test_timm_2549_a_training_step_with_dropped_patches(variant):
    """The rotary table had a row for every patch, the tokens only for kept ones."""
    model = vit(variant, patch_drop_rate=0.5).train()
    model(images()).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_timm_2676_prefix_tokens_reach_the_blocks(variant):
    """Without a position table, class and register tokens were lost."""
    model = vit(variant, class_token=True, reg_tokens=4, global_pool="token")
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape))
    model(images())
    assert seen == [(2, 21, 64)]


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "rope_dinov3"])
def test_controlar_18_prefix_rows_come_first_and_do_not_turn(name):
    """A table of zeros for prefix tokens zeroed their queries, or stood at the wrong end."""
    e = encoding(name)
    ctx, bare = e.prepare(patch_grid(2, 2, prefix=3)), e.prepare(patch_grid(2, 2))
    assert (ctx.cos[:, :, :3] == 1).all() and (ctx.sin[:, :, :3] == 0).all()
    close(ctx.cos[:, :, 3:], bare.cos)
    close(ctx.sin[:, :, 3:], bare.sin)
    q = torch.randn(1, 2, 7, 64)
    assert torch.equal(e.qk(q, q, ctx, ctx)[0][:, :, :3], q[:, :, :3])
    if name == "rope_axial":  # row 3 is patch (0, 0), row 4 patch (0, 1): column angles only, and columns stand first
        angle = torch.atan2(ctx.sin, ctx.cos)[0, 0]
        close(angle[3:6, [0, 16]], torch.tensor([[0.0, 0], [1, 0], [0, 1]]))
        assert (angle[3] == 0).all() and (angle[4, 16:] == 0).all() and (angle[5, :16] == 0).all()


def test_vit_pytorch_173_positions_travel_with_tokens():
    """A masked decoder concatenated visible and masked tokens and numbered them anew."""
    for name in ("rope_axial", "rope_mixed", "comrope", "gta2d"):
        e = encoding(name)
        pos, order = patch_grid(3, 3), torch.tensor([4, 8, 0, 2, 6, 1, 3, 5, 7])
        q, k, v = torch.randn(3, 1, 2, 9, 64).unbind(0)
        ctx, moved = e.prepare(pos), e.prepare(pos.take(order))
        want = attend(q, k, v, e, ctx, ctx, scale=0.1)[:, :, order]
        close(attend(q[:, :, order], k[:, :, order], v[:, :, order], e, moved, moved, scale=0.1), want)


# ---- state and loading --------------------------------------------------------------------------------------------------


def test_timm_2692_options_survive_saving(tmp_path):
    """A converted model lost its rotary layout without a word."""
    model = vit("rope_dinov3", encoding_kwargs=dict(base=30.0, normalize="min", resize="extend"), reg_tokens=2)
    save_for_hf(model, tmp_path, model_config={"tag": "x"}, safe_serialization=True)
    twin = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert torch.equal(twin(images(40, 24)), model(images(40, 24)))
    assert not torch.allclose(vit("rope_dinov3", reg_tokens=2)(images(40, 24)), model(images(40, 24)))


@pytest.mark.parametrize("variant", ["rope_axial", "rope_dinov3", "sincos2d", "comrope", "irpe", "gta2d"])
def test_transformers_45902_nothing_outside_the_state_dict(variant):
    """After loading from the meta device, a frequency buffer that was never filled again held garbage."""
    model = vit(variant)
    with torch.device("meta"):
        shell = timm.create_model(f"vit_ti_{variant}", **TINY)
    shell = shell.to_empty(device="cpu").eval()
    shell.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(shell(images(40, 24)), model(images(40, 24)))


def test_torchtitan_316_frequencies_are_configuration():
    """Persistent frequencies in a file overrode the configuration, or had the wrong length."""
    for variant, option in (("rope_axial", "theta"), ("rope_dinov3", "base"), ("sincos2d", "theta"), ("gta2d", "theta")):
        old, new = vit(variant), vit(variant, encoding_kwargs={option: 7.0})
        assert not [k for k in old.state_dict() if k.startswith("encoding.")]
        fresh = new(images())
        new.load_state_dict(old.state_dict(), strict=True)
        assert torch.equal(new(images()), fresh) and not torch.allclose(new(images()), old(images()), atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_anemoi_743_no_buffer_is_registered_anew(variant):
    """Averaging swapped the contents of two buffers that a forward had registered in another order."""
    model = vit(variant)
    before = [(n, id(b)) for n, b in model.named_buffers()]
    model(images()), model(images(40, 24))
    assert [(n, id(b)) for n, b in model.named_buffers()] == before


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_21118_no_parameter_is_idle(variant):
    """Parameters of a switched-off table broke data-parallel training."""
    model = vit(variant).train()
    model(images()).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_equinox_no_shared_caches():
    """A cache by size alone let modules with other thetas share one table (and rotary-embedding-torch reused offsets)."""
    pos = patch_grid(4, 4)
    a, b = encoding("rope_axial", theta=100.0), encoding("rope_axial", theta=50.0)
    first = a.prepare(pos)
    assert not torch.equal(first.cos, b.prepare(pos).cos) and torch.equal(first.cos, a.prepare(pos).cos)


# ---- precision ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rope_axial", "rope_dinov3", "gta2d"])
@pytest.mark.parametrize("offset", [0, 256, 1024, 65536])
def test_transformers_29496_positions_in_half_precision(name, offset):
    """bfloat16 tells 3 of 16 neighbours apart at 1024, and one at 65536."""
    line = torch.stack((torch.full((16,), float(offset)), torch.arange(16.0) + offset), dim=-1)
    assert len(torch.arange(600).bfloat16().unique()) == 407  # the reason
    e = encoding(name)
    want = e.prepare(custom_positions(line))
    for dtype in (torch.bfloat16, torch.float16):
        got = copy.deepcopy(e).to(dtype).prepare(custom_positions(line))
        assert got.cos.dtype == torch.float32
        assert torch.equal(got.cos, want.cos) and torch.equal(got.sin, want.sin)
    assert len(want.sin[0, 0].unique(dim=0)) == 16


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "comrope", "rope_dinov3"])
def test_diffusers_13920_autocast_does_not_round_positions(name):
    """A product of positions and frequencies by matmul is downcast: positions from 65536 on fell together in steps of 512."""
    model = vit(name)
    line = torch.stack((torch.zeros(16), 65536 + torch.arange(16.0)), dim=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, cast = model.encoding.layer(model.encoding.prepare(custom_positions(line)), 0)
    _, plain = model.encoding.layer(model.encoding.prepare(custom_positions(line)), 0)
    assert torch.equal(cast.cos, plain.cos) and torch.equal(cast.sin, plain.sin)
    assert len(cast.cos[0, 0].unique(dim=0)) == 16


@pytest.mark.parametrize("variant", ["rope_dinov3", "rope_axial", "comrope", "gta2d"])
def test_dinov3_181_bfloat16_features(variant):
    """Features in bfloat16 looked visibly worse: here at least 0.999 of cosine for every patch, at 14 x 14 with heads of 64."""
    torch.manual_seed(0)
    model = timm.create_model(f"vit_s_{variant}", depth=2, img_size=112, patch_size=8, num_classes=0).eval()
    half = copy.deepcopy(model).bfloat16()
    x = images(112, 112)
    a, b = half.forward_features(x.bfloat16()).float(), model.forward_features(x)
    assert torch.cosine_similarity(a, b, dim=-1).min() > 0.999
    if not list(model.encoding.parameters()):
        pos = model.positions(14, 14)
        for p, q in zip(half.encoding.prepare(pos), model.encoding.prepare(pos)):
            assert torch.equal(p.cos, q.cos) and torch.equal(p.sin, q.sin)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_skyrl_1725_blanket_casts(variant, dtype):
    """Complex frequencies cannot be cast, and cast buffers gave NaN."""
    model = vit(variant).to(dtype)
    assert not any(t.is_complex() for t in (*model.state_dict().values(), *model.buffers()))
    assert model(images(40, 24).to(dtype)).isfinite().all()


# ---- rotations ----------------------------------------------------------------------------------------------------------


def test_vggt_omega_35_wavelengths_have_a_unit():
    """theta means nothing without the unit of the coordinates: wavelengths in patches, 16 pairs an axis, theta 100."""
    index, normalised = encoding("rope_axial", theta=100.0), encoding("rope_dinov3", base=100.0)
    last = 100 ** (15 / 16)
    for side in (14, 37):
        grid = (side, side)
        for e, first in ((index, 2 * math.pi), (normalised, side / 2)):
            waves = e.wavelengths(grid)[0]
            assert waves.min().item() == pytest.approx(first, rel=1e-4)
            assert waves.max().item() == pytest.approx(first * last, rel=1e-4)
    assert index.wavelengths((14, 14)).max().item() == pytest.approx(471, abs=0.5)
    assert normalised.wavelengths((14, 14)).max().item() == pytest.approx(525, abs=0.5)
    assert normalised.wavelengths((37, 37)).max().item() == pytest.approx(1387, abs=1)


@pytest.mark.parametrize("name", [n for n, cls in ENCODINGS.items() if issubclass(cls, Rotary)])
def test_megatron_7465_no_turn_at_the_origin(name):
    """cos of cos, .5403 at position 0, where nothing may turn."""
    e = encoding(name)
    ctx = e.prepare(custom_positions(torch.zeros(3, 2)))
    q, k = torch.randn(2, 1, 2, 3, 64).unbind(0)
    a, b = e.qk(q, k, ctx, ctx)
    close(a @ b.mT, q @ k.mT, 1e-4)


@pytest.mark.parametrize("name", ["rope_axial", "rope_dinov3", "gta2d"])
def test_open_lm_4_tokens_turn_and_heads_do_not(name):
    """Rotation ran along the heads, unnoticed when there were as many heads as tokens."""
    torch.manual_seed(0)
    e = create_encoding(name, dim=48, num_heads=3)
    ctx = e.prepare(custom_positions(torch.arange(6.0).view(3, 2)))
    same = torch.randn(1, 1, 1, 16).expand(1, 3, 3, 16)
    q, _ = e.qk(same, same, ctx, ctx)
    assert torch.equal(q[:, 0], q[:, 1]) and torch.equal(q[:, 0], q[:, 2])  # heads alike
    assert (q[0, 0, 0] - q[0, 0, 1]).abs().max() > 0.1  # tokens apart
    x = torch.randn(1, 3, 3, 16)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(e.qk(x[:, order], x, ctx, ctx)[0], e.qk(x, x, ctx, ctx)[0][:, order])


def test_rotary_embedding_torch_11_offsets_count():
    """A cache that did not know offsets returned the angles of the first call."""
    e = encoding("rope_axial")
    pos = patch_grid(4, 4)
    e.prepare(pos)
    moved = e.prepare(custom_positions(pos.coords[0] + 10))
    omega = e.frequencies()[0].sum(0)  # every pair turns with one axis
    a, b = e.prepare(pos), moved
    turn = torch.atan2(b.sin * a.cos - b.cos * a.sin, b.cos * a.cos + b.sin * a.sin)[0, 0]
    want = torch.remainder(10 * omega + math.pi, 2 * math.pi) - math.pi
    close(turn, want.expand_as(turn), 1e-5)


@pytest.mark.parametrize("variant", ["rope_mixed", "comrope", "gta2d", "rope_dinov3"])
def test_diffusers_12668_no_complex_numbers_in_graphs(variant):
    """Complex rotations break compilers and exporters."""
    program = torch.export.export(vit(variant), (images(),))
    assert not any("complex" in str(node.target) or "polar" in str(node.target) for node in program.graph.nodes)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert not any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def test_timm_2541_columns_are_not_rows():
    """In "xy" order on a non-square grid, token 1 is at x = 1, y = 0."""
    angle = encoding("rope_axial").prepare(patch_grid(2, 3))
    angle = torch.atan2(angle.sin, angle.cos)[0, 0]  # channel pairs: 16 of x, then 16 of y
    close(angle[[0, 1, 3]][:, [0, 16]], torch.tensor([[0.0, 0], [1, 0], [0, 1]]))


def test_timm_2794_dtype_of_queries_stays():
    """float32 tables turned bfloat16 queries into float32."""
    for name in ("rope_axial", "rope_mixed", "comrope", "rope_dinov3", "gta2d"):
        e = encoding(name)
        ctx = e.prepare(patch_grid(4, 4))
        q = torch.randn(1, 2, 16, 64, dtype=torch.bfloat16)
        a, b = e.qk(q, q, ctx, ctx)
        assert a.dtype == b.dtype == e.v(q, ctx).dtype == torch.bfloat16 and ctx.cos.dtype == torch.float32
    table = encoding("rope_axial").bfloat16().prepare(patch_grid(64, 64))
    assert (table.cos[0, 0, :64, 0] - torch.arange(64, dtype=torch.float64).cos()).abs().max() < 2e-3


@pytest.mark.parametrize("variant", ["rope_axial", "rope_mixed", "comrope", "sincos2d", "learned", "irpe"])
def test_rope_vit_equal_counts_are_not_equal_grids(variant):
    """A grid was recognised by its number of tokens: 2 x 8 patches ran with the positions of 4 x 4."""
    model = vit(variant)
    for p in model.encoding.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    x = torch.randn(1, 16, 64)
    outs = []
    for grid in ((4, 4), (2, 8), (16, 1)):
        y, ctx = model.start(x, model.positions(*grid))
        for i in range(2):
            y = model.run_block(i, y, ctx)
        outs.append(y)
    assert min((outs[0] - outs[1]).abs().max(), (outs[0] - outs[2]).abs().max(), (outs[1] - outs[2]).abs().max()) > 1e-4


@pytest.mark.parametrize("variant", ["rope_mixed", "irpe", "learned"])
def test_a_transposed_image_is_a_transposed_grid(variant):
    """5 x 7 and 7 x 5 differ, and are each other's transpose: kernels and axes swapped, the class token sees no difference."""
    model = vit(variant, img_size=(40, 56))
    for p in model.encoding.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    x = images(40, 56)
    twin = copy.deepcopy(model)
    twin.patch_embed.proj.weight.data = model.patch_embed.proj.weight.data.mT.contiguous()
    if variant == "learned":
        twin.set_input_size((56, 40))
        table = model.encoding["learned"].pos_embed.data
        body = table[:, 1:].view(1, 5, 7, 64).transpose(1, 2).flatten(1, 2)
        twin.encoding["learned"].pos_embed.data = torch.cat((table[:, :1], body), dim=1)
    for layer in twin.encoding[variant] if variant != "learned" else []:
        if variant == "rope_mixed":
            layer.freqs.data = layer.freqs.data.flip(1)
        else:
            cells = layer.k[0].data[..., :-1].unflatten(-1, (7, 7)).transpose(-1, -2).flatten(-2)
            layer.k[0].data = torch.cat((cells, layer.k[0].data[..., -1:]), dim=-1)
    close(twin(x.mT.contiguous()), model(x))
    assert (twin(x) - model(x)).abs().max() > 1e-4


def test_rope_vit_training_step_of_mixed_frequencies():
    """Writing rotated queries into a view made the float32 backward fail, compiled or not."""
    model = vit("rope_mixed").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (model, compiled):
        model.zero_grad()
        run(images()).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads):
        close(a, b, 1e-4)
    torch.compiler.reset()


# ---- ComRoPE, LieRE, DINOv3 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["comrope_ap", "comrope_ld"])
def test_comrope_matrices(name):
    """Orthogonal in float32, commuting, the identity for S = 0 (with a finite, non-zero gradient), prefix turned at 1/2."""
    e = encoding(name)
    r = e.matrices(patch_grid(5, 7, prefix=1))
    close(r @ r.mT, torch.eye(8).expand_as(r), 1e-5)
    close(r[:, :1] @ r[:, 5:6], r[:, 5:6] @ r[:, :1], 1e-5)
    assert (r[:, 0] - torch.eye(8)).abs().max() > 0.1
    q, k, v = torch.randn(3, 1, 2, 35, 64).unbind(0)
    here, there = (e.prepare(custom_positions(patch_grid(5, 7).to("unit", "rescale")[0] + o)) for o in (0.0, 1.7))
    (a, b), (c, d) = e.qk(q, k, here, here), e.qk(q, k, there, there)
    close(a @ b.mT, c @ d.mT, 1e-4)
    e.skew.data.zero_()
    ctx = e.prepare(patch_grid(5, 7))
    a, b = e.qk(q, k, ctx, ctx)
    close(a @ b.mT, q @ k.mT, 1e-4)
    attend(q, k, v, e, ctx, ctx, scale=0.125).square().sum().backward()
    assert e.skew.grad.isfinite().all() and e.skew.grad.abs().max() > 0


def test_comrope_autocast_step_and_multipliers():
    """A bfloat16 autocast step runs; shared and per-head multipliers have the sizes of code and paper."""
    model = vit("comrope").train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(images()).square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert encoding("comrope").multiplier.shape == (1, 2, 8)
    assert encoding("comrope", multiplier="per_head").multiplier.shape == (2, 2, 8)


def test_rope_vit_12_a_third_axis_starts_turning():
    """A third table of frequencies that starts at zero never takes part."""
    freqs = create_encoding("rope_mixed", dim=96, num_heads=2, axes=3).freqs
    assert (freqs.abs().amax(dim=-1) > 1e-3).all()


def test_dinov3_draws_only_in_training():
    """Shift, jitter and rescale: one draw a forward in train(), none in eval(); "separate" on a non-square image."""
    e = encoding("rope_dinov3", shift=0.2, jitter=1.2, rescale=2.0)
    pos = patch_grid(3, 5)
    assert torch.equal(e.prepare(pos).cos, encoding("rope_dinov3").prepare(pos).cos)
    coords = e.coordinates(pos)[0].view(3, 5, 2)
    close(coords[:, 0, 0], torch.tensor([-2 / 3, 0, 2 / 3]))
    close(coords[0, :, 1], torch.tensor([-0.8, -0.4, 0, 0.4, 0.8]))
    e.train()
    a, b = e.prepare(pos).cos, e.prepare(pos).cos
    assert not torch.equal(a, b)
    torch.manual_seed(3)
    first = e.prepare(pos).cos
    torch.manual_seed(3)
    assert torch.equal(first, e.prepare(pos).cos)
    model = vit("rope_dinov3", encoding_kwargs={"rescale": 2.0}).train()
    _, ctx = model.start(torch.randn(1, 16, 64), model.positions(4, 4))
    contexts = [model.encoding.layer(ctx, i)[1] for i in range(2)]
    assert torch.equal(contexts[0].cos, contexts[1].cos)  # one draw for all layers


def test_contiguity_of_matrix_exponentials():
    """torch.matrix_exp fails on some strided inputs, such as the results of einsum."""
    r = encoding("comrope").matrices(patch_grid(3, 3).take(torch.tensor([[0, 4], [8, 2]])))
    assert r.shape == (2, 2, 2, 8, 8, 8) and r.isfinite().all()


# ---- attention, compilation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["contextual", "bias"])
def test_x_transformers_347_biases_get_gradients(mode):
    """A bias was ignored, or got no gradient, in fused attention."""
    grads, outs = [], []
    for fused in (True, False):
        e = encoding("irpe", mode=mode, on="qk", shared_head=False)
        for p in e.parameters():
            p.data.add_(0.1)
        ctx = e.prepare(patch_grid(3, 4))
        torch.manual_seed(1)
        q, k, v = torch.randn(3, 2, 2, 12, 64).unbind(0)
        out = attend(q, k, v, e, ctx, ctx, scale=0.125, fused=fused)
        (out * torch.randn_like(out)).sum().backward()
        grads.append([p.grad for p in e.parameters()])
        outs.append(out)
    want = ((q @ k.mT) * 0.125 + e.bias(q, k, ctx, ctx)).softmax(-1) @ v
    close(outs[0], want)
    for a, b in zip(*grads):
        assert a.abs().max() > 0
        close(a, b)


def test_pytorch_150702_two_graphs_for_four_sizes():
    """A message with the size in it tied a graph to each resolution; equal sides tied height to width."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = vit("rope_mixed_ape")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=count, dynamic=True)
    with torch.no_grad():
        for size in ((64, 64), (32, 48), (48, 32), (40, 56)):
            close(compiled(images(*size)), model(images(*size)))
    torch.compiler.reset()
    assert len(graphs) <= 2


def test_layouts_of_pairs_differ():
    """Interleaved and half layouts, taken for each other, run without an error and give other numbers."""
    x, angle = torch.randn(1, 1, 3, 8), torch.rand(1, 1, 3, 4)
    a, b = (rotate(x, angle.cos(), angle.sin(), layout) for layout in ("interleaved", "half"))
    assert (a - b).abs().max() > 0.1
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    close(rotate(x[..., order], angle.cos(), angle.sin(), "half"), a[..., order])
