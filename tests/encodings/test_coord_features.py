"""Coordinate features and point-cloud rotary: closed forms, moments by sampling, schedules, every kind in an encoding."""

import math

import pytest
import torch

from vispe import create_encoding
from vispe.encodings import coord_functions as coord
from vispe.encodings.coord_fourier import KINDS
from vispe.positions import custom_positions, patch_grid


def test_octaves_are_the_loop():
    x = torch.tensor([[0.3, -0.7]])
    want = [f(2**k * math.pi * v) for v in (0.3, -0.7) for f in (math.sin, math.cos) for k in range(4)]
    assert coord.octaves(x, 4)[0].tolist() == pytest.approx(want, abs=1e-5)


def test_coarse_to_fine_goes_from_nothing_to_everything():
    assert coord.coarse_to_fine(6, 0.1, 0.1, 0.5).tolist() == [0] * 6
    assert coord.coarse_to_fine(6, 0.5, 0.1, 0.5).tolist() == pytest.approx([1] * 6)
    half = coord.coarse_to_fine(6, 0.3, 0.1, 0.5)
    assert half.tolist() == pytest.approx([1, 1, 1, 0, 0, 0], abs=1e-5)


def test_integrated_is_the_mean_over_samples():
    mean, var = torch.tensor([0.4, -0.2]), torch.tensor([0.05, 0.3])
    samples = mean + var.sqrt() * torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    want = coord.integrated(samples, torch.zeros_like(samples), 0, 3).mean(0)
    torch.testing.assert_close(coord.integrated(mean, var, 0, 3), want, rtol=0, atol=0.01)


def test_progressive_mask():
    assert coord.progressive_mask(4, 0, 10).tolist() == [1, 0, 0, 0]
    assert coord.progressive_mask(4, 3, 10).tolist() == pytest.approx([1, 0.6, 0, 0])
    assert coord.progressive_mask(4, 10, 10).tolist() == [1, 1, 0, 0]
    assert coord.progressive_mask(4, 99, 10).tolist() == [1, 1, 1, 1]


def test_shares_are_even_and_add_up():
    for channels in (6, 8, 10, 32, 48, 64):
        shares = coord.even_shares(channels, 3)
        assert sum(shares) == channels and all(n % 2 == 0 for n in shares) and shares == sorted(shares, reverse=True)


def test_splines_sum_to_one_between_knots():
    x = torch.linspace(-0.5, 0.5, 11)[:, None] - torch.arange(-3.0, 4.0)
    for order in (1, 2, 3, 4):
        torch.testing.assert_close(coord.b_spline(x, order).sum(-1), torch.ones(11), rtol=0, atol=1e-5)


def test_constant_norm_does_not_look_at_the_batch():
    x = torch.rand(5, 2, generator=torch.Generator().manual_seed(0))
    fixed = coord.shifted_gaussians(x, 16, 0.07, norm=2.0)
    assert torch.equal(fixed[:2], coord.shifted_gaussians(x[:2], 16, 0.07, norm=2.0))
    assert coord.shifted_gaussians(x, 16, 0.07).norm(dim=-1).max() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [2, 3])
def test_every_kind(kind, axes):
    torch.manual_seed(0)
    encoding = create_encoding("coord_fourier", dim=24, num_heads=2, axes=axes, kind=kind, num_freqs=4)
    points = torch.rand(2, 6, axes)
    ctx = encoding.prepare(custom_positions(points, prefix=1))
    assert ctx.shape == (2, 7, 24) and ctx.dtype == torch.float32 and ctx.isfinite().all()
    assert (ctx[:, 0] == 0).all() and (ctx[0, 1:] - ctx[1, 1:]).abs().max() > 1e-3
    half = encoding.bfloat16()
    assert torch.equal(half.prepare(custom_positions(points)), half.float().prepare(custom_positions(points)))


def test_a_cell_blurs_what_is_finer_than_itself():
    encoding = create_encoding("coord_fourier", dim=8, num_heads=1, kind="integrated", num_freqs=8)
    pos = patch_grid(2, 3)
    blurred = encoding.features(pos.to("unit", "rescale"), torch.tensor([1 / 48, 1 / 108]))
    sharp = encoding.features(pos.to("unit", "rescale"))
    assert blurred[..., 14:16].abs().max() < 1e-3 < sharp[..., 14:16].abs().max()


def test_point_rotary_counts_voxels():
    near = create_encoding("rope_points", dim=40, num_heads=2, axes=3, voxel=0.1)
    far = create_encoding("rope_points", dim=40, num_heads=2, axes=3)
    points = torch.rand(1, 5, 3)
    a, b = near.prepare(custom_positions(points)), far.prepare(custom_positions(points * 10))
    torch.testing.assert_close(a.cos, b.cos, rtol=0, atol=1e-5)
    assert near.shares == [8, 6, 6] and near.frequencies().shape == (1, 3, 10)
    with pytest.raises(ValueError, match="rope_points: a head of 4 channels"):
        create_encoding("rope_points", dim=8, num_heads=2, axes=3)


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind must be one of"):
        create_encoding("coord_fourier", dim=8, num_heads=2, kind="nerv")
