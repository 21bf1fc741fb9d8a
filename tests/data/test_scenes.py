"""Drawn scenes: determinism, exact cameras and depth, frames, views that keep their numbers, the rig."""

import math
import pickle

import pytest
import torch

from vispe.data import RigScenes, Scenes
from vispe.data.raytrace import Solids, render
from vispe.positions import look_at
from vispe.positions.camera_formats import invert_pose, make_intrinsics, rotate
from vispe.positions.rays import frustum_points, pixel_centres, project


def world_points(scene: dict[str, torch.Tensor]) -> torch.Tensor:
    """Where every pixel's ray ends, (V, H, W, 3), in the scene's frame."""
    size = scene["depth"].shape[-2:]
    pixels = pixel_centres(*size).flatten(0, 1).expand(len(scene["depth"]), -1, -1)
    points = frustum_points(pixels, scene["world_to_camera"], scene["intrinsics"], scene["depth"].flatten(1)[..., None])
    return points.squeeze(-2).unflatten(1, size)


@pytest.mark.parametrize("kind", [Scenes, RigScenes])
def test_a_scene_does_not_depend_on_what_is_drawn_with_it(kind: type) -> None:
    options = {"boxes": 2, "spheres": 2, "frame": "random", "focal_spread": 0.5, "roll": 3.0} if kind is Scenes else {}
    scenes = kind("val", size=(20, 28), length=50, **options)
    torch.manual_seed(3)
    batch, again = scenes.batch([7, 0, 31]), pickle.loads(pickle.dumps(scenes))
    for place, index in enumerate((7, 0, 31)):
        for name, value in again[index].items():
            assert torch.equal(value, batch[name][place]), name
    others = [kind("val", size=(20, 28), seed=1, **options)[7], kind("test", size=(20, 28), **options)[7], scenes[8]]
    assert all(not torch.equal(other["images"], batch["images"][0]) for other in others)


def test_the_same_camera_whatever_else_is_asked_for() -> None:
    three, order = Scenes("val", size=16, views=3, frame="world")[4], Scenes("val", size=16, views=[2, 9, 0], frame="world")[4]
    for name in ("images", "depth", "world_to_camera"):
        assert torch.equal(three[name][2], order[name][0]) and torch.equal(three[name][0], order[name][2])


def test_depth_says_where_the_solids_are() -> None:
    for frame in ("world", "random"):
        scene = Scenes("val", size=(24, 32), views=3, spheres=3, frame=frame)[2]
        points = world_points(scene)[scene["depth"] > 0]
        centres, radii = scene["spheres"].split((3, 1), dim=-1)
        near = ((points[:, None] - centres).norm(dim=-1) - radii.T).abs().amin(-1)
        on_sphere = near < 1e-4
        assert on_sphere.float().mean() > 0.1
        if frame == "world":
            assert (points[~on_sphere, 2].abs() < 1e-4).all()
            assert (points[~on_sphere, :2].norm(dim=-1) < 3.001).all()


def test_a_sphere_looks_as_the_formula_says() -> None:
    """One sphere straight ahead: depth at its middle, outline, and shading by the light."""
    spheres = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]])
    solids = Solids(spheres, torch.ones(1, 1, 3), torch.zeros(1, 0, 8), torch.zeros(1, 0, 3))
    pose = look_at((0.0, -4.0, 0.0), (0.0, 0.0, 0.0))[None, None]
    images, depth, number = render(solids, pose, make_intrinsics(40.0, 40.0, 20.5, 20.5)[None, None], (41, 41))
    torch.testing.assert_close(depth[0, 0, 20, 20], torch.tensor(3.0))
    light = 0.35 + 0.65 * max(0.0, -0.3 / math.sqrt(0.4**2 + 0.3**2 + 0.85**2))  # the normal is −y
    torch.testing.assert_close(images[0, 0, :, 20, 20], torch.full((3,), light))
    outline = 40 * math.tan(math.asin(1 / 4))  # px
    rows = (number[0, 0, :, 20] == 0).nonzero().flatten()
    assert abs((rows.max() - rows.min() + 1).item() / 2 - outline) < 0.6
    assert images[0, 0, 0, 12, 20] > images[0, 0, 0, 28, 20]  # light comes from above


def test_a_turned_box_is_hit_where_it_is() -> None:
    yaw, half = 0.6, torch.tensor([0.5, 0.2, 0.4])
    box = torch.tensor([[[0.3, -0.2, 1.0, *(2 * half).tolist(), math.cos(yaw), math.sin(yaw)]]])
    none = torch.zeros(1, 0, 4)
    solids = Solids(none, none[..., :3], box, torch.ones(1, 1, 3))
    pose = look_at((2.0, 3.0, 2.5), (0.3, -0.2, 1.0))[None, None]
    intrinsics = make_intrinsics(60.0, 60.0, 24.0, 16.0)[None, None]
    images, depth, number = render(solids, pose, intrinsics, (32, 48))
    scene = {"depth": depth[0], "world_to_camera": pose[0], "intrinsics": intrinsics[0]}
    points = world_points(scene)[number[0] == 0] - torch.tensor([0.3, -0.2, 1.0])
    c, s = math.cos(yaw), math.sin(yaw)
    local = rotate(torch.tensor([[c, s, 0], [-s, c, 0], [0, 0, 1.0]]), points).abs()
    assert len(points) > 50
    torch.testing.assert_close((local / half).amax(-1), torch.ones(len(points)), atol=1e-4, rtol=0)
    assert set(images[0, 0, 0][number[0, 0] == 0].mul(100).round().long().unique().tolist()) == {55, 75, 100}


