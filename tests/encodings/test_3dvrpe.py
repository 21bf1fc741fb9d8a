"""3DV-RPE: a loop over pairs, corners and table entries as oracle; queries and keys of their own; refusals."""

import itertools
import math

import pytest
import torch

from vispe import create_encoding
from vispe.encodings.v_detr_3dvrpe import log_offsets, lookup
from vispe.positions import custom_positions
from vispe.positions.boxes import box_corners, box_positions, scene_centre


def build(**options):
    torch.manual_seed(0)
    options = {"hidden": 4, "entries": 5, "cell": None, **options}
    return create_encoding("v_detr_3dvrpe", dim=8, num_heads=2, axes=3, **options).eval()


def loop(tables, where):
    """Linear interpolation of every table at every place, entry by entry; the table's axes are z, y, x."""
    heads, n = tables.shape[1:3]
    out = torch.zeros(where.shape[0], heads, *where.shape[1:3])
    for b, i, j, v in itertools.product(*map(range, where.shape[:4])):
        place = [((w + 1) * n - 1) / 2 for w in where[b, i, j, v].tolist()]
        base = [math.floor(p) for p in place]
        for dx, dy, dz in itertools.product((0, 1), repeat=3):
            at = [base[0] + dx, base[1] + dy, base[2] + dz]
            if all(0 <= a < n for a in at):
                weight = math.prod(1 - abs(p - a) for p, a in zip(place, at))
                out[b, :, i, j] += weight * tables[v, :, at[2], at[1], at[0]]
    return out


def test_lookup_is_the_loop():
    g = torch.Generator().manual_seed(0)
    tables = torch.randn(8, 2, 4, 4, 4, generator=g)
    where = torch.rand(2, 3, 2, 8, 3, generator=g) * 2.6 - 1.3  # some outside
    torch.testing.assert_close(lookup(tables, where), loop(tables, where), rtol=1e-4, atol=1e-5)


def test_border_is_at_eight_metres_and_fades():
    assert log_offsets(torch.tensor([8.0]), 512.0, 4.0).item() == pytest.approx(1.0, abs=1e-3)
    tables = torch.ones(8, 1, 10, 10, 10)
    at = [lookup(tables, torch.full((1, 1, 1, 8, 3), w)).item() for w in (0.0, 0.9, 1.0, 1.2)]
    assert at == pytest.approx([8, 8, 1, 0], abs=1e-4)


def test_boxes_query_points():
    centres, sizes = torch.randn(2, 3, 3), torch.rand(2, 3, 3) + 0.5
    encoding = build()
    boxes = encoding.prepare(box_positions(box_corners(centres, sizes)))
    points = encoding.prepare(custom_positions(torch.randn(2, 6, 3)))
    x = torch.zeros(2, 2, 1, 4)
    bias = encoding.bias(x, x, boxes, points)
    assert bias.shape == (2, 2, 3, 6)
    part = encoding.prepare(box_positions(box_corners(centres, sizes)).take(torch.tensor([[2, 0], [1, 1]])))
    torch.testing.assert_close(encoding.bias(x, x, part, points)[1, :, 0], bias[1, :, 1])
    with pytest.raises(ValueError, match="queries carry no boxes"):
        encoding.bias(x, x, points, boxes)
    with pytest.raises(ValueError, match="carry no angle"):
        build(boxes="turned").bias(x, x, boxes, points)


def test_a_scene_that_turns_about_its_boxes():
    """Boxes and points turned together give the bias of before, when offsets run along the sides."""
    g = torch.Generator().manual_seed(1)
    centres, sizes = torch.randn(1, 3, 3, generator=g), torch.rand(1, 3, 3, generator=g) + 0.5
    points = torch.randn(1, 5, 3, generator=g)
    encoding, turn = build(boxes="turned"), 0.7
    cos, sin = math.cos(turn), math.sin(turn)
    rotation = torch.tensor([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1.0]])
    x, found = torch.zeros(1, 2, 1, 4), []
    for r, angle in ((torch.eye(3), 0.0), (rotation, turn)):
        yaw = torch.full((1, 3), angle)
        boxes = encoding.prepare(box_positions(box_corners(centres @ r.mT, sizes, yaw), yaw))
        found.append(encoding.bias(x, x, boxes, encoding.prepare(custom_positions(points @ r.mT))))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_bad_boxes():
    with pytest.raises(ValueError, match="vertices must be"):
        box_positions(torch.zeros(1, 2, 4, 3))
    with pytest.raises(ValueError, match="NaN"):
        box_positions(torch.full((1, 2, 8, 3), float("nan")))
    with pytest.raises(ValueError, match="cannot hold"):
        box_positions(torch.zeros(1, 2, 8, 3, dtype=torch.bfloat16))


def test_scene_centre():
    points = torch.tensor([[[1.0, 2, 3], [3, 2, 9], [2, 0, 4]]])
    assert scene_centre(points).tolist() == [[[2.0, 1.0, 6.0]]]
