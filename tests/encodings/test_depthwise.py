"""PEG with dilation and stride against a loop over cells, on sequences, images and videos."""

import itertools

import pytest
import torch
from generic_helpers import DIM, HEADS, close

from vispe import create_encoding
from vispe.encodings.cpe import peg
from vispe.positions import full_grid


def loop(x, grid, weight, bias, stride, dilation):
    """Every output cell by itself: the sum over the kernel's taps that hit the grid."""
    side = weight.shape[-1]
    out = []
    for cell in itertools.product(*[range((n - 1) // stride + 1) for n in grid]):
        total = bias.clone()
        for tap in itertools.product(range(side), repeat=len(grid)):
            at = [c * stride + dilation * (t - side // 2) for c, t in zip(cell, tap)]
            if all(0 <= a < n for a, n in zip(at, grid)):
                index = sum(a * torch.tensor(grid[i + 1 :]).prod().long() for i, a in enumerate(at))
                total = total + x[:, index] * weight[(slice(None), 0, *tap)]
        out.append(total.expand(x.shape[0], -1))
    y = torch.stack(out, dim=1)
    return x + y if stride == 1 else y


@pytest.mark.parametrize("grid", [(7,), (1,), (4, 5), (1, 6), (2, 3, 4)])
@pytest.mark.parametrize("stride, dilation, kernel", [(1, 1, 3), (1, 2, 3), (1, 3, 3), (2, 1, 3), (2, 2, 5), (1, 2, 1)])
def test_peg_against_a_loop(grid, stride, dilation, kernel):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, torch.tensor(grid).prod(), 3, generator=g)
    weight = torch.randn(3, 1, *[kernel] * len(grid), generator=g)
    bias = torch.randn(3, generator=g)
    got = peg(x, grid, weight, bias, stride=stride, dilation=dilation)
    close(got, loop(x, grid, weight, bias, stride, dilation), 1e-5)


@pytest.mark.parametrize("axes, grid", [(1, (9,)), (2, (4, 6)), (3, (2, 4, 3))])
def test_dilated_cpe_on_text_and_images(axes, grid):
    """The option reaches the convolution; prefix tokens pass; dilation 1 is the plain PEG."""
    pos = full_grid(grid, prefix=2)
    x = torch.randn(2, 2 + pos.coords.shape[1], DIM, generator=torch.Generator().manual_seed(1))
    outs = {}
    for dilation in (1, 2):
        torch.manual_seed(0)
        encoding = create_encoding("cpe", dim=DIM, num_heads=HEADS, axes=axes, depth=2, dilation=dilation)
        conv = encoding.pegs["0"]
        y = encoding.between(x, encoding.prepare(pos), 0)
        close(y[:, 2:], loop(x[:, 2:], grid, conv.weight, conv.bias, 1, dilation), 1e-4)
        assert torch.equal(y[:, :2], x[:, :2])
        outs[dilation] = y
    assert (outs[1] - outs[2]).abs().max() > 1e-2


@pytest.mark.parametrize(
    "options, text", [({"dilation": 0}, "dilation must be at least 1, got 0"), ({"kernel_size": 4}, "odd")]
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        create_encoding("cpe", dim=DIM, num_heads=HEADS, depth=2, **options)
