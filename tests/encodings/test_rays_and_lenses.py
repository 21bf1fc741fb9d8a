"""KPE, epipolar attention, ray distances and Fourier rays: loops as oracles, crops, geometry, degenerate rays, refusals."""

import math

import pytest
import torch

from vispe.encodings.epipolar import CLOSED, Epipolar, epipolar_distance
from vispe.encodings.epipolar_lines import spad_mask
from vispe.encodings.kpe import Kpe, angle_octaves, center_corner, lens_angles
from vispe.encodings.ray_distance import RayDistance, line_distance
from vispe.encodings.ray_fourier import RayFourier
from vispe.positions import camera_grid, look_at, patch_grid, project
from vispe.positions.camera_formats import crop_intrinsics, from_field_of_view, resize_intrinsics
from vispe.positions.rays import orbit, plucker, token_rays

MADE = {"kpe": Kpe, "epipolar": Epipolar, "ray_distance": RayDistance, "ray_fourier": RayFourier}
EYES = torch.tensor([[2.5, 0.4, 0.6], [-1.0, 2.2, 0.9], [0.3, -2.4, 1.2]])
LENSES = torch.tensor([[[30.0, 0, 15], [0, 28, 11], [0, 0, 1]], [[25.0, 0.5, 17], [0, 26, 12], [0, 0, 1]],
                       [[34.0, 0, 16], [0, 33, 13], [0, 0, 1]]])  # fmt: skip
POSES = look_at(EYES, torch.tensor([0.1, -0.2, 0.3]))
SIZE = (24, 32)


def views(grid=(6, 8), keep=(0, 1, 2), **options):
    return camera_grid(*grid, POSES[list(keep)], LENSES[list(keep)], SIZE, **options)


def build(name, **options):
    return MADE[name](dim=24, num_heads=2, **options)


# ---- KPE ----------------------------------------------------------------------------------------------------------------


def test_angles_one_by_one():
    encoding, pos = build("kpe", num_freqs=2), views((2, 2), prefix=1)
    ctx = encoding.prepare(pos)
    assert ctx.shape == (1, 13, 24) and (ctx[:, 0] == 0).all()
    for view in range(3):
        k = LENSES[view].tolist()
        for row in range(2):
            for col in range(2):
                x = math.atan2(16 * col + 8 - k[0][2], k[0][0])
                y = math.atan2(12 * row + 6 - k[1][2], k[1][1])
                numbers = [f(2**l * a) for l in range(2) for a in (x, y) for f in (math.sin, math.cos)]
                torch.testing.assert_close(ctx[0, 1 + 4 * view + 2 * row + col], encoding.proj(torch.tensor(numbers)))


@pytest.mark.parametrize("net", ["linear", "mlp"])
def test_crops_keep_the_angles_of_the_whole_image(net):
    """Crop, resize and encode: the same as encode and crop."""
    encoding = build("kpe", net=net)
    whole = encoding.prepare(views((12, 16))).unflatten(1, (3, 12, 16))
    k = resize_intrinsics(crop_intrinsics(LENSES, 4, 8), (12, 16), (36, 48))  # rows 4 to 16, columns 8 to 24, times 3
    crop = encoding.prepare(camera_grid(6, 8, POSES, k, (36, 48))).unflatten(1, (3, 6, 8))
    torch.testing.assert_close(crop, whole[:, :, 2:8, 4:12])


def test_sparse_form_is_that_of_the_image():
    encoding = build("kpe", form="both", num_freqs=3)
    features = encoding.features(views((2, 3)))
    assert features.shape == (1, 18, 72)
    box = torch.tensor([0.0, 0.0, 32.0, 24.0]).expand(3, 4)
    torch.testing.assert_close(features[0, :, 12:], center_corner(box, LENSES, 3).repeat_interleave(6, 0))
    tangent = build("kpe", angles="tangent").features(views((2, 3)))
    angle = build("kpe").features(views((2, 3)))
    assert (tangent - angle).abs().max() > 1e-3
    near = lens_angles(torch.tensor([[15.1, 11.1]]), LENSES[0])
    torch.testing.assert_close(near, lens_angles(torch.tensor([[15.1, 11.1]]), LENSES[0], angles="tangent"), rtol=1e-4, atol=0)
    torch.testing.assert_close(angle_octaves(near, 1), torch.stack((near.sin(), near.cos()), -1).flatten(-2))


