"""The rotation of channel pairs and the turn in a learned basis: values and gradients against plain autograd."""

import pytest
import torch

from vispe.encodings.functional import LAYOUTS, rotate
from vispe.encodings.skew import from_pairs, skew_matrix, skew_schur, turn_in_basis

SHAPES = [(1, 1), (2, 1), (1, 4), (2, 4)]  # images and heads of the tables


def oracle(x, cos, sin, layout):
    """One pair after the other."""
    pairs, out = cos.shape[-1], list(x.unbind(-1))
    for i in range(pairs):
        one, two = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        a, b, c, s = x[..., one], x[..., two], cos[..., i], sin[..., i]
        out[one], out[two] = a * c - b * s, a * s + b * c
    return torch.stack(out, dim=-1)


@pytest.mark.parametrize("scale", [1.0, 1.7])
@pytest.mark.parametrize("rest", [0, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("learned", [False, True])
def test_rotation_is_the_oracle_with_its_gradients(layout, shape, rest, scale, learned):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 4, 6 + rest, dtype=torch.float64).transpose(1, 2).requires_grad_()
    angle = torch.randn(*shape, 5, 3, dtype=torch.float64, requires_grad=learned)
    weight = torch.randn(2, 4, 5, 6 + rest, dtype=torch.float64)
    leaves = (x, angle) if learned else (x,)
    found = []
    for turn in (rotate, oracle):
        y = turn(x, scale * angle.cos(), scale * angle.sin(), layout)
        found.append((y, *torch.autograd.grad((y * weight).sum(), leaves)))
    for got, expected in zip(*found):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_derivatives(layout):
    torch.manual_seed(0)
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    angle = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, a: rotate(x, a.cos(), a.sin(), layout), (x, angle))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("width", [6, 7])
def test_memory_that_holds_no_whole_pairs(offset, width):
    """Odd strides and offsets cannot be seen as complex numbers; the result is the same."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 5, width)[..., offset : offset + 6 - 2 * offset]
    angle = torch.randn(1, 1, 5, x.shape[-1] // 2)
    torch.testing.assert_close(
        rotate(x, angle.cos(), angle.sin()), oracle(x, angle.cos(), angle.sin(), "interleaved"), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("std", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_turned_in_a_basis_are_those_of_matrix_exponentials(size, shape, std):
    torch.manual_seed(0)
    blocks, heads, count = 2, 4, 5
    upper = torch.randn(heads, blocks, size * (size - 1) // 2, dtype=torch.float64) * std
    upper.requires_grad_()
    q, k = torch.randn(2, 2, heads, count, blocks * size, dtype=torch.float64).requires_grad_().unbind(0)
    times = torch.randn(*shape, count, blocks, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, heads, count, count, dtype=torch.float64)

    skew = skew_matrix(upper, size)
    basis, rates = skew_schur(skew.detach())
    angle = (times[..., None] * rates[:, None]).flatten(-2)
    parts = (angle.cos(), angle.sin(), skew, basis, rates, times.detach())
    turned = turn_in_basis(q, *parts) @ turn_in_basis(k, *parts).mT

    matrices = torch.linalg.matrix_exp(times[..., None, None] * skew[:, None])  # (B, H, N, m, b, b)
    one, two = ((matrices @ x.unflatten(-1, (blocks, size))[..., None]).squeeze(-1).flatten(-2) for x in (q, k))
    expected = one @ two.mT

    torch.testing.assert_close(turned, expected)
    leaves = (q, k, upper, times)
    got = torch.autograd.grad((turned * weight).sum(), leaves, retain_graph=True)
    want = torch.autograd.grad((expected * weight).sum(), leaves, retain_graph=True)
    for name, a, b in zip(("q", "k", "S", "t"), got, want):
        # float64 throughout; the series at small rates is good to about 1e-7
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_turning_keeps_no_more_than_its_result():
    """A learned rotation may keep what attention keeps anyway: nothing of the size of its input on top."""
    torch.manual_seed(0)
    heads, count, blocks, size = 4, 64, 4, 8
    base = torch.randn(8, heads, count, blocks * size, requires_grad=True)
    skew = skew_matrix(torch.randn(heads, blocks, 28), size).requires_grad_()
    basis, rates = skew_schur(skew.detach())
    times = torch.randn(1, 1, count, blocks)
    angle = (times[..., None] * rates[:, None]).flatten(-2).requires_grad_()
    saved = []

    def keep(t):
        saved.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = turn_in_basis(base, angle.cos(), angle.sin(), skew, basis, rates, times)
        z = rotate(base, angle.cos(), angle.sin())
    assert y.shape == z.shape == base.shape
    assert sum(n == base.numel() for n in saved) == 2  # the two results


def test_from_pairs_puts_still_channels_back():
    u = torch.arange(6.0)[None]
    assert from_pairs(u, 2, 3).tolist() == [[[0, 1, 4], [2, 3, 5]]]
