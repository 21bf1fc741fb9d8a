"""The coordinate conventions, by hand: a 2 x 4 image, seen by a model that was trained on 4 x 4."""

import pytest
import torch

from vispe.positions import Positions, custom_positions, patch_grid, video_grid

POS = patch_grid(2, 4, train=(4, 4))

# units, resize -> coordinate of rows 0 and 1, and of columns 0 to 3
TABLE = [
    ("index", "extend", [0, 1], [0, 1, 2, 3]),
    ("index", "rescale", [0.5, 2.5], [0, 1, 2, 3]),  # (p + 1/2) * 4/2 - 1/2
    ("unit", "extend", [0.125, 0.375], [0.125, 0.375, 0.625, 0.875]),
    ("unit", "rescale", [0.25, 0.75], [0.125, 0.375, 0.625, 0.875]),
    ("centered", "extend", [-0.75, -0.25], [-0.75, -0.25, 0.25, 0.75]),
    ("centered", "rescale", [-0.5, 0.5], [-0.75, -0.25, 0.25, 0.75]),
    ("centered_min", "extend", [-0.75, -0.25], [-0.75, -0.25, 0.25, 0.75]),
    ("centered_min", "rescale", [-0.5, 0.5], [-0.5, 0.5, 1.5, 2.5]),  # both axes by the shorter side, 2
    ("centered_max", "extend", [-0.75, -0.25], [-0.75, -0.25, 0.25, 0.75]),
    ("centered_max", "rescale", [-0.75, -0.25], [-0.75, -0.25, 0.25, 0.75]),  # both by the longer side, 4
]


@pytest.mark.parametrize("units, resize, rows, cols", TABLE)
def test_by_hand(units, resize, rows, cols):
    want = torch.tensor([[r, c] for r in rows for c in cols], dtype=torch.float32)
    torch.testing.assert_close(POS.to(units, resize), want[None])


@pytest.mark.parametrize("units", ["index", "unit", "centered", "centered_min", "centered_max"])
def test_on_the_train_grid_both_ways_agree(units):
    pos = patch_grid(3, 5)
    torch.testing.assert_close(pos.to(units, "extend"), pos.to(units, "rescale"))


def test_kept_and_cropped_tokens_keep_their_place_in_the_frame():
    whole = patch_grid(4, 6, train=(8, 8))
    keep = torch.tensor([23, 2, 9])
    for units in ("index", "unit", "centered", "centered_min", "centered_max"):
        for resize in ("extend", "rescale"):
            full = whole.to(units, resize)
            assert torch.equal(whole.take(keep).to(units, resize), full[:, keep])
            crop = whole.crop((1, 2), (2, 3)).to(units, resize)
            assert torch.equal(crop, full.view(1, 4, 6, 2)[:, 1:3, 2:5].flatten(1, 2))


def test_index_without_a_frame():
    free = Positions(torch.tensor([[[3.0, 4.0]]]))
    assert torch.equal(free.to("index", "extend"), free.coords)
    with pytest.raises(ValueError, match="needs `train`"):
        free.to("unit", "extend")


def test_three_axes():
    coords = video_grid(2, 2, 4, train=(4, 2, 2)).to("unit", "extend")[0]
    assert coords[0].tolist() == [0.125, 0.25, 0.25] and coords[-1].tolist() == [0.375, 0.75, 1.75]
    rescaled = video_grid(2, 2, 4, train=(4, 2, 2)).to("index", "rescale")[0]
    assert rescaled[0].tolist() == [0.5, 0.0, -0.25]


def test_precision_far_out():
    """Half precision never holds a position: float32 tells all cells apart to 16 million, and models cannot change that."""
    for offset in (0, 256, 1024, 65536):
        pos = custom_positions(torch.arange(16.0)[:, None] + offset)
        assert len(pos.coords.unique()) == 16
        assert len(pos.coords.bfloat16().unique()) < 16 or offset == 0
    assert patch_grid(2, 2).coords.dtype == torch.float32
    assert patch_grid(3, 600).to("unit", "rescale").dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_default_dtype_does_not_leak_in(dtype):
    torch.set_default_dtype(dtype)
    try:
        pos = patch_grid(2, 600, train=(3, 5))
    finally:
        torch.set_default_dtype(torch.float32)
    assert pos.coords.dtype == torch.float32 and len(pos.coords[0, :, 1].unique()) == 600


def test_symbolic_sizes():
    """Grids can be built inside an exported program at any size."""

    class Grid(torch.nn.Module):
        def forward(self, x):
            pos = patch_grid(x.shape[0], x.shape[1], train=(4, 4))
            return pos.to("index", "rescale"), pos.to("centered_max", "rescale"), pos.to("unit", "extend")

    dims = torch.export.Dim("h"), torch.export.Dim("w")
    program = torch.export.export(Grid(), (torch.zeros(3, 5),), dynamic_shapes={"x": {0: dims[0], 1: dims[1]}}).module()
    for got, want in zip(program(torch.zeros(7, 2)), Grid()(torch.zeros(7, 2))):
        torch.testing.assert_close(got, want)