# ---- epipolar lines -----------------------------------------------------------------------------------------------------


def test_points_of_a_ray_lie_on_its_line():
    """Points in front of both cameras, projected into the other view, are 0 cells from the line; skew counts."""
    encoding, pos = build("epipolar"), views()
    ctx = encoding.prepare(pos)
    distance, same = epipolar_distance(ctx, ctx)
    assert torch.equal(same, pos.view[:, :, None] == pos.view[:, None])
    origins, directions = token_rays(pos)
    hits = 0
    for i in range(0, 144, 7):
        for depth in (1.5, 2.5, 3.5):
            point = (origins + depth * directions)[0, i]
            for view in range(3):
                if view == pos.view[0, i]:
                    continue
                pixel, _, front = project(point[None], POSES[view], LENSES[view])
                u, v = (pixel[0] / 4).tolist()  # cells
                if not front or not (0 <= u < 8 and 0 <= v < 6):
                    continue
                hits += 1
                cell = 48 * view + 8 * int(v) + int(u)
                assert distance[0, i, cell] <= 2**-0.5 + 1e-4  # the cell that holds the point
    assert hits > 20


@pytest.mark.parametrize("prefix", [0, 2])
def test_mask_never_empties_a_row(prefix):
    encoding = build("epipolar", width=0.5)
    ctx = encoding.prepare(views(prefix=prefix))
    bias = encoding.bias(torch.ones(1), torch.ones(1), ctx, ctx)
    assert bias.shape == (1, 1, 144 + prefix, 144 + prefix)
    assert (bias[..., :prefix] == 0).all() and (bias[:, :, :prefix] == 0).all()
    assert set(bias.unique().tolist()) == {0.0, CLOSED}
    own = torch.arange(3).repeat_interleave(48)
    assert (bias[0, 0, prefix:, prefix:][own[:, None] == own] == 0).all()
    apart = camera_grid(6, 8, POSES[1:2], LENSES[1:2] + torch.tensor([[0, 0, 900.0], [0, 0, 900], [0, 0, 0]]), SIZE)
    lost = encoding.bias(torch.ones(1), torch.ones(1), encoding.prepare(views(keep=(0,))), encoding.prepare(apart))
    assert (lost == 0).any(dim=-1).all()


def test_drawn_masks_agree_with_the_distance():
    """SPAD's drawn lines are within 3 cells of the true ones, and mark what is nearer than half a cell."""
    size = 8
    pose = orbit(torch.tensor([0.3, 1.9]), torch.tensor([1.1, 0.8]))
    k = from_field_of_view(0.7, (size, size))
    ctx = build("epipolar").prepare(camera_grid(size, size, pose, k.expand(2, 3, 3), (size, size)))
    distance = epipolar_distance(ctx, ctx)[0][0, : size**2, size**2 :]
    mask = spad_mask(pose[0], pose[1], k, size)
    assert distance[mask].max() < 3
    assert mask[(distance < 0.5) & mask.any(1, keepdim=True)].float().mean() > 0.95
    plain = spad_mask(pose[0], pose[1], k, size, dilated=False)
    assert (plain & ~mask).sum() == 0 and plain.sum() < mask.sum()


# ---- distances and sines of rays ----------------------------------------------------------------------------------------


