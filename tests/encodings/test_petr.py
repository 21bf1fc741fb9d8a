"""PETR, StreamPETR and 3DPPE: loops as oracles, cameras that differ, padding, depths that are not positive, precision."""

import math

import pytest
import torch

from vispe.encodings.frustum import image_to_world, inverse_sigmoid, invert_projection, out_of_range, view_counts, view_sine
from vispe.encodings.petr import Petr, ReferencePoints
from vispe.encodings.petr_3dppe import Petr3dppe, fuse_depth, known_depth
from vispe.encodings.petr_3dppe_view import project_queries
from vispe.encodings.streampetr import StreamPetr, token_focals
from vispe.positions import camera_grid, custom_positions, patch_grid
from vispe.positions.rays import look_at

SIZE, GRID, DIM = (80, 112), (5, 7), 16


def rig(views=3):
    """Cameras around a car, off-centre principal points, one focal length each."""
    angle = [2 * math.pi * i / views + 0.2 for i in range(views)]
    pose = torch.stack([look_at([0.3 * math.cos(a), 0.1, 1.5], [9 * math.cos(a), 9 * math.sin(a), 1.0]) for a in angle])
    k = torch.tensor([[90.0, 0, 59], [0, 95, 37], [0, 0, 1]]).repeat(views, 1, 1)
    k[:, 0, 0] += 10 * torch.arange(views)
    return pose, k


def positions(views=3, **more):
    return camera_grid(*GRID, *rig(views), SIZE, **more)


def build(cls=Petr, **options):
    torch.manual_seed(0)
    return cls(dim=DIM, num_heads=2, **options).eval()


def loop_points(pos, depths, cell):
    """Every point by a 4x4 inverse of its own, in float64."""
    rows = []
    for n in range(pos.coords.shape[1]):
        v = pos.view[0, n]
        k4 = torch.eye(4, dtype=torch.float64)
        k4[:3, :3] = pos.intrinsics[0, v].double()
        back = torch.linalg.inv(k4 @ pos.world_to_camera[0, v].double())
        row, col = pos.coords[0, n].tolist()
        shift = 0.5 if cell == "centre" else 0.0
        u, w = (col + shift) * SIZE[1] / GRID[1], (row + shift) * SIZE[0] / GRID[0]
        rows.append(torch.stack([(back @ torch.tensor([u * d, w * d, d, 1.0], dtype=torch.float64))[:3] for d in depths]))
    return torch.stack(rows)


@pytest.mark.parametrize("cell", ["corner", "centre"])
@pytest.mark.parametrize("spacing", ["lid", "uniform", "log"])
def test_frustum_is_the_loop_over_points(cell, spacing):
    encoding, pos = build(depth_num=6, cell=cell, spacing=spacing), positions()
    box = torch.tensor(encoding.position_range)
    want = (loop_points(pos, encoding.depths().tolist(), cell) - box[:3]) / (box[3:] - box[:3])
    torch.testing.assert_close(encoding.frustum(pos)[0], want.float(), rtol=2e-5, atol=2e-5)


def test_closed_inverse_with_skew():
    pose, k = rig()
    k[:, 0, 1] = 3.0
    k4 = torch.eye(4).repeat(len(k), 1, 1)
    k4[:, :3, :3] = k
    torch.testing.assert_close(image_to_world(pose, k), invert_projection(k4.double() @ pose.double()), rtol=1e-5, atol=1e-6)


def test_different_intrinsics_in_a_batch():
    pose, k = rig()
    both = torch.stack((k, k * torch.tensor([[2.0, 1, 1], [1, 2, 1], [1, 1, 1]])))
    for encoding in (build(), build(StreamPetr), build(Petr3dppe)):
        x = torch.randn(2, 105, DIM)
        ctx = encoding.prepare(camera_grid(*GRID, pose, both, SIZE))
        out = encoding.embedding(x, ctx)
        for i in (0, 1):
            one = encoding.prepare(camera_grid(*GRID, pose, both[i], SIZE))
            torch.testing.assert_close(out[i : i + 1], encoding.embedding(x[i : i + 1], one), rtol=1e-5, atol=1e-5)
        other = encoding.embedding(x[:1], encoding.prepare(camera_grid(*GRID, pose, both[1], SIZE)))
        assert (out[:1] - other).abs().max() > 1e-3


def test_order_of_cameras_matters_to_the_sine_alone():
    pose, k = rig()
    order = [2, 0, 1]
    index = torch.arange(105).unflatten(0, (3, 35))[order].flatten()
    for multiview in (False, True):
        encoding = build(multiview=multiview)
        x = torch.zeros(1, 105, DIM)
        first = encoding.tokens(x, encoding.prepare(camera_grid(*GRID, pose, k, SIZE)))[:, index]
        moved = encoding.tokens(x, encoding.prepare(camera_grid(*GRID, pose[order], k[order], SIZE)))
        assert torch.allclose(first, moved, atol=1e-6) != multiview


def test_cells_without_padding_are_counted_as_a_mask_counts_them():
    encoding, pos = build(), positions()
    counts, lasts = (t.flatten(1, 3) for t in view_counts(torch.zeros(1, 3, *GRID)))
    want = encoding.context(encoding.frustum(pos), counts, lasts)
    torch.testing.assert_close(encoding.prepare(pos).views, want.views)


def test_a_camera_or_column_of_padding_is_finite():
    mask = torch.zeros(1, 3, *GRID)
    mask[:, 1], mask[:, 0, :, -2:] = 1, 1
    counts, lasts = view_counts(mask)
    found = view_sine(counts, lasts, 8)
    assert found.isfinite().all() and (counts[:, 1, ..., 1:] == 0).all() and found.abs().max() <= 1


