"""Tables over offsets: index, other grids, resampling against timm, errors (the kinds of D12, D13b and D45)."""

import pytest
import torch
from generic_helpers import close
from timm.layers.pos_embed_rel import RelPosBias, RelPosBiasTf, resize_rel_pos_bias_table_simple
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table as timm_resize
from torch import nn

from vispe.encodings import create_encoding
from vispe.encodings.offsets import offset_index, unique_offsets
from vispe.encodings.rel_bias_resize import resize_rel_pos_bias_table
from vispe.layers import attend
from vispe.positions import custom_positions, patch_grid


def table(name="swin_bias", grid=(3, 4), **options):
    torch.manual_seed(0)
    encoding = create_encoding(name, dim=8, num_heads=2, grid=grid, **options)
    nn.init.normal_(encoding.table)
    return encoding


def pairs(encoding, *size, prefix=0):
    return encoding.prepare(patch_grid(*size, prefix=prefix)).pairs[0]


@pytest.mark.parametrize("name, sign", [("swin_bias", 1), ("beit_bias", 1), ("timm_rel_tf", -1)])
def test_one_pair_at_a_time(name, sign):
    encoding = table(name)
    flat = encoding.table.flatten(1).T if name == "timm_rel_tf" else encoding.table
    bias = pairs(encoding, 3, 4)
    for i in range(12):
        for j in range(12):
            dy, dx = sign * (i // 4 - j // 4), sign * (i % 4 - j % 4)
            assert torch.equal(bias[:, i, j], flat[(dy + 2) * 7 + dx + 3])


def test_every_offset_has_its_row():
    offsets = unique_offsets((3, 4))
    assert offsets.shape == (35, 2) and offsets[0].tolist() == [-2, -3] and offsets[17].tolist() == [0, 0]
    cells = patch_grid(3, 4).coords
    index = offset_index(cells, cells, (3, 4))
    close(offsets[index[0]], cells[0][:, None] - cells[0][None])


def test_windows_of_any_shape():
    """Window (4, 12) has 161 rows and uses them all; at (5, 7) there are 117, and nothing of the old index is left."""
    encoding = table(grid=(4, 12))
    cells = patch_grid(4, 12).coords
    index = offset_index(cells, cells, (4, 12))
    assert encoding.table.shape == (161, 2) and index.unique().tolist() == list(range(161))
    assert set(encoding.state_dict()) == {"table"} and not list(encoding.buffers())
    with pytest.raises(RuntimeError, match="size mismatch"):
        table(grid=(5, 7)).load_state_dict(encoding.state_dict())
    assert encoding.set_grid((5, 7)) == ["table resampled (bicubic) from (4, 12) to (5, 7)"]
    assert encoding.table.shape == (117, 2) and encoding.table.requires_grad and encoding.set_grid((5, 7)) == []
    assert pairs(encoding, 5, 7).shape == (2, 35, 35)


@pytest.mark.parametrize("method", ["bicubic", "bilinear", "geometric"])
@pytest.mark.parametrize("name", ["swin_bias", "beit_bias", "timm_rel_tf"])
def test_another_grid_equals_a_table_resampled_for_it(name, method):
    """Input smaller than the window, or larger: what a model built with that window and the resampled table gives."""
    for size in [(2, 3), (5, 4), (3, 9), (1, 1)]:
        options = {"prefix": 1} if name == "beit_bias" else {}
        encoding, fixed = (table(name, resample=method, **options) for _ in range(2))
        assert fixed.set_grid(size)
        close(pairs(encoding, *size, prefix=1), pairs(fixed, *size, prefix=1), 1e-5)


@pytest.mark.parametrize(
    "source, target", [((3, 5), (4, 4)), ((7, 7), (12, 9)), ((9, 6), (4, 5)), ((2, 8), (8, 2)), ((4, 4), (1, 6))]
)
@pytest.mark.parametrize("extra", [0, 3])
def test_geometric_resampling_is_timms(source, target, extra):
    rows = lambda grid: (2 * grid[0] - 1) * (2 * grid[1] - 1) + extra  # noqa: E731
    values = torch.randn(rows(source), 3)
    want = timm_resize(values, target, (rows(target), 3), old_window_size=source)
    close(resize_rel_pos_bias_table(values, source, target, extra_rows=extra), want, 2e-5)
    heads_first = values[: len(values) - extra].T.unflatten(1, [2 * n - 1 for n in source])
    shape = (3, *(2 * n - 1 for n in target))
    close(resize_rel_pos_bias_table(heads_first, source, target), timm_resize(heads_first, target, shape), 2e-5)
    want = resize_rel_pos_bias_table_simple(heads_first, target, shape)
    close(resize_rel_pos_bias_table(heads_first, source, target, method="bicubic"), want, 2e-5)


def test_resampling_never_guesses():
    with pytest.raises(ValueError, match="need 49 rows, the table has shape .52, 2.; name the grid"):
        resize_rel_pos_bias_table(torch.zeros(52, 2), (4, 4), (6, 6))
    with pytest.raises(ValueError, match="resample must be one of"):
        resize_rel_pos_bias_table(torch.zeros(49, 2), (4, 4), (6, 6), method="nearest")
    same = torch.randn(49, 2)
    assert resize_rel_pos_bias_table(same, (4, 4), (4, 4)) is same


@pytest.mark.parametrize("window, prefix", [((3, 5), 1), ((4, 4), 0)])
def test_modules_of_timm(window, prefix):
    theirs = RelPosBias(window, 2, prefix_tokens=prefix)
    ours = table("beit_bias", window, prefix=prefix)
    ours.load_state_dict({"table": theirs.relative_position_bias_table})
    close(pairs(ours, *window, prefix=prefix), theirs.get_bias()[0])
    theirs.set_window_size((5, 4))
    close(pairs(ours, 5, 4, prefix=prefix), theirs.get_bias()[0], 2e-5)
    theirs, ours = RelPosBiasTf(window, 2), table("timm_rel_tf", window, resample="geometric")
    ours.load_state_dict({"table": theirs.relative_position_bias_table})
    close(pairs(ours, *window), theirs.get_bias())
    theirs.set_window_size((6, 3))
    close(pairs(ours, 6, 3), theirs.get_bias(), 2e-5)


def test_prefix_tokens():
    """Nothing for Swin; rows of their own for BEiT, the same ones for every prefix token."""
    bias = pairs(table(), 3, 4, prefix=2)
    assert bias[:, :2].abs().max() == 0 and bias[:, :, :2].abs().max() == 0
    encoding = table("beit_bias", prefix=1)
    bias = pairs(encoding, 3, 4, prefix=2)
    to_token, to_class, both = encoding.table[-3:]
    assert torch.equal(bias[:, 1, 5], to_token) and torch.equal(bias[:, 5, 0], to_class) and torch.equal(bias[:, 0, 1], both)
    with pytest.raises(ValueError, match="beit_bias: the tokens have 1 prefix tokens, but the table has no rows for them"):
        pairs(table("beit_bias"), 3, 4, prefix=1)


def test_clear_errors():
    with pytest.raises(ValueError, match=r"swin_bias: the table belongs to the grid \(3, 4\), the tokens to \(4, 3\)"):
        pairs(table(resample="none"), 4, 3)
    with pytest.raises(ValueError, match="name a way: set_grid"):
        table(resample="none").set_grid((4, 4))
    assert table(resample="none").set_grid((4, 4), "bicubic")
    with pytest.raises(ValueError, match="swin_bias: a table over the offsets of a grid needs grid positions .* custom"):
        table().prepare(custom_positions(torch.randn(5, 2)))
    with pytest.raises(ValueError, match=r"swin_bias: grid must have 2 sides of at least 1 cell, got \(0, 3\)"):
        table(grid=(0, 3))
    encoding = table()
    here, there = encoding.prepare(patch_grid(3, 4)), encoding.prepare(patch_grid(4, 4))
    q = torch.zeros(1, 2, 12, 4)
    with pytest.raises(ValueError, match=r"queries lie in the frame \(3, 4\), keys in \(4, 4\)"):
        encoding.bias(q, q, here, there)


def test_gradients_of_the_fused_kernel():
    """A float mask through scaled_dot_product_attention has a gradient, that of the written-out softmax."""
    encoding = table()
    q, k, v = torch.randn(3, 2, 2, 12, 4)
    grads = []
    for fused in (True, False):
        ctx = encoding.prepare(patch_grid(3, 4))
        out = attend(q, k, v, encoding, ctx, ctx, scale=0.5, fused=fused)
        grads += torch.autograd.grad(out.square().sum(), encoding.table)
    close(*grads, 1e-5)
    assert grads[0].abs().min() > 0


def test_layers_are_built_together():
    """Contexts of several layers equal those of each layer alone."""
    layers = [table(), table()]
    nn.init.normal_(layers[1].table)
    for layer, ctx in zip(layers, type(layers[0]).prepare_layers(layers, patch_grid(4, 2, prefix=1))):
        close(ctx.pairs, layer.prepare(patch_grid(4, 2, prefix=1)).pairs)
