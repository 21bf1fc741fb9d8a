"""Key points as positions, and the bias that depends on them: loops over pairs, and every way to get them wrong."""

import pytest
import torch
from generic_helpers import POINTS, close, excite

from vispe.encodings import create_encoding
from vispe.encodings.irpe import bucket_ids
from vispe.encodings.kprpe import relative_keypoints
from vispe.positions import KeypointPositions, custom_positions, full_grid, patch_grid, with_keypoints


def make(**options):
    torch.manual_seed(0)
    return excite(create_encoding("kprpe", dim=8, num_heads=2, **options))


def bias_of(encoding, pos):
    ctx = encoding.prepare(pos)
    return encoding.bias(torch.zeros(1), torch.zeros(1), ctx, ctx)


def test_differences_to_key_points():
    """Centres of patches in fractions of the image, x ahead of y, on a grid that is not square."""
    delta = relative_keypoints(with_keypoints(patch_grid(2, 5), POINTS))
    for n in range(10):
        row, col = divmod(n, 5)
        for k, (x, y) in enumerate(POINTS.tolist()):
            close(delta[0, n, 2 * k : 2 * k + 2], torch.tensor([(col + 0.5) / 5 - x, (row + 0.5) / 2 - y]))
    swapped = with_keypoints(patch_grid(2, 5), POINTS.flip(-1), order="yx")
    assert torch.equal(relative_keypoints(swapped), delta)


@pytest.mark.parametrize("heads", ["split", "shared"])
@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_one_pair_at_a_time(heads, network):
    encoding = make(heads=heads, network=network)
    points = torch.stack((POINTS, POINTS.flip(0)))
    pos = with_keypoints(patch_grid(3, 4, prefix=1), points)
    bias = bias_of(encoding, pos)
    count = 2 if heads == "split" else 1
    assert bias.shape == (2, count, 13, 13) and bias[:, :, 0].abs().max() == 0
    x = relative_keypoints(pos)
    if network == "mlp":
        x = encoding.norm(encoding.first(x).relu())
    table = encoding.fc(x).unflatten(-1, (count, 49))
    ids = bucket_ids(pos.coords, pos.coords, "product", 1.9)[0, 0]
    for i in range(12):
        for j in range(12):
            close(bias[:, :, i + 1, j + 1], table[:, i, :, ids[i, j]])


def test_the_bias_follows_the_key_points():
    encoding, grid = make(), patch_grid(4, 4)
    here, there = (bias_of(encoding, with_keypoints(grid, POINTS + o)) for o in (0.0, 0.1))
    assert (here - there).abs().max() > 1e-3
    points = POINTS.clone().requires_grad_()
    assert not relative_keypoints(with_keypoints(grid, points)).requires_grad  # as in the official code


def test_layers_in_one_product():
    layers = [make(), make(), make()]
    for layer in layers[1:]:
        excite(layer)
    pos = with_keypoints(patch_grid(3, 4), POINTS)
    for layer, ctx in zip(layers, type(layers[0]).prepare_layers(layers, pos)):
        close(ctx.features, layer.prepare(pos).features)


def test_key_points_stay_with_dropped_tokens():
    pos = with_keypoints(patch_grid(3, 4), torch.stack((POINTS, POINTS.flip(0))))
    part = pos.take(torch.tensor([[0, 5], [3, 1]]))
    assert isinstance(part, KeypointPositions) and torch.equal(part.keypoints, pos.keypoints)
    assert torch.equal(pos.crop((0, 1), (2, 2)).keypoints, pos.keypoints)
    again = with_keypoints(part, POINTS)
    assert torch.equal(again.keypoints[0], POINTS.flip(-1)) and again.indices is part.indices


@pytest.mark.parametrize(
    "points, message",
    [
        (None, "key points are missing, got None"),
        (torch.full((5, 2), float("nan")), "5 key points are missing"),
        (POINTS * 112, "5 key points lie outside the image, values from 33.6 to 89.6 .* divide pixel coordinates"),
        (POINTS - 0.31, "1 key points lie outside the image"),
        (POINTS.bfloat16(), "bfloat16 cannot hold positions"),
        (POINTS.long(), "needs a float tensor"),
        (torch.rand(2, 5, 3), "needs a float tensor"),
    ],
)
def test_bad_key_points(points, message):
    with pytest.raises(ValueError, match=message):
        with_keypoints(patch_grid(3, 4), points)


def test_bad_use():
    grid = patch_grid(3, 4)
    with pytest.raises(ValueError, match="kprpe: these positions carry no key points; add them with with_keypoints"):
        make().prepare(grid)
    with pytest.raises(ValueError, match="kprpe: made for 5 key points, got 4"):
        make().prepare(with_keypoints(grid, POINTS[:4]))
    with pytest.raises(ValueError, match="kprpe: needs grid positions .* custom"):
        make().prepare(with_keypoints(custom_positions(torch.rand(6, 2)), POINTS))
    with pytest.raises(ValueError, match="needs positions with rows and columns"):
        with_keypoints(full_grid((2, 3, 4)), POINTS)
    with pytest.raises(ValueError, match="key points of 3 images, positions of 2"):
        with_keypoints(grid.take(torch.zeros(2, 1, dtype=torch.long)), torch.rand(3, 5, 2))
    with pytest.raises(ValueError, match="method must be one of .* got 'cross'"):
        make(method="cross")
    with pytest.raises(ValueError, match="order is 'xy' or 'yx'"):
        with_keypoints(grid, POINTS, order="rc")
    cut = with_keypoints(grid, POINTS - 0.5, outside="allow")
    assert bias_of(make(), cut).isfinite().all()
