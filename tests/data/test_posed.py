"""Readers of posed pictures: round trips of cameras and pixels, sizes, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vispe.data import Scenes
from vispe.data.camera_rig import read_rig
from vispe.data.colmap import read_colmap, write_colmap
from vispe.data.nerfstudio import read_nerfstudio
from vispe.data.posed import PosedImages
from vispe.positions import camera_grid, image_rays, project
from vispe.positions.camera_formats import invert_pose, to_colmap, to_opengl

SIZE = (20, 28)


@pytest.fixture
def scene(tmp_path: Path) -> dict[str, torch.Tensor]:
    """A drawn scene whose pictures are in images/0.png ..."""
    scene = Scenes("val", size=SIZE, views=3, spheres=2, boxes=1, frame="random", focal_spread=0.3)[0]
    scene["intrinsics"][:, 0, 2] += 1.5
    (tmp_path / "images").mkdir()
    for i, image in enumerate(scene["images"]):
        pixels = (image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
    return scene


def transforms(scene: dict[str, torch.Tensor], **shared: Any) -> dict[str, Any]:
    frames = []
    for i, (pose, k) in enumerate(zip(to_opengl(scene["world_to_camera"].double()), scene["intrinsics"].double())):
        frame = {"file_path": f"images/{i}.png", "transform_matrix": pose.tolist()}
        frames.append(frame | {"fl_x": k[0, 0].item(), "fl_y": k[1, 1].item(), "cx": k[0, 2].item(), "cy": k[1, 2].item()})
    return {"w": SIZE[1], "h": SIZE[0], "camera_model": "OPENCV", "k1": 0.0, **shared, "frames": frames}


def rig(scene: dict[str, torch.Tensor]) -> dict[str, Any]:
    cams = {}
    for i, (pose, k) in enumerate(zip(invert_pose(scene["world_to_camera"].double()), scene["intrinsics"])):
        cams[f"CAM_{i}"] = {
            "data_path": f"images/{i}.png", "cam_intrinsic": k.tolist(), "sensor2lidar_rotation": pose[:3, :3].tolist(),
            "sensor2lidar_translation": pose[:3, 3].tolist(),
        }  # fmt: skip
    return {"infos": [{"cams": {}}, {"cams": cams}]}


def same(posed: PosedImages, scene: dict[str, torch.Tensor]) -> None:
    assert len(posed) == 3 and posed.sizes == (SIZE,) * 3
    torch.testing.assert_close(posed.world_to_camera.float(), scene["world_to_camera"], atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(posed.intrinsics.float(), scene["intrinsics"])
    images, intrinsics = posed.load()
    torch.testing.assert_close(images, scene["images"], atol=0.5 / 255 + 1e-6, rtol=0)
    pos = camera_grid(5, 7, posed.world_to_camera, intrinsics, SIZE, frame="first")
    assert pos.num_views == 3 and pos.coords.shape == (1, 105, 2)


def write(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_nerfstudio(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write(tmp_path / "transforms.json", transforms(scene))
    same(read_nerfstudio(tmp_path), scene)
    data = transforms(scene)
    for key in ("w", "h"):  # sizes from the pictures, names without their ending
        del data[key]
    for frame in data["frames"]:
        frame["file_path"] = frame["file_path"].removesuffix(".png")
    same(read_nerfstudio(write(tmp_path / "other.json", data)), scene)


def test_the_synthetic_scenes_have_an_angle_alone(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    data = transforms(scene, camera_angle_x=0.8)
    for frame in data["frames"]:
        for key in ("fl_x", "fl_y", "cx", "cy"):
            del frame[key]
    write(tmp_path / "transforms_train.json", data)
    k = read_nerfstudio(tmp_path, file="transforms_train.json").intrinsics[0]
    assert k[0, 2] == 14 and k[1, 2] == 10
    torch.testing.assert_close(torch.atan(14 / k[0, 0]), torch.tensor(0.4, dtype=torch.float64))
    assert k[0, 0] == k[1, 1]


def test_colmap(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write(tmp_path / "transforms.json", transforms(scene))
    write_colmap(read_nerfstudio(tmp_path), tmp_path / "sparse/0")
    same(read_colmap(tmp_path), scene)


def test_colmap_lines_of_points_and_shared_cameras(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write(tmp_path / "cameras.txt", "# c\n\n7 SIMPLE_RADIAL 28 20 25.5 14 10 0\n")
    q, t = to_colmap(scene["world_to_camera"].double())
    lines = ["# two lines each"]
    for i in (2, 0, 1):
        numbers = [*(3 * q[i]).tolist(), *t[i].tolist()]  # a quaternion of any length
        lines += [f"{i + 5} {' '.join(map(str, numbers))} 7 {i}.png", "1.5 2.5 -1 3.0 4.0 17" if i else ""]
    write(tmp_path / "images.txt", "\n".join(lines))
    posed = read_colmap(tmp_path)
    assert posed.names == ("0.png", "1.png", "2.png") and (posed.intrinsics[:, 0, 0] == 25.5).all()
    torch.testing.assert_close(posed.world_to_camera.float(), scene["world_to_camera"], atol=2e-6, rtol=1e-6)


def test_rig_in_all_its_frames(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = write(tmp_path / "rig.json", rig(scene))
    same(read_rig(path, sample=1), scene)
    shifted = read_rig(path, sample=1, pixel_origin="centre").intrinsics - read_rig(path, sample=1).intrinsics
    assert shifted.sum() == 3 and (shifted[:, :2, 2] == 0.5).all()
    info = rig(scene)["infos"][1]
    for camera in info["cams"].values():  # to the body by quaternions, and the body in the world
        rotation = torch.tensor(camera.pop("sensor2lidar_rotation"), dtype=torch.float64)
        shift = torch.tensor(camera.pop("sensor2lidar_translation"), dtype=torch.float64)
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3, :3], pose[:3, 3] = rotation, shift
        camera |= {"sensor2ego_rotation": to_colmap(pose)[0].tolist(), "sensor2ego_translation": shift.tolist()}
    info |= {"ego2global_rotation": [0.8, 0, 0, 0.6], "ego2global_translation": [1000.0, -2000.0, 5.0]}
    write(path, info)
    same(read_rig(path, frame="ego"), scene)
    ego, world = read_rig(path, frame="ego"), read_rig(path, frame="global")
    point = torch.tensor([[3.0, 1.0, 0.5]], dtype=torch.float64)
    yaw = 2 * np.arctan2(0.6, 0.8)
    c, s = np.cos(yaw), np.sin(yaw)
    moved = point @ torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]]).T + torch.tensor([1000.0, -2000.0, 5.0])
    pixels = [project(p.expand(3, -1, -1), r.world_to_camera, r.intrinsics)[0] for p, r in ((point, ego), (moved, world))]
    torch.testing.assert_close(*pixels)


def test_resizing_and_cutting_keep_rays(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """A wide picture cut to a square at twice its size looks along the rays of its own middle."""
    posed = read_nerfstudio(write(tmp_path / "t.json", transforms(scene)))
    images, k = posed.load([1], size=(40, 40))
    assert images.shape == (1, 3, 40, 40)
    _, fine = image_rays(scene["world_to_camera"][1:2], k, (40, 40))
    _, rays = image_rays(scene["world_to_camera"][1:2], scene["intrinsics"][1:2], SIZE)
    blocks = torch.nn.functional.normalize(fine.unflatten(1, (20, 2)).unflatten(3, (20, 2)).mean((2, 4)), dim=-1)
    torch.testing.assert_close(blocks, rays[:, :, 4:24], atol=2e-3, rtol=0)
    small, k = posed.load(size=(10, 14))
    torch.testing.assert_close(small, torch.nn.functional.avg_pool2d(scene["images"], 2), atol=1.6 / 255, rtol=0)
    torch.testing.assert_close(k[:, :2], scene["intrinsics"][:, :2] / 2)


def test_transparent_pictures_and_selection(tmp_path: Path, scene: dict[str, torch.Tensor]) -> None:
    pixels = np.zeros((*SIZE, 4), np.uint8)
    pixels[:, 14:] = (255, 0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "images/1.png")
    posed = read_nerfstudio(write(tmp_path / "t.json", transforms(scene))).select([1, 0])
    images, _ = posed.load([0], background=0.0)
    assert images[0, :, 0, 0].tolist() == [0, 0, 0] and images[0, :, 0, 20].tolist() == [1, 0, 0]
    assert posed.load([0])[0][0, :, 0, 0].tolist() == [1, 1, 1] and posed.names[1] == "images/0.png"


def test_missing_files(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="transforms.json: no such file"):
        read_nerfstudio(tmp_path)
    with pytest.raises(FileNotFoundError, match="no cameras.txt"):
        read_colmap(tmp_path)
    with pytest.raises(FileNotFoundError, match="rig.json"):
        read_rig(tmp_path / "rig.json")
    (tmp_path / "sparse").mkdir()
    (tmp_path / "sparse/cameras.bin").touch()
    with pytest.raises(FileNotFoundError, match="model_converter"):
        read_colmap(tmp_path)
    posed = read_nerfstudio(write(tmp_path / "t.json", transforms(scene)))
    (tmp_path / "images/2.png").unlink()
    with pytest.raises(FileNotFoundError, match="picture of images/2.png is not there"):
        posed.load()


def broken(data: dict[str, Any], **frame: Any) -> dict[str, Any]:
    data["frames"][1] |= frame
    return data


def test_what_a_reader_refuses(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    scaled = (2 * torch.eye(4)).tolist()[:3] + [[0, 0, 0, 1]]
    for data, words in (
        (transforms(scene, camera_model="OPENCV_FISHEYE"), "frame 0: unknown camera_model 'OPENCV_FISHEYE'"),
        (transforms(scene, k1=0.1), "distortion .*undistort"),
        (broken(transforms(scene), transform_matrix=scaled), "frame 1: transform_matrix: a rotation is not orthonormal"),
        (broken(transforms(scene), transform_matrix=[[1, 0], [0, 1]]), r"must be of shape \(4, 4\), got \(2, 2\)"),
        (broken(transforms(scene), fl_x=0), "singular"),
        ({"frames": []}, "has no frames"),
        ({"frames": [{"file_path": "a.png"}]}, "frame 0: has no transform_matrix"),
        ("{]", "is no JSON"),
    ):
        with pytest.raises(ValueError, match=words):
            read_nerfstudio(write(tmp_path / "t.json", data))
    data = transforms(scene)
    del data["frames"][2]["fl_x"]
    with pytest.raises(ValueError, match="frame 2: has neither fl_x nor camera_angle_x"):
        read_nerfstudio(write(tmp_path / "t.json", data))
    with pytest.raises(ValueError, match="has 20x28 px, but its camera .* is for 20x29"):
        read_nerfstudio(write(tmp_path / "t.json", transforms(scene) | {"w": 29})).load()


def test_what_colmap_and_rigs_refuse(scene: dict[str, torch.Tensor], tmp_path: Path) -> None:
    image = "1 1 0 0 0 0 0 0 1 a.png\n\n"
    for cameras, images, words in (
        ("1 FISHEYE 28 20 1 1 1", image, "line 1: unknown camera model 'FISHEYE'"),
        ("1 PINHOLE 28 20 25 14 10", image, "PINHOLE has the parameters"),
        ("1 RADIAL 28 20 25 14 10 0.2 0", image, "distortion {'k1': 0.2}"),
        ("2 SIMPLE_PINHOLE 28 20 25 14 10", image, r"line 1: camera 1 is not in cameras.txt, which has \[2\]"),
        ("1 SIMPLE_PINHOLE 28 20 25 14 10", "1 1 0 0\n\n", "line 1: must be IMAGE_ID"),
        ("1 SIMPLE_PINHOLE 28 20 25 14 10", "# none\n", "holds no pictures"),
        ("1 SIMPLE_PINHOLE 28 20 25 14 10", "1 0 0 0 0 0 0 0 1 a.png\n", "quaternion is zero"),
    ):
        write(tmp_path / "cameras.txt", cameras)
        write(tmp_path / "images.txt", images)
        with pytest.raises(ValueError, match=words):
            read_colmap(tmp_path)
    data = rig(scene)
    path = write(tmp_path / "rig.json", data)
    with pytest.raises(IndexError, match="2 moments"):
        read_rig(path, sample=2)
    with pytest.raises(ValueError, match="has no cams"):
        read_rig(path)
    with pytest.raises(ValueError, match="CAM_0: has no sensor2ego_rotation; there are"):
        read_rig(path, sample=1, frame="ego")
    with pytest.raises(ValueError, match="frame is one of"):
        read_rig(path, sample=1, frame="body")
    data["infos"][1]["cams"]["CAM_2"]["sensor2lidar_rotation"] = (-torch.eye(3)).tolist()
    with pytest.raises(ValueError, match="CAM_2: sensor2lidar_rotation: .*determinant"):
        read_rig(write(path, data), sample=1)