def test_distances_one_by_one():
    """Of skew, crossing and parallel lines, whatever point stands for them; batches of 3 too."""
    g = torch.Generator().manual_seed(0)
    o, d = torch.randn(3, 4, 3, generator=g, dtype=torch.float64), torch.randn(3, 4, 3, generator=g, dtype=torch.float64)
    d = d / d.norm(dim=-1, keepdim=True)
    d[:2, 1], d[2, 1] = d[:2, 0], -d[2, 0]  # parallel, and against each other
    o[:, 3] = o[:, 2] + 1.7 * d[:, 2]  # meets line 2
    found = line_distance(plucker(o, d), plucker(o + 3 * d, d), eps=1e-9)
    for b in range(3):
        for i in range(4):
            for j in range(4):
                n = torch.linalg.cross(d[b, i], d[b, j])
                gap = o[b, j] - o[b, i]
                along = d[b, i] / d[b, i].norm()
                want = (gap - (gap @ along) * along).norm() if n.norm() < 1e-9 else (gap @ n).abs() / n.norm()
                assert abs(found[b, i, j] - want) < 1e-6
    assert found[:, 2, 3].max() < 1e-6 and (found[:, 0, 1] > 0.1).all()


def test_gamma_scales_the_bias_and_learns():
    encoding, pos = build("ray_distance"), views((2, 3), prefix=1)
    ctx = encoding.prepare(pos)
    q = torch.randn(1, 2, 19, 12)
    bias = encoding.bias(q, q, ctx, ctx)
    assert bias.shape == (1, 1, 19, 19) and (bias[0, 0, 0] == 0).all() and bias.max() <= 0
    rays = token_rays(pos)
    torch.testing.assert_close(bias[0, 0, 1:, 1:], -line_distance(plucker(*rays), plucker(*rays))[0], rtol=1e-3, atol=1e-3)
    bias.sum().backward()
    assert encoding.gamma.grad.abs() > 1
    with torch.no_grad():
        encoding.gamma.fill_(2.0)
    torch.testing.assert_close(encoding.bias(q, q, ctx, ctx), 4 * bias)


@pytest.mark.parametrize("form", ["srt", "gbt"])
def test_sines_of_rays_one_by_one(form):
    encoding, pos = build("ray_fourier", form=form, num_freqs=3, scale=2.0), views((2, 2))
    origins, directions = token_rays(pos)
    o, d = (origins[0, 5] / 2).double(), directions[0, 5].double()
    if form == "srt":
        angles = [[float(v) * 2**k * math.pi for v in x for k in range(s, s + 3)] for x, s in ((o, -5), (d, 0))]
        want = [f(a) for half in angles for f in (math.sin, math.cos) for a in half]
    else:
        angles = [float(v) * 2**k * math.pi for k in range(-6, -3) for v in plucker(o, d)]
        want = [f(a) for f in (math.sin, math.cos) for a in angles]
    expected = encoding.proj(torch.tensor(want))
    torch.testing.assert_close(encoding.prepare(pos)[0, 5], expected, rtol=1e-4, atol=1e-4)


# ---- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_refusals(name):
    with pytest.raises(ValueError, match=f"{name}: these positions carry no cameras"):
        build(name).prepare(patch_grid(2, 3))
    with pytest.raises(ValueError, match=f"{name}: these cameras have no intrinsics"):
        build(name).prepare(camera_grid(2, 3, POSES))
    broken = {
        "kpe": [("form", "sparse"), ("num_freqs", 0), ("net", "cnn"), ("angles", "degrees")],
        "epipolar": [("form", "soft"), ("width", 0.0)],
        "ray_distance": [("eps", -1.0), ("scale", 0.0)],
        "ray_fourier": [("form", "nerf"), ("num_freqs", 0), ("scale", -1.0)],
    }[name]
    for option, value in broken:
        with pytest.raises(ValueError, match=f"{name}: {option}"):
            build(name, **{option: value})


def test_starting_from_nothing():
    for name, options, able in (("kpe", {}, True), ("kpe", {"net": "mlp"}, False), ("ray_fourier", {}, True)):
        encoding = build(name, **options)
        assert encoding.set_identity() is able
        assert (encoding.prepare(views((2, 2))).abs().max() == 0) == able
