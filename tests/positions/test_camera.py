"""Cameras: every converter there and back, images that are cut and scaled, rays, projection, and what is refused."""

import math

import pytest
import torch

from vispe.positions import camera_formats as formats
from vispe.positions import camera_grid, look_at
from vispe.positions.rays import (
    frustum_depths,
    frustum_points,
    image_rays,
    pixel_centres,
    pixel_rays,
    plucker,
    project,
    token_rays,
)

EYES = torch.tensor([[2.5, 0.4, 0.6], [-1.0, 2.2, 0.9], [0.7, -2.4, 1.2]])
POSES = look_at(EYES, torch.tensor([0.1, -0.2, 0.1]))  # (3, 4, 4)
K = torch.tensor(
    [[[40.0, 0.7, 25], [0, 44, 13], [0, 0, 1]], [[45, 0, 23], [0, 41, 17], [0, 0, 1]], [[38, 0, 24], [0, 38, 16], [0, 0, 1]]]
)
SIZE = (32, 48)


def close(a, b, tol=1e-5):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def test_converters_there_and_back():
    close(formats.from_opengl(formats.to_opengl(POSES)), POSES)
    close(formats.from_camera_to_world(formats.to_camera_to_world(POSES)), POSES)
    close(formats.from_colmap(*formats.to_colmap(POSES)), POSES)
    close(formats.from_pytorch3d(*formats.to_pytorch3d(POSES)), POSES)
    close(formats.from_opencv_calibration(formats.to_opencv_calibration(K)), K)
    for frame in ("unit", "centered", "symmetric", "pytorch3d"):
        close(formats.from_normalized(formats.to_normalized(K, SIZE, frame=frame), SIZE, frame=frame), K, 1e-4)


def test_the_axes_of_the_formats():
    """A camera at the origin of the world looking along +z, x right, y down, in each convention."""
    eye = torch.eye(4)
    close(formats.to_opengl(eye), torch.diag(torch.tensor([1.0, -1, -1, 1])))
    rotation, translation = formats.to_pytorch3d(eye)
    close(rotation, torch.diag(torch.tensor([-1.0, -1, 1])))
    close(translation, torch.zeros(3))
    quaternion, _ = formats.to_colmap(eye)
    close(quaternion, torch.tensor([1.0, 0, 0, 0]))


@pytest.mark.parametrize("diagonal", [(-1.0, 1, -1), (1.0, -1, -1), (-1.0, -1, 1)])
def test_half_turns_have_quaternions(diagonal):
    """R[2, 2] = −1 among them, where formulas by the trace divide by zero."""
    pose = torch.diag(torch.tensor([*diagonal, 1.0]))
    close(formats.from_colmap(*formats.to_colmap(pose)), pose)


