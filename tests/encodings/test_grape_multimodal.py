"""Learned GRAPE planes: a plain rotary where they start, exponentials of generators, and what is lost by training them."""

import pytest
import torch

from vispe import create_encoding
from vispe.encodings.functional import rotate
from vispe.positions import custom_positions, full_grid


def make(start="random", seed=0, **options):
    torch.manual_seed(seed)
    encoding = create_encoding("grape_multimodal", **{"dim": 24, "num_heads": 2, "axes": 3, "start": start, **options})
    if start == "random":  # far from the 0.02 of training's start
        with torch.no_grad():
            for p in encoding.parameters():
                p.normal_()
    return encoding


def queries(n, width=12, seed=1):
    return torch.randn(2, 2, n, width, generator=torch.Generator().manual_seed(seed))


def places(n, axes=3, seed=2):
    return torch.randint(0, 30, (2, n, axes), generator=torch.Generator().manual_seed(seed)).float()


def turned(encoding, q, coords, prefix=0):
    ctx = encoding.prepare(custom_positions(coords, prefix=prefix))
    return encoding.qk(q, q, ctx, ctx)[0]


@pytest.mark.parametrize("mode", ["axis", "mixed", "block_mixed"])
def test_it_starts_as_a_plain_rotary_on_neighbouring_channels(mode):
    encoding, q, coords = make("rope", mode=mode, block_size=6, theta=50.0), queries(5), places(5)
    freqs = 50.0 ** -(torch.arange(6) / 6)
    if mode == "axis":  # every axis turns every plane
        angle = coords.sum(-1, keepdim=True) * freqs
    else:
        angle = torch.stack([coords[..., p % 3] * freqs[p] for p in range(6)], dim=-1)
    angle = angle[:, None]
    torch.testing.assert_close(turned(encoding, q, coords), rotate(q, angle.cos(), angle.sin()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["axis", "mixed", "block_mixed"])
def test_a_plane_is_the_exponential_of_its_generator(mode):
    """exp(φ (b aᵀ − a bᵀ)) of one plane, in double precision."""
    encoding, q, coords = make(mode=mode, planes=1, block_size=6), queries(4), places(4) / 10
    expected = q.double()
    frames, weights = encoding.frame().detach().double(), encoding.rates().detach().double()
    for frame, rates in zip(frames, weights):
        a, b = frame.unbind(1)  # (blocks, channels)
        generator = b[:, :, None] * a[:, None] - a[:, :, None] * b[:, None]
        angle = torch.einsum("bna,wap->bnw", coords.double(), rates)
        matrix = torch.linalg.matrix_exp(angle[..., None, None] * generator)  # (B, N, blocks, b, b)
        expected = torch.einsum("bnwij,bhnwj->bhnwi", matrix, expected.unflatten(-1, (len(a), -1))).flatten(-2)
    torch.testing.assert_close(turned(encoding, q, coords).double(), expected, atol=1e-5, rtol=1e-5)


def test_what_training_costs():
    """Orthogonal planes keep norms and see differences of positions only; free ones do neither."""
    q, k, coords = queries(6), queries(6, seed=5), places(6)
    for start, kept in (("rope", True), ("random", False)):
        encoding = make(start)
        here, there = (turned(encoding, q, coords + move) @ turned(encoding, k, coords + move).mT for move in (0, 7))
        assert torch.allclose(here, there, atol=1e-3) == kept
        assert torch.allclose(turned(encoding, q, coords).norm(dim=-1), q.norm(dim=-1), atol=1e-4) == kept


def test_prefix_tokens_and_channels_between_planes_stay():
    encoding, q = make("rope", planes=2), queries(7)
    out = turned(encoding, q, places(5), prefix=2)
    assert torch.equal(out[:, :, :2], q[:, :, :2]) and torch.equal(out[..., 4:], q[..., 4:])
    assert not torch.allclose(out[:, :, 2:, :4], q[:, :, 2:, :4])


def test_frequencies_are_picked_evenly():
    series = 100.0 ** -(torch.arange(6) / 6)
    rates = [make("rope", axes=1, theta=100.0, **o).rates() for o in ({"planes": 3}, {"mode": "block_mixed", "block_size": 6})]
    torch.testing.assert_close(rates[0].flatten(), series[[0, 2, 5]])
    torch.testing.assert_close(rates[1][0, :, 0], series.view(2, 3))
    slow = make("rope", axes=1, theta=100.0, log_scale=2.0)
    torch.testing.assert_close(slow.rates().flatten(), series.sqrt())
    torch.testing.assert_close(slow.wavelengths((8,)), 2 * torch.pi / slow.rates().view(1, -1))


def test_bfloat16_queries_turn_in_float32():
    encoding, q = make(), queries(6).bfloat16()
    exact = turned(encoding, q.float(), places(6) * 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = turned(encoding, q, places(6) * 20)
    assert out.dtype == torch.bfloat16 and torch.equal(out, exact.bfloat16())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"mode": "heads"}, "mode is one of"), ({"start": "zero"}, "start 'rope' or 'random'"),
        ({"planes": 7}, "1 to 6 planes"), ({"mode": "block_mixed", "block_size": 5}, "divide head_dim"),
        ({"log_scale": 0.0}, "log_scale must be positive"), ({"resize": "stretch"}, "resize must be"),
    ],
)  # fmt: skip
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        make(**{"start": "rope", **options})


def test_axes_of_positions_are_checked():
    with pytest.raises(ValueError, match="made for 3 axes"):
        make("rope").prepare(full_grid((4, 4)))
