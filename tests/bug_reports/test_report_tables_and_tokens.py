"""Learned tables at other sizes, prefix tokens and dropped tokens: public reports and the right values.

One test a report with its smallest input, named by a repository and a number; the first line says what went wrong there.
"""


import pytest
import torch
import torch.nn.functional as F
from report_helpers import close, encoding, images, learned, vit

from vispe.encodings import ENCODINGS
from vispe.encodings.functional import resample_table
from vispe.encodings.rotary import Rotary
from vispe.layers import attend
from vispe.models.vit_zoo import VARIANTS
from vispe.positions import patch_grid

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
