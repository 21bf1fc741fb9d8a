"""MD-LRPE and MS-GRAPE: what their definitions say of scores and of parameters."""

import pytest
import torch
from generic_helpers import close

from vispe import create_encoding, patch_grid
from vispe.positions import full_grid


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_cosine_scores(axes):
    """q'·k' = Σ_i q_i k_i cos(Θ_q,i − Θ_k,i), with Θ the axes' angles side by side, cut at the head's width."""
    torch.manual_seed(0)
    encoding = create_encoding("md_lrpe", dim=20, num_heads=2, axes=axes)
    pos = full_grid((2,) * axes)
    count = 2**axes
    q, k = torch.randn(2, 1, 2, count, 10)
    ctx = encoding.prepare(pos)
    a, b = encoding.qk(q, k, ctx, ctx)
    assert a.shape == (1, 2, count, 20)
    for h in range(2):
        angle = torch.cat([pos.coords[0, :, x, None] * encoding.theta[h] for x in range(axes)], dim=-1)[:, :10]
        apart = angle[:, None] - angle[None]
        close((a @ b.mT)[0, h], (q[0, h, :, None] * k[0, h, None] * apart.cos()).sum(-1), 1e-5)


def test_prefix_of_the_cosine_form():
    encoding = create_encoding("md_lrpe", dim=16, num_heads=2)
    q = torch.randn(1, 2, 8, 8)
    ctx = encoding.prepare(patch_grid(2, 3, prefix=2))
    turned, _ = encoding.qk(q, q, ctx, ctx)
    assert torch.equal(turned[:, :, :2, :8], q[:, :, :2]) and turned[:, :, :2, 8:].abs().max() == 0


def test_lrpe_frequencies():
    """They run on over the heads, or start again in each; the rotation form has half as many."""
    on = create_encoding("md_lrpe", dim=16, num_heads=2, axes=1, base=100.0)
    close(on.theta.flatten(), 100.0 ** (-2 / 16 * torch.arange(16)))
    again = create_encoding("md_lrpe", dim=16, num_heads=2, axes=1, base=100.0, spread="head")
    close(again.theta, (100.0 ** (-2 / 8 * torch.arange(8))).expand(2, 8))
    rotate = create_encoding("md_lrpe", dim=16, num_heads=2, axes=2, base=100.0, form="rotate")
    close(rotate.theta, 100.0 ** (-2 / 16 * (torch.arange(2) + 4 * torch.arange(2)[:, None])))
    freqs = rotate.frequencies()
    assert torch.equal(freqs[:, 0, :2], freqs[:, 1, 2:]) and freqs[:, 0, 2:].abs().max() == 0


def test_lrpe_without_parameters():
    fixed, learned = (create_encoding("md_lrpe", dim=16, num_heads=2, learn_theta=learn) for learn in (False, True))
    assert not list(fixed.parameters()) and not fixed.per_layer and learned.per_layer
    assert torch.equal(fixed.frequencies(), learned.frequencies().detach())


def test_grape_turns_backwards_in_half_layout():
    encoding = create_encoding("ms_grape", dim=16, num_heads=2, axes=1, heads="per_head", log_scale=4.0, theta=100.0)
    close(encoding.log_freq[0, 0], 4.0 * torch.log(100.0 ** -(torch.arange(4) / 4)))
    q = torch.randn(1, 2, 3, 8)
    ctx = encoding.prepare(full_grid((3,)))
    turned, _ = encoding.qk(q, q, ctx, ctx)
    for t in range(3):
        angle = t * 100.0 ** -(torch.arange(4) / 4)
        a, b = q[0, :, t, :4], q[0, :, t, 4:]
        close(turned[0, :, t], torch.cat((a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()), -1), 1e-5)


def test_grape_planes_belong_to_one_axis():
    encoding = create_encoding("ms_grape", dim=24, num_heads=2, axes=3)
    freqs = encoding.frequencies()
    assert freqs.shape == (1, 3, 6) and ((freqs != 0).sum(1) == 1).all() and (freqs <= 0).all()
    with torch.no_grad():
        encoding.log_freq.sub_(50.0)
    assert (encoding.frequencies() != 0).sum() == 6  # never below zero, never zero


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("md_lrpe", {"form": "sine"}, "form must be 'cosine' or 'rotate'"),
        ("md_lrpe", {"base": 0.0}, "base must be positive"),
        ("ms_grape", {"heads": "all"}, "heads must be"),
        ("ms_grape", {"log_scale": 0.0}, "log_scale must be positive"),
    ],
)
def test_bad_options(name, options, words):
    with pytest.raises(ValueError, match=words):
        create_encoding(name, dim=48, num_heads=2, **options)