def test_centred_calibrations():
    k = formats.make_intrinsics(40.0, 40.0, (SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2)
    close(formats.from_opencv_calibration(k)[:2, 2], torch.tensor([24.0, 16.0]))


def rays(k, size, pose=POSES):
    return image_rays(pose, k, size)[1]


def test_crops_see_the_rays_of_their_part():
    close(rays(formats.crop_intrinsics(K, 5, 9), (20, 30)), rays(K, SIZE)[:, 5:25, 9:39])


def test_padding_is_a_crop_backwards():
    close(rays(formats.pad_intrinsics(K, 3, 4), (40, 60))[:, 3:35, 4:52], rays(K, SIZE))


def test_half_the_size_looks_through_the_centres_of_blocks():
    corners = pixel_centres(*SIZE)[::2, ::2] + 0.5  # where four pixels meet
    want = pixel_rays(corners.flatten(0, 1), POSES, K)[1].unflatten(-2, (16, 24))
    close(rays(formats.resize_intrinsics(K, SIZE, (16, 24)), (16, 24)), want)


def test_flips_mirror_the_rays():
    straight = K.clone()
    straight[:, 0, 1] = 0
    close(rays(formats.flip_intrinsics(straight, SIZE), SIZE), rays(straight, SIZE).flip(2))
    close(rays(formats.flip_intrinsics(straight, SIZE, axis="vertical"), SIZE), rays(straight, SIZE).flip(1))


def test_the_middle_of_a_centred_camera_looks_along_its_axis():
    k = formats.from_field_of_view(1.0, (7, 9))
    direction = image_rays(POSES[:1], k[None], (7, 9))[1][0, 3, 4]
    close(direction, POSES[0, 2, :3])


def test_pluecker_coordinates():
    """Three views and a batch of three: a cross product over the wrong axis of 3 shows here."""
    origins, directions = image_rays(POSES.expand(3, 3, 4, 4), K.expand(3, 3, 3, 3), (5, 7))
    six = plucker(origins, directions)
    d, m = six[..., :3], six[..., 3:]
    close((d * m).sum(-1), torch.zeros(d.shape[:-1]), 1e-5)
    close(plucker(origins + 1.7 * directions, directions), six, 1e-5)  # any point of the ray
    shift = torch.tensor([0.3, -1.0, 2.0])
    close(plucker(origins + shift, directions)[..., 3:], m + torch.linalg.cross(shift.expand_as(d), d, dim=-1))
    assert torch.equal(plucker(origins, directions, order="moment_direction"), torch.cat((m, d), -1))


@pytest.mark.parametrize("spacing", ["lid", "uniform", "log"])
def test_frustums_project_back(spacing):
    depths = frustum_depths(6, 1.0, 20.0, spacing=spacing)
    assert depths[0] == 1 and (depths.diff() > 0).all() and depths[-1] < 20
    pixels = pixel_centres(4, 5).flatten(0, 1) * 8
    points = frustum_points(pixels.expand(3, -1, -1), POSES, K, depths)  # (3, N, D, 3)
    found, z, front = project(points.flatten(1, 2), POSES, K)
    assert front.all()
    close(z.unflatten(1, (-1, 6)), depths.expand(3, 20, 6), 1e-4)
    close(found.unflatten(1, (-1, 6)), pixels[None, :, None].expand(3, -1, 6, -1), 1e-3)


def test_depths_by_formula():
    close(frustum_depths(4, 1.0, 9.0, spacing="uniform"), torch.tensor([1.0, 3, 5, 7]))
    close(frustum_depths(4, 1.0, 16.0, spacing="log"), torch.tensor([1.0, 2, 4, 8]))
    close(frustum_depths(4, 1.0, 11.0, spacing="lid"), torch.tensor([1.0, 2, 4, 7]))


def test_points_behind_a_camera_are_masked_and_finite():
    eye = torch.eye(4)[None]
    points = torch.tensor([[[0.0, 0, -1], [0, 0, 0], [0.1, 0.2, 2]]])
    pixels, _, front = project(points, eye, K[:1])
    assert front.tolist() == [[False, False, True]] and pixels.isfinite().all()


def test_views_and_tokens_keep_their_cameras_and_depths():
    depth = torch.arange(3 * 12.0)[None] + 1
    pos = camera_grid(3, 4, POSES, K, SIZE, depth=depth)
    assert pos.tokens_per_view == 12 and pos.num_views == 3
    keep = torch.tensor([35, 0, 13])
    part = pos.take(keep)
    assert part.view.tolist() == [[2, 0, 1]] and part.depth.tolist() == [[36.0, 1.0, 14.0]] and part.tokens_per_view is None
    for a, b in zip(token_rays(part), token_rays(pos)):
        close(a, b[:, keep])
    two = pos.select_views([2, 0])
    close(token_rays(two)[1], torch.cat((token_rays(pos)[1][:, 24:], token_rays(pos)[1][:, :12]), 1))


def test_every_sample_has_its_own_intrinsics():
    twice = K[:1].clone()
    twice[:, 0, 0] *= 2
    pos = camera_grid(3, 4, POSES[:1].expand(2, 1, 4, 4), torch.stack((K[:1], twice)), SIZE)
    origins, directions = token_rays(pos)
    assert (directions[0] - directions[1]).abs().max() > 0.05


def test_ten_kilometres_away():
    far = torch.eye(4, dtype=torch.float64)
    far[:3, 3] = torch.tensor([1e4, -2e4, 3e3], dtype=torch.float64)
    left, _, right = torch.linalg.svd(POSES[:, :3, :3].double())
    poses = formats.make_pose(left @ right, POSES[:, :3, 3].double())  # orthonormal to float64's rounding, not float32's
    near = camera_grid(2, 2, poses, K, SIZE, frame="first").world_to_camera
    moved = camera_grid(2, 2, poses @ far, K, SIZE, frame="first").world_to_camera
    close(moved, near, 1e-6)
    close(near[:, 0], torch.eye(4)[None], 1e-6)


def stretched(factor):
    pose = POSES.clone()
    pose[:, :3, :3] *= factor
    return pose


@pytest.mark.parametrize(
    "poses, intrinsics, words",
    [
        (stretched(1.1), K, "0\\.2"),  # says by how much R Rᵀ is off
        (POSES * torch.tensor([-1.0, 1, 1, 1])[:, None], K, "mirror"),
        (POSES.clone().index_fill(-2, torch.tensor([3]), 0.0), K, "last row"),
        (POSES * math.nan, K, "NaN|finite"),
        (POSES.half(), K, "float16"),
        (POSES, K * torch.tensor([0.0, 1, 1])[:, None], "singular|focal"),
        (POSES, K / torch.tensor([48.0, 32, 1])[:, None], "normali"),
    ],
    ids=["stretched", "mirror", "last row", "nan", "half", "singular", "normalised"],
)
def test_bad_cameras_are_refused(poses, intrinsics, words):
    with pytest.raises(ValueError, match=words):
        camera_grid(3, 4, poses, intrinsics, SIZE)


def test_rays_compile():
    def directions(poses, intrinsics):
        return token_rays(camera_grid(3, 4, poses, intrinsics, SIZE))[1]

    want = directions(POSES, K)
    close(torch.compile(directions, fullgraph=True, backend="eager")(POSES, K), want)