def test_depth_that_is_not_positive_and_points_out_of_range():
    encoding, pos = build(Petr3dppe), positions(1)
    ctx = encoding.prepare(pos)
    for depth in (0.0, -4.0, 1e-7, 1e4):
        points = encoding.points(ctx, torch.full((1, 35), depth))
        embedded = encoding.queries(points)
        assert points.isfinite().all() and embedded.isfinite().all()
    assert out_of_range(points[..., None, :]).all()  # at 10 km
    assert inverse_sigmoid(torch.tensor([-3.0, 0.0, 1.0, 7.0])).abs().max() < 11.6


def test_given_depth_is_cut_to_the_range_and_missing_depth_is_refused():
    depth = torch.tensor([0.0, -1.0, 5.0, 1e3])
    assert known_depth(depth, depth > 0, 61.2).tolist() == pytest.approx([61.2, 61.2, 5.0, 61.2])
    encoding = build(Petr3dppe, depth_source="given")
    with pytest.raises(ValueError, match="positions carry none"):
        encoding.prepare(positions())
    ctx = encoding.prepare(positions(depth=torch.full((105,), 7.0)))
    want = loop_points(positions(), [7.0], "corner")[:, 0]
    box = torch.tensor(encoding.position_range)
    want = ((want - box[:3]) / (box[3:] - box[:3])).float()
    torch.testing.assert_close(encoding.points(ctx, ctx.depth)[0], want, rtol=1e-4, atol=1e-5)


def test_fused_depth():
    direct, expected = torch.tensor([10.0]), torch.tensor([20.0])
    assert fuse_depth(direct, expected, torch.tensor(0.0)).item() == 15
    assert fuse_depth(direct, expected, torch.tensor(40.0)).item() == 10
    encoding = build(Petr3dppe, direct="exp", depth_num=4)
    zero = encoding.depth_of(torch.zeros(1), torch.zeros(1, 4))
    assert zero.item() == pytest.approx(0.5 * 1 + 0.5 * (1 + 61.2) / 2, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_leave_positions_alone(dtype):
    """u · d passes 65504, float16's largest number; contexts of a half module are those of its rounded weights."""
    pose, k = rig()
    k = k * torch.tensor([[20.0], [20.0], [1.0]])
    pos = camera_grid(*GRID, pose, k, (1600, 2240))
    encoding = build(depth_num=8).to(dtype)
    ctx, twin = encoding.prepare(pos), encoding.float().prepare(pos)
    assert ctx.points.dtype == torch.float32 and torch.equal(ctx.points, twin.points) and torch.equal(ctx.views, twin.views)
    assert encoding.to(dtype).tokens(torch.zeros(1, 105, DIM, dtype=dtype), ctx).isfinite().all()


def test_streampetr_gives_tokens_their_own_camera_unless_asked_otherwise():
    pos = positions()
    x = torch.randn(1, 105, DIM, generator=torch.Generator().manual_seed(0))
    fixed, compat = build(StreamPetr).prepare(pos), build(StreamPetr, preset="streampetr_compat").prepare(pos)
    focal = pos.intrinsics[0, :, 0, 0] / 1000
    for t in (0, 1, 36, 104):
        assert fixed.cone[0, t, 0] == focal[t // 35] and compat.cone[0, t, 0] == focal[t % 3]
    assert torch.equal(fixed.cone[..., 2:], compat.cone[..., 2:])
    assert token_focals(torch.ones(1, 3, 2), 35, "fixed").shape == (1, 105, 2)
    with pytest.raises(ValueError, match="needs all cells of all views"):
        build(StreamPetr, preset="streampetr_compat").prepare(pos.take(torch.arange(4)))
    assert build(StreamPetr).memory(x, fixed).shape == x.shape


def test_prefix_tokens_get_nothing():
    for encoding in (build(), build(Petr3dppe), build(StreamPetr), build(guided=True)):
        x = torch.randn(2, 107, DIM)
        out = encoding.tokens(x, encoding.prepare(positions(prefix=2)))
        assert torch.equal(out[:, :2], x[:, :2]) and not torch.equal(out[:, 2:], x[:, 2:])


def test_queries_share_the_network_of_3dppe():
    encoding, anchors = build(Petr3dppe), ReferencePoints(DIM, 5, space="logit")
    anchors.query_embedding.load_state_dict(encoding.position_encoder.state_dict())
    points, embedded = anchors()
    torch.testing.assert_close(embedded, encoding.queries(points))


def test_points_behind_a_camera_are_not_seen():
    pose, k = rig(1)
    k4 = torch.eye(4)[None]
    k4[:, :3, :3] = k
    back = torch.linalg.inv(pose)[:, :3]
    points = torch.stack([(back[0, :, 3] + s * back[0, :, 2]) for s in (5.0, -5.0, 0.0)])[None]
    where, inside = project_queries(points, (k4 @ pose)[:, None], SIZE, 61.2)
    assert inside.tolist() == [[[True, False, False]]] and (where[0, 0, 1:] == -1).all()


def test_refusals():
    for encoding in (build(), build(StreamPetr), build(Petr3dppe)):
        with pytest.raises(ValueError, match="carry no cameras with intrinsics; build them with camera_grid"):
            encoding.prepare(patch_grid(*GRID))
        with pytest.raises(ValueError, match="got custom coordinates"):
            encoding.prepare(custom_positions(torch.zeros(3, 2)))
    with pytest.raises(ValueError, match="multiple of 4"):
        Petr(dim=18, num_heads=2)
    with pytest.raises(ValueError, match="position_range must be"):
        build(position_range=(1, 2, 3, 0, 5, 6))
    with pytest.raises(ValueError, match="at least 30"):
        build(StreamPetr, depth_num=20)