def test_frames_change_numbers_and_not_pictures() -> None:
    found = {f: Scenes("val", size=16, boxes=1, frame=f)[5] for f in ("world", "canonical", "random", "far")}
    world = found["world"]
    for name, scene in found.items():
        assert torch.equal(scene["images"], world["images"]) and torch.equal(scene["depth"], world["depth"])
        seen = [project(s["boxes"][0], s["world_to_camera"], s["intrinsics"])[0] for s in (scene, world)]
        torch.testing.assert_close(*seen, atol=2e-3, rtol=0)
        relative = [s["world_to_camera"] @ invert_pose(s["world_to_camera"][:1]) for s in (scene, world)]
        torch.testing.assert_close(*relative, atol=1e-4 if name == "far" else 1e-5, rtol=0)
    torch.testing.assert_close(found["canonical"]["world_to_camera"][0], torch.eye(4), atol=1e-6, rtol=0)
    assert not torch.equal(found["random"]["world_to_camera"], found["far"]["world_to_camera"])
    assert torch.equal(found["random"]["world_to_camera"][:, :3, :3], found["far"]["world_to_camera"][:, :3, :3])


def test_other_sizes_show_the_same_scene() -> None:
    small, large = Scenes("val", size=16)[3], Scenes("val", size=(48, 96))[3]
    torch.testing.assert_close(large["intrinsics"][:, 0, 0], 3 * small["intrinsics"][:, 0, 0])
    middle = large["images"][..., 24:72]  # the wider picture shows more at its sides
    inner = torch.nn.functional.avg_pool2d(middle, 3)
    assert (inner - small["images"]).abs().mean() < 0.03


def test_focal_lengths_roll_and_distance() -> None:
    plain = Scenes("val", size=20, frame="world").batch(range(40))
    assert (plain["intrinsics"][..., 0, 0] == 22).all()
    other = Scenes("val", size=20, frame="world", focal_spread=0.5, roll=math.pi, distance=(2.0, 4.0)).batch(range(40))
    focal = other["intrinsics"][..., 0, 0]
    assert focal.min() < 15 and focal.max() > 34 and (focal >= 22 * math.exp(-0.5) - 1e-4).all()
    upright = [b["world_to_camera"][..., 0, 2].abs().amax() for b in (plain, other)]  # z up has no part in the image's x
    assert upright[0] < 1e-6 and upright[1] > 0.5
    distance = invert_pose(other["world_to_camera"])[..., :3, 3].norm(dim=-1)
    assert distance.min() > 1.99 and distance.max() < 4.01 and distance.std() > 0.3


def test_rig() -> None:
    scenes = RigScenes("val", length=64).batch(range(64))
    assert scenes["images"].shape == (64, 4, 3, 24, 48) and 0 <= scenes["images"].min() <= scenes["images"].max() <= 1
    assert 0.65 < scenes["present"].float().mean() < 0.85
    assert scenes["depth"].max() == 30 and scenes["depth"].min() > 0.5
    seen = scenes["object"]
    for k in range(4):  # a class that is seen is there, and its colour too
        there = (seen == k).flatten(1).any(1)
        assert (~there | scenes["present"][:, k]).all() and there.float().mean() > 0.4
    colour = scenes["images"].movedim(2, -1)[seen == 2].mean(0)
    assert colour[2] > 2 * colour[0]
    centres = scenes["boxes"][:, None, :, :3].expand(-1, 4, -1, -1)
    pixels, z, front = project(centres, scenes["world_to_camera"], scenes["intrinsics"])
    inside = front & (pixels >= 0).all(-1) & (pixels < torch.tensor([48.0, 24.0])).all(-1) & scenes["present"][:, None]
    s, v, k = inside.nonzero().unbind(1)
    at = pixels[s, v, k].long()
    hits = seen[s, v, at[:, 1], at[:, 0]] == k
    assert hits.float().mean() > 0.85  # others stand in front
    measured, expected = scenes["depth"][s, v, at[:, 1], at[:, 0]][hits], z[s, v, k][hits]
    assert ((expected - measured) > 0).all() and ((expected - measured) < 1.4).all()


def test_a_loader_draws_batches() -> None:
    scenes = Scenes("train", size=16, length=6)
    loader = torch.utils.data.DataLoader(scenes, batch_size=4)
    batches = list(loader)
    assert [len(b["images"]) for b in batches] == [4, 2] and torch.equal(batches[1]["images"][1], scenes[5]["images"])


def test_refusals() -> None:
    for options, words in (
        ({"split": "dev"}, "split must be one of"),
        ({"size": 2}, "at least 4 px"),
        ({"views": [0, 0]}, "different numbers"),
        ({"views": 65}, "1 to 64"),
        ({"spheres": 0}, "not both 0"),
        ({"frame": "camera"}, "frame must be one of"),
        ({"distance": (0.1, 2.0)}, "outside every solid"),
        ({"length": 0}, "length must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            Scenes(**options)
    with pytest.raises(ValueError, match="presence must be"):
        RigScenes(presence=0.0)
    with pytest.raises(IndexError, match="outside 0..4"):
        Scenes(length=5)[5]
