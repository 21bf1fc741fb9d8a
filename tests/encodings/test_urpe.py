"""URPE: factors on probabilities, against a loop; the identity at the start; other grids."""

import pytest
import torch
from generic_helpers import close, excite, images, vit

from vispe.encodings import EncodingStack, create_encoding
from vispe.layers import attend
from vispe.models.vit import EncodedVisionTransformer
from vispe.positions import full_grid, patch_grid


def make(grid, **options):
    torch.manual_seed(0)
    return excite(create_encoding("urpe", dim=8, num_heads=2, axes=len(grid), grid=grid, **options))


@pytest.mark.parametrize("grid", [(6,), (2, 3)])
def test_one_pair_at_a_time(grid):
    encoding = make(grid)
    pos = full_grid(grid, prefix=1)
    ctx = encoding.prepare(pos)
    p, v = torch.rand(2, 2, 7, 7), torch.randn(2, 2, 7, 4)
    out = encoding.mix(p, v, ctx, ctx)
    table = encoding.table.unflatten(0, [2 * n - 1 for n in grid])
    cells = pos.coords[0].long()
    for i in range(7):
        want = 0
        for j in range(7):
            factor = torch.ones(2)
            if i and j:
                factor = table[tuple(d + n - 1 for d, n in zip((cells[i - 1] - cells[j - 1]).tolist(), grid))]
            want = want + p[:, :, i, j, None] * factor[:, None] * v[:, :, j]
        close(out[:, :, i], want)


def test_starts_as_plain_attention():
    """Factors of one: a ViT with fresh factors is the ViT without positions, at every size."""
    fresh, plain = vit("urpe", moved=False), vit("none")
    plain.load_state_dict({k: v for k, v in fresh.state_dict().items() if not k.startswith("encoding.")})
    for size in [(32, 48), (40, 24)]:
        close(fresh(images(*size)), plain(images(*size)), 1e-5)
    assert len(list(fresh.encoding.parameters())) == 1  # one table for all layers, as released
    own = EncodingStack("urpe", dim=8, num_heads=2, depth=3, options={"per_layer": True}, facts={"grid": (2, 2)})
    assert len(list(own.parameters())) == 3


def test_with_a_relative_bias():
    """The paper's layer: softmax with a bias, times the factors; dropout of probabilities included."""
    stack = EncodingStack("swin_bias+urpe", dim=8, num_heads=2, depth=1, facts={"grid": (2, 3)})
    excite(stack)
    encoding, ctx = stack.layer(stack.prepare(patch_grid(2, 3)), 0)
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    logits = q @ k.mT * 0.5 + ctx[0].pairs
    close(attend(q, k, v, encoding, ctx, ctx, scale=0.5), (logits.softmax(-1) * ctx[1].pairs) @ v, 1e-5)
    tiny = dict(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    model = EncodedVisionTransformer("swin_bias+urpe", **tiny)
    assert model(images(32, 40)).isfinite().all()


def test_probabilities_no_longer_sum_to_one():
    """What the paper needs: with equal values everywhere, tokens can still tell where they are."""
    ones = torch.ones(1, 2, 6, 4)
    ctx = make((6,)).prepare(full_grid((6,)))
    out = attend(ones, ones, ones, make((6,)), ctx, ctx, scale=1.0)
    assert out.std(dim=2).min() > 1e-3
    bias = excite(create_encoding("fire", dim=8, num_heads=2, axes=1))
    ctx = bias.prepare(full_grid((6,)))
    close(attend(ones, ones, ones, bias, ctx, ctx, scale=1.0), ones)


def test_other_grids():
    encoding = make((4,))
    grown = encoding.prepare(full_grid((9,))).pairs[0]
    table = encoding.table.T
    close(torch.stack([grown[:, i, i] for i in range(9)], -1), table[:, 3:4].expand(-1, 9))  # near offsets keep their factor
    close(grown[:, 8, 0], table[:, 6])  # and the longest is the longest
    assert encoding.set_grid((9,)) == ["table resampled (geometric) from (4,) to (9,)"]
    close(encoding.prepare(full_grid((9,))).pairs[0], grown)
    with pytest.raises(ValueError, match="urpe: 'bicubic' resamples images"):
        make((4,), resample="bicubic")


def test_needs_explicit_probabilities():
    encoding = make((2, 3))
    assert encoding.mixes and encoding.bias(None, None, None, None) is None
    ctx = encoding.prepare(patch_grid(2, 3))
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    outs = [attend(q, k, v, encoding, ctx, ctx, scale=0.5, fused=fused) for fused in (True, False)]
    close(*outs)
