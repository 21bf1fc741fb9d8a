"""ALiBi-2D, LookHere, FIRE and our 2-D FIRE against loops over pairs; what their layers share; errors."""

import math

import pytest
import torch
from generic_helpers import close, excite

from vispe.encodings import EncodingStack, create_encoding
from vispe.encodings.alibi2d import alibi_slopes
from vispe.encodings.lookhere_views import VIEWS, head_views, share_heads
from vispe.positions import custom_positions, full_grid, patch_grid


def own_bias(encoding, pos):
    ctx = encoding.prepare(pos)
    x = torch.zeros(1, encoding.num_heads, pos.prefix + pos.coords.shape[1], 1)
    return encoding.bias(x, x, ctx, ctx)[0]


# ---- ALiBi-2D -----------------------------------------------------------------------------------------------------------


def test_alibi_slopes():
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(6) == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    assert alibi_slopes(12)[8:] == pytest.approx([2 ** -(i + 0.5) for i in range(4)])


def test_alibi_distances():
    bias = own_bias(create_encoding("alibi2d", dim=4, num_heads=2), patch_grid(3, 4, prefix=1))
    for i in range(12):
        for j in range(12):
            far = math.hypot(i // 4 - j // 4, i % 4 - j % 4)
            assert bias[:, i + 1, j + 1].tolist() == pytest.approx([-far / 16, -far / 256])
    assert bias[:, 0].abs().max() == 0 and bias[:, :, 0].abs().max() == 0
    double = patch_grid(6, 8, train=(3, 4))
    extended, rescaled = (create_encoding("alibi2d", dim=4, num_heads=2, resize=r) for r in ("extend", "rescale"))
    close(own_bias(rescaled, double), own_bias(extended, double) / 2)


# ---- LookHere -----------------------------------------------------------------------------------------------------------


def sees(direction, own, other):
    """Row and column of a cell and of another: whether a head that looks that way sees it, in words of the paper."""
    down, right = other[0] - own[0], other[1] - own[1]
    return {
        "up": down <= 0, "down": down >= 0, "left": right <= 0, "right": right >= 0,
        "tri_up": -down >= abs(right), "tri_down": down >= abs(right),
        "tri_left": -right >= abs(down), "tri_right": right >= abs(down),
    }[direction]  # fmt: skip


@pytest.mark.parametrize("directions", ["halves", "corners", "triangles", "diagonals", "eighths1", "eighths2"])
def test_fields_of_view(directions):
    encoding = create_encoding("lookhere", dim=4, num_heads=4, directions=directions, layer_slopes=(1, 1))
    bias = own_bias(encoding, patch_grid(3, 5))
    for head, view in enumerate(VIEWS[directions]):
        join, parts = (any, view.split("|")) if "|" in view else (all, view.split("&"))
        for i in range(15):
            for j in range(15):
                own, other = divmod(i, 5), divmod(j, 5)
                seen = join(sees(part, own, other) for part in parts)
                want = -0.5 * math.dist(own, other) if seen else -torch.finfo(torch.bfloat16).max
                assert bias[head, i, j].item() == pytest.approx(want)


def test_heads_and_slopes():
    views = head_views("halves-none", 12)
    assert [v for v, _ in views] == [*"up down left right up down left right".split(), "", "", "", ""]
    assert [s for _, s in views] == [0.5] * 4 + [0.25] * 4 + [0.25, 0.0625, 0.015625, 0.00390625]
    official = {
        ("a", 8): [8], ("ab", 6): [4, 2], ("ab", 12): [8, 4], ("ab", 16): [8, 8],
        ("abc", 12): [4, 4, 4], ("abc", 16): [8, 4, 4], ("abcd", 16): [4, 4, 4, 4],
    }  # fmt: skip
    for (names, heads), counts in official.items():
        assert [count for _, count in share_heads(list(names), heads)] == counts
    for heads in range(1, 30):
        for kinds in ("halves", "halves-none", "eighths1-eighths2"):
            assert len(head_views(kinds, heads)) == heads
    assert [s for _, s in head_views("halves-halves", 12)] == [0.5] * 4 + [0.25] * 4 + [0.125] * 4  # one run of equal names


def test_layers_share_distances():
    """One base in memory for all layers; each multiplies by its own slope, from the first to the last."""
    stack = EncodingStack("lookhere", dim=24, num_heads=12, depth=3, options={"global_slope": 0.5})
    contexts = stack.prepare(patch_grid(3, 3))[0]
    assert [c.slope for c in contexts] == [0.75, 0.5, 0.25] and all(c.base is contexts[0].base for c in contexts)
    x = torch.zeros(1, 12, 9, 2)
    first, last = (layer.bias(x, x, c, c)[0, 0, 8, 0] for layer, c in zip(stack["lookhere"], contexts) if c.slope != 0.5)
    assert first.item() == pytest.approx(3 * last.item())
    mixed = EncodingStack("lookhere", dim=8, num_heads=4, depth=2, options={"directions": ["halves", "corners"]})
    assert [e.directions for e in mixed["lookhere"]] == ["halves", "corners"]


def test_rounding_and_fills():
    make = lambda **o: create_encoding("lookhere", dim=4, num_heads=4, directions="halves", **o)  # noqa: E731
    plain, rounded = own_bias(make(), patch_grid(4, 4)), own_bias(make(rounding="bfloat16"), patch_grid(4, 4))
    assert torch.equal(plain.bfloat16().float(), rounded) and not torch.equal(plain, rounded)
    assert own_bias(make(fill="zero"), patch_grid(3, 4))[0, 0, 11].item() == 0
    longest = own_bias(make(fill="max", layer_slopes=(1, 1)), patch_grid(3, 4))[0, 0, 11].item()
    assert longest == pytest.approx(-0.5 * math.hypot(2, 3))
    root = own_bias(make(distance="sqrt", layer_slopes=(1, 1)), patch_grid(1, 5))[2, 4, 0].item()
    assert root == pytest.approx(-0.5 * 2)
    inward = create_encoding("lookhere", dim=4, num_heads=4, directions="center", layer_slopes=(1, 1))
    center = own_bias(inward, patch_grid(3, 5))
    assert center[0, 3, 0].item() == pytest.approx(-0.25 * math.hypot(1, 2)) and center[1, 9, 7].item() == 0


def test_a_query_without_visible_keys_is_no_nan():
    encoding = create_encoding("lookhere", dim=4, num_heads=4, directions="halves")
    pos = patch_grid(3, 3)
    below, above = encoding.prepare(pos.take(torch.tensor([7, 8]))), encoding.prepare(pos.take(torch.tensor([0, 1])))
    q, k = torch.zeros(1, 4, 2, 1), torch.zeros(1, 4, 2, 1)
    assert encoding.bias(q, k, above, below)[0, 0].softmax(-1).isfinite().all()


def test_lookhere_errors():
    make = lambda **o: create_encoding("lookhere", dim=4, num_heads=2, **o)  # noqa: E731
    with pytest.raises(ValueError, match="no heads look 'half'; directions join names of"):
        make(directions="half-none")
    with pytest.raises(ValueError, match="3 kinds of heads .* got num_heads=2"):
        make(directions="halves-corners-none")
    with pytest.raises(ValueError, match="slopes must be positive"):
        make(layer_slopes=(1.0, 0.0))
    with pytest.raises(ValueError, match="one string, or one for each of 1 layers, got 2"):
        make(directions=["halves", "none"])
    with pytest.raises(ValueError, match="layer must lie in 0 ... 0, got 3"):
        make(layer=3)
    with pytest.raises(ValueError, match="fill must be one of .* got 'min'"):
        make(fill="min")
    with pytest.raises(ValueError, match="need a grid, got custom coordinates"):
        make(fill="max").prepare(custom_positions(torch.randn(3, 2)))


# ---- FIRE ---------------------------------------------------------------------------------------------------------------


def psi(x, c):
    return math.log(abs(c * x) + 1)


def test_fire_on_a_sequence():
    torch.manual_seed(0)
    encoding = excite(create_encoding("fire", dim=4, num_heads=2, axes=1, threshold=3.0))
    bias = own_bias(encoding, full_grid((7,), prefix=1))
    c, start = encoding.c.item(), abs(encoding.multiplier.item() * 3)
    for i in range(7):
        for j in range(7):
            x = psi(i - j, c) / (psi(max(i, start), c) + 1e-6)
            want = encoding.fc2(encoding.fc1(torch.tensor([x])).relu())
            close(bias[:, i + 1, j + 1], want, 1e-5)
    assert bias[:, 0].abs().max() == 0


def test_fire_on_an_image_counts_cells_row_by_row():
    torch.manual_seed(0)
    image = excite(create_encoding("fire", dim=4, num_heads=2, threshold=3.0))
    line = create_encoding("fire", dim=4, num_heads=2, axes=1, threshold=3.0)
    line.load_state_dict(image.state_dict())
    close(own_bias(image, patch_grid(3, 4)), own_bias(line, full_grid((12,))))
    with pytest.raises(ValueError, match="fire: a sequence encoding needs grid positions .* custom"):
        image.prepare(custom_positions(torch.randn(3, 2)))


def test_fire_on_a_grid():
    torch.manual_seed(0)
    encoding = excite(create_encoding("fire2d", dim=4, num_heads=2, grid=(3, 4)))
    for rows, cols in [(3, 4), (5, 6)]:
        bias = own_bias(encoding, patch_grid(rows, cols))
        sides = [max(abs(m * n), now - 1) for m, n, now in zip(encoding.multiplier.tolist(), (3, 4), (rows, cols))]
        for i in range(0, rows * cols, 5):
            for j in range(0, rows * cols, 3):
                d = [i // cols - j // cols, i % cols - j % cols]
                x = [psi(a, c) / (psi(s, c) + 1e-6) for a, c, s in zip(d, encoding.c.tolist(), sides)]
                x += [(a > 0) - (a < 0) for a in d]
                close(bias[:, i, j], encoding.fc2(encoding.fc1(torch.tensor(x)).relu()), 1e-5)
                assert max(x[:2]) <= 1
