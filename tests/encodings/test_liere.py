"""LieRE: the definition with loops, the official coordinates, what layers share, exponentials and their gradients."""

import pytest
import torch
from generic_helpers import close, scores, vit

from vispe import create_encoding, patch_grid
from vispe.encodings import EncodingStack
from vispe.encodings.expm import skew_exp, turn_blocks
from vispe.positions import custom_positions, full_grid


def test_the_definition_with_loops():
    torch.manual_seed(0)
    encoding = create_encoding("liere", dim=22, num_heads=2, block_size=5)  # two blocks of 5, one channel left
    pos = patch_grid(3, 4, prefix=1, train=(2, 4))
    q = torch.randn(2, 2, 13, 11)
    ctx = encoding.prepare(pos)
    got, _ = encoding.qk(q, q, ctx, ctx)
    want = q.clone()
    for n in range(12):
        row, col = (n // 4) * (3 / 2) / 2, (n % 4) * (4 / 4) / 3  # linspace(0, cells / train cells, cells)
        for h in range(2):
            for m in range(2):
                generator = torch.zeros(5, 5, dtype=torch.float64)
                upper = torch.triu_indices(5, 5, 1)
                generator[upper[0], upper[1]] = (row * encoding.skew[0, h, m] + col * encoding.skew[1, h, m]).detach().double()
                turn = torch.linalg.matrix_exp(generator - generator.mT).float()
                want[:, h, 1 + n, 5 * m : 5 * m + 5] = q[:, h, 1 + n, 5 * m : 5 * m + 5] @ turn.mT
    close(got, want, 2e-5)
    assert torch.equal(got[:, :, 0], q[:, :, 0]) and torch.equal(got[..., 10:], q[..., 10:])


def test_official_coordinates():
    """Both ends are taken, so one patch is another step at another size (StanfordMIMI/LieRE)."""
    encoding = create_encoding("liere", dim=32, num_heads=2)
    for cells, end in ((14, 1.0), (28, 2.0), (7, 0.5)):
        coords = encoding.coordinates(patch_grid(cells, 14, train=(14, 14)))[0]
        close(coords[::14, 0], torch.linspace(0, end, cells))
        close(coords[:14, 1], torch.linspace(0, 1, 14))
    assert encoding.coordinates(patch_grid(1, 3)).isfinite().all()
    rescaled = create_encoding("liere", dim=32, num_heads=2, resize="rescale")
    close(rescaled.coordinates(patch_grid(28, 1, train=(14, 14)))[0, -1, 0], torch.tensor(1.0))


def test_layers():
    """Shared: one set of generators, as released. Per layer: every layer has its own, and gets a gradient."""
    image = torch.randn(2, 3, 32, 48)
    for layers, names in (("shared", ["skew"]), ("per_layer", ["0.skew", "1.skew"])):
        model = vit("liere", encoding_kwargs={"layers": layers})
        assert [n.removeprefix("encoding.liere.") for n, _ in model.named_parameters() if "liere" in n] == names
        model(image).square().sum().backward()
        assert all(p.grad.abs().max() > 0 for n, p in model.named_parameters() if "liere" in n)
        assert model(torch.randn(2, 3, 64, 24)).isfinite().all()  # a larger image


def test_one_set_of_heads():
    encoding = create_encoding("liere", dim=32, num_heads=2, heads="shared")
    assert encoding.skew.shape == (2, 1, 2, 28)
    q = torch.randn(1, 1, 6, 16).expand(1, 2, 6, 16)
    ctx = encoding.prepare(patch_grid(2, 3))
    turned, _ = encoding.qk(q, q, ctx, ctx)
    assert torch.equal(turned[:, 0], turned[:, 1])


def test_scores_see_a_common_shift_on_two_axes_only():
    for axes, seen in ((1, False), (2, True), (3, True)):
        torch.manual_seed(0)
        encoding = create_encoding("liere", dim=32, num_heads=2, axes=axes)
        q = torch.randn(1, 2, 12, 16)
        coords = torch.rand(12, axes)
        here, there = (encoding.prepare(custom_positions(coords + o)) for o in (0.0, 1.7))
        apart = (scores(encoding, q, q, here, here) - scores(encoding, q, q, there, there)).abs().max()
        assert (apart > 1e-2) == seen and (seen or apart < 1e-4)


def test_images_that_keep_other_cells_share_exponentials():
    encoding = create_encoding("liere", dim=32, num_heads=2)
    pos = full_grid((3, 4), prefix=1)
    keep = torch.tensor([[0, 5, 11], [7, 2, 2]])
    both = encoding.prepare(pos.take(keep)).matrices
    for i in (0, 1):
        close(both[i], encoding.prepare(pos.take(keep[i])).matrices[0], 1e-6)


@pytest.mark.parametrize("size", [2, 5, 8, 32])
@pytest.mark.parametrize("norm", [0.0, 0.3, 3.0, 60.0])
def test_exponentials_and_their_gradients(size, norm):
    generator = torch.Generator().manual_seed(size)
    raw = torch.randn(7, size, size, generator=generator)
    skew = raw - raw.mT
    skew = skew / torch.linalg.matrix_norm(skew, 2)[:, None, None] * norm
    weight = torch.randn(7, size, size, generator=generator)
    ours, exact = skew.clone().requires_grad_(), skew.double().requires_grad_()
    a, b = skew_exp(ours), torch.linalg.matrix_exp(exact)
    close(a.double(), b, 2e-5)
    close(a @ a.mT, torch.eye(size).expand(7, -1, -1), 2e-5)
    (ga,), (gb,) = torch.autograd.grad((a * weight).sum(), ours), torch.autograd.grad((b * weight).sum(), exact)
    assert (ga - gb).abs().max() <= 2e-5 * gb.abs().max()


def test_turning_with_and_without_a_shared_batch():
    x = torch.randn(3, 2, 5, 9)
    matrices = torch.randn(1, 2, 5, 2, 4, 4)
    close(turn_blocks(x, matrices), turn_blocks(x, matrices.expand(3, -1, -1, -1, -1, -1)), 1e-5)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"block_size": 1}, "block_size must be at least 2"),
        ({"block_size": 17}, "at most head_dim, got block_size=17, head_dim=16"),
        ({"layers": "first"}, "layers must be"),
        ({"heads": "one"}, "heads 'per_head' or 'shared'"),
        ({"resize": "stretch"}, "resize must be"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        create_encoding("liere", dim=32, num_heads=2, **options)


def test_a_stack_of_one_layer():
    assert len(EncodingStack("liere", dim=32, num_heads=2, depth=1, options={"layers": "per_layer"})["liere"]) == 1
