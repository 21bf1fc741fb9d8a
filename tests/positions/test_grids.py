"""Grids, videos, sub-grids and dropped tokens."""

import pytest
import torch

from vispe.positions import Positions, custom_positions, full_grid, lattice, masked_grid, patch_grid, video_grid


def test_rows_before_columns():
    pos = patch_grid(2, 3, prefix=1)
    assert pos.coords.tolist() == [[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]]
    assert pos.coords.dtype == torch.float32
    assert (pos.grid, pos.extent, pos.train, pos.prefix, pos.units, pos.axes) == ((2, 3), (2, 3), (2, 3), 1, "index", 2)
    assert pos.indices is None


def test_frames_before_rows():
    pos = video_grid(2, 1, 3, train=(4, 5, 6))
    assert pos.coords[0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [1, 0, 0], [1, 0, 1], [1, 0, 2]]
    assert pos.grid == (2, 1, 3) and pos.train == (4, 5, 6)


@pytest.mark.parametrize("size", [(7,), (1, 5), (5, 1), (2, 2, 2, 3)])
def test_any_number_of_axes(size):
    pos = full_grid(size)
    assert pos.coords.shape == (1, torch.Size(size).numel(), len(size))
    assert torch.equal(pos.coords[0], lattice(size))
    assert len(pos.coords[0].unique(dim=0)) == torch.Size(size).numel()


def test_equal_counts_of_other_shapes_differ():
    assert not torch.equal(patch_grid(1, 25).coords, patch_grid(5, 5).coords)
    a, b = patch_grid(5, 7).coords[0], patch_grid(7, 5).coords[0]
    assert torch.equal(a.view(5, 7, 2).transpose(0, 1).flip(-1), b.view(7, 5, 2))


def test_taking_tokens():
    pos = patch_grid(2, 3, prefix=1)
    kept = pos.take(torch.tensor([5, 0]))
    assert kept.coords.tolist() == [[[1, 2], [0, 0]]] and kept.indices.tolist() == [[5, 0]]
    assert (kept.grid, kept.extent, kept.train, kept.prefix) == (None, (2, 3), (2, 3), 1)
    rows = pos.take(torch.tensor([[0, 1], [4, 3]]))
    assert rows.coords.tolist() == [[[0, 0], [0, 1]], [[1, 1], [1, 0]]]
    again = rows.take(torch.tensor([1]))
    assert again.coords.tolist() == [[[0, 1]], [[1, 0]]] and again.indices.tolist() == [[1], [3]]


def test_taking_custom_positions_makes_no_cells_up():
    kept = custom_positions(torch.rand(4, 2)).take(torch.tensor([2, 1]))
    assert kept.indices is None and kept.units == "custom" and kept.coords.shape == (1, 2, 2)


def test_cropping():
    pos = patch_grid(4, 5, prefix=2).crop((1, 2), (2, 3))
    assert pos.grid == (2, 3) and pos.extent == (4, 5) and pos.prefix == 2
    assert pos.coords[0].tolist() == [[1, 2], [1, 3], [1, 4], [2, 2], [2, 3], [2, 4]]
    assert pos.indices[0].tolist() == [7, 8, 9, 12, 13, 14]
    inner = pos.crop((1, 0), (1, 2))
    assert inner.coords[0].tolist() == [[2, 2], [2, 3]] and inner.indices[0].tolist() == [12, 13]
    frames = video_grid(3, 2, 2).crop((1, 0, 1), (2, 2, 1))
    assert frames.coords[0].tolist() == [[1, 0, 1], [1, 1, 1], [2, 0, 1], [2, 1, 1]]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p: p.crop((0, 0), (5, 1)), r"\(5, 1\) cells from \(0, 0\) do not lie inside the grid \(4, 5\)"),
        (lambda p: p.crop((-1, 0), (2, 2)), "do not lie inside"),
        (lambda p: p.crop((0,), (2,)), r"needs 2 numbers in start and size, got \(0,\) and \(2,\)"),
        (lambda p: p.take(torch.tensor([0])).crop((0, 0), (1, 1)), "no full grid .* crop before dropping"),
        (lambda p: p.to("pixels", "extend"), "units must be one of .*got 'pixels'"),
        (lambda p: p.to("unit", "extended"), "resize must be one of .*got 'extended'"),
        (lambda p: patch_grid(0, 3), r"at least 1 cell, got \(0, 3\)"),
        (lambda p: patch_grid(2, 3, prefix=-1), "prefix counts .* >= 0, got -1"),
        (lambda p: patch_grid(2, 3, train=(1, 2, 3)), r"train grid \(1, 2, 3\) has another number of axes than .*\(2, 3\)"),
        (lambda p: Positions(torch.zeros(1, 1, 2)).to("unit", "rescale"), "needs `extent`, which these positions do not carry"),
        (lambda p: custom_positions(torch.zeros(4)), r"float tensor \(N, axes\) or \(B, N, axes\), got \(4,\)"),
        (lambda p: custom_positions(torch.zeros(4, 2, dtype=torch.long)), "got .*int64"),
        (lambda p: custom_positions(torch.zeros(4, 2, dtype=torch.bfloat16)), "bfloat16 cannot hold positions; pass float32"),
        (lambda p: custom_positions(torch.zeros(4, 2).half()), "float16 cannot hold positions"),
        (lambda p: masked_grid(torch.zeros(2, 3)), r"needs a mask \(B, H, W\), got shape \(2, 3\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(patch_grid(4, 5))


def test_custom_positions():
    coords = torch.rand(2, 5, 3, dtype=torch.float64)
    pos = custom_positions(coords, prefix=2)
    assert pos.coords.dtype == torch.float64 and pos.axes == 3 and pos.prefix == 2
    assert (pos.grid, pos.extent, pos.train) == (None, None, None)
    assert torch.equal(pos.to("centered", "rescale"), coords) and custom_positions(coords[0]).coords.shape == (1, 5, 3)


def test_masked_grid():
    """DETR's coordinates: 1-based counts of what is not padding, normalised by the last count of each line."""
    mask = torch.tensor([[[0, 0, 1], [0, 0, 1]]])
    counts = masked_grid(mask, normalize=False)
    assert counts.coords.tolist() == [[[1, 1], [1, 2], [0, 2], [2, 1], [2, 2], [0, 2]]]
    assert counts.units == "custom" and counts.grid == (2, 3)
    scaled = masked_grid(mask, scale=8.0, eps=0.0).coords[0]
    torch.testing.assert_close(scaled[[0, 1, 3, 4]], torch.tensor([[4.0, 4], [4, 8], [8, 4], [8, 8]]))
    default = masked_grid(mask).coords
    torch.testing.assert_close(default[0, 4], torch.full((2,), 2 * torch.pi * 2 / (2 + 1e-6)))
    assert default.isfinite().all()  # a column of padding only
    assert torch.equal(masked_grid(mask.bool()).coords, default)


def test_positions_do_not_change():
    with pytest.raises(AttributeError):
        patch_grid(2, 2).prefix = 3
