"""Networks on log offsets: coordinates, windows of training, sides of 1, how often the network runs (the kind of D13a)."""

import math

import pytest
import torch
from generic_helpers import close, excite
from timm.layers.pos_embed_rel import RelPosMlp, gen_relative_log_coords

from vispe.encodings import create_encoding, fire2d, swinv2_cpb, timm_rel_mlp
from vispe.encodings.offsets import unique_offsets
from vispe.encodings.swinv2_cpb import log_coords
from vispe.layers import attend
from vispe.positions import custom_positions, patch_grid


def make(name="swinv2_cpb", **options):
    torch.manual_seed(0)
    return excite(create_encoding(name, dim=8, num_heads=2, **options)).eval()


def test_coordinates_at_a_larger_window():
    """Window 16 after training at 8: the farthest offset is 1.394, not squeezed back to 1.057."""
    assert log_coords(torch.tensor([15.0, -15.0]), (8, 8))[0].item() == pytest.approx(1.3938, abs=1e-4)
    assert log_coords(torch.tensor([15.0, -15.0]), (16, 16)).tolist() == pytest.approx([1.0566, -1.0566], abs=1e-4)
    for window, trained in [((3, 5), (0, 0)), ((4, 4), (2, 3))]:
        want = gen_relative_log_coords(window, trained, mode="swin").flatten(0, 1)
        close(log_coords(unique_offsets(window), trained if any(trained) else window), want)


def test_which_window_divides():
    """That of training (the host's grid), another one if named, the window at hand only if asked for."""
    big = patch_grid(16, 16)
    trained, named, own = (make(**o) for o in (dict(grid=(8, 8)), dict(grid=(5, 5), pretrained_window=(8, 8)), dict(grid=None)))
    official = make(grid=(8, 8), pretrained_window=(0, 0))
    close(trained.prepare(big).pairs, named.prepare(big).pairs)
    close(own.prepare(big).pairs, official.prepare(big).pairs)
    assert (own.prepare(big).pairs - trained.prepare(big).pairs).abs().max() > 1e-2
    assert torch.equal(own.prepare(patch_grid(8, 8)).pairs, trained.prepare(patch_grid(8, 8)).pairs)


@pytest.mark.parametrize(
    "name, options", [("swinv2_cpb", {}), ("timm_rel_mlp", {"mode": "swin"}), ("timm_rel_mlp", {}), ("fire2d", {})]
)
def test_sides_of_one(name, options):
    """The official code and timm divide 0 by 0 here."""
    for size in [(1, 1), (1, 6), (6, 1)]:
        encoding = make(name, grid=size, **options)
        pairs = encoding.prepare(patch_grid(*size)).pairs
        pairs.sum().backward()
        assert pairs.isfinite().all() and all(p.grad.isfinite().all() for p in encoding.parameters())


@pytest.mark.parametrize("name, module", [("swinv2_cpb", swinv2_cpb), ("timm_rel_mlp", timm_rel_mlp), ("fire2d", fire2d)])
def test_the_network_runs_on_unique_offsets(name, module, monkeypatch):
    rows = []
    network = module.offset_mlp
    monkeypatch.setattr(module, "offset_mlp", lambda x, *rest: rows.append(x[..., 0].numel()) or network(x, *rest))
    encoding = make(name, grid=(5, 7))
    ctx = encoding.prepare(patch_grid(5, 7))
    assert rows == [9 * 13] and ctx.pairs.shape == (1, 2, 35, 35)
    # the same numbers as with one evaluation for each pair
    free = create_encoding(name, dim=8, num_heads=2, grid=(5, 7))
    free.load_state_dict(encoding.state_dict())
    close(free.prepare(custom_positions(patch_grid(5, 7).coords[0])).pairs, ctx.pairs, 1e-5)


@pytest.mark.parametrize("mode, trained", [("cr", (0, 0)), ("swin", (0, 0)), ("swin", (3, 2))])
def test_module_of_timm(mode, trained):
    theirs = RelPosMlp((4, 5), 2, hidden_dim=16, prefix_tokens=1, mode=mode, pretrained_window_size=trained).eval()
    ours = make("timm_rel_mlp", mode=mode, hidden=16, grid=(9, 9), pretrained_window=trained)
    ours.load_state_dict({k.removeprefix("mlp."): v for k, v in theirs.state_dict().items()})
    close(ours.prepare(patch_grid(4, 5, prefix=1)).pairs, theirs.get_bias(), 1e-5)
    theirs.set_window_size((6, 3))
    close(ours.prepare(patch_grid(6, 3, prefix=1)).pairs, theirs.get_bias(), 1e-5)


def test_hidden_dropout_is_an_option():
    pos = patch_grid(3, 3)
    for drop, moves in ((0.0, False), (0.125, True)):
        encoding = make("timm_rel_mlp", hidden_drop=drop).train()
        assert torch.equal(encoding.prepare(pos).pairs, encoding.prepare(pos).pairs) != moves


def test_cosine_attention():
    encoding = make(attention="cosine")
    ctx = encoding.prepare(patch_grid(2, 3))
    q, k, v = torch.randn(3, 2, 2, 6, 4)
    with torch.no_grad():
        encoding.logit_scale.copy_(torch.tensor([math.log(7.0), 50.0]).view(2, 1, 1))
    cosine = torch.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1) * torch.tensor([7.0, 100.0]).view(2, 1, 1)
    want = (cosine + ctx.pairs).softmax(-1) @ v
    close(attend(q, k, v, encoding, ctx, ctx, scale=0.5), want, 1e-4)
    assert encoding.no_decay == ("fc1", "fc2", "logit_scale") and make().logit_scale is None


def test_clear_errors():
    free = custom_positions(torch.randn(4, 2))
    for name, options in [("swinv2_cpb", {}), ("timm_rel_mlp", {"mode": "swin"}), ("fire2d", {})]:
        with pytest.raises(ValueError, match=f"{name}: custom coordinates have no window; create it with grid"):
            make(name, **options).prepare(free)
    with pytest.raises(ValueError, match="must have 2 sides of at least 1 cell, got .0, 4."):
        make(pretrained_window=(0, 4))
    with pytest.raises(ValueError, match="attention must be 'dot' or 'cosine', got 'cos'"):
        make(attention="cos")
    with pytest.raises(ValueError, match="mode must be 'cr' or 'swin', got 'rw'"):
        make("timm_rel_mlp", mode="rw")
