"""One capture as training data: forms, held-out pictures, nearest views, canonical and scaled poses, a short training."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from train_helpers import run

from train.data.posed import PosedFolder, read_posed
from train.data.sampling import Key
from vispe.data import Scenes
from vispe.data.colmap import write_colmap
from vispe.positions.camera_formats import invert_pose, to_opengl


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 pictures of a drawn scene in nerfstudio's form."""
    root = tmp_path_factory.mktemp("capture")
    scene = Scenes("val", size=(16, 20), views=12, frame="random")[0]
    (root / "images").mkdir()
    frames = []
    for i, (image, pose) in enumerate(zip(scene["images"], to_opengl(scene["world_to_camera"].double()))):
        pixels = (image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        Image.fromarray(pixels).save(root / f"images/{i:02d}.png")
        frames.append({"file_path": f"images/{i:02d}.png", "transform_matrix": pose.tolist()})
    k = scene["intrinsics"][0]
    shared = {"w": 20, "h": 16, "fl_x": k[0, 0].item(), "cx": 10.0, "cy": 8.0}
    (root / "transforms.json").write_text(json.dumps(shared | {"frames": frames}))
    return root


def test_the_form_is_found(capture: Path, tmp_path: Path) -> None:
    posed = read_posed(capture)
    write_colmap(posed, tmp_path)
    again = read_posed(tmp_path)
    torch.testing.assert_close(again.world_to_camera, posed.world_to_camera)
    camera = {
        "data_path": "a.png", "cam_intrinsic": posed.intrinsics[0].tolist(), "width": 20, "height": 16,
        "sensor2lidar_rotation": torch.eye(3).tolist(), "sensor2lidar_translation": [0, 0, 0],
    }  # fmt: skip
    (tmp_path / "rig.json").write_text(json.dumps({"cams": {"FRONT": camera}}))
    assert read_posed(tmp_path / "rig.json").names == ("FRONT",)
    assert len(read_posed(capture / "transforms.json")) == 12
    with pytest.raises(ValueError, match="form must be one of"):
        read_posed(capture, "llff")


def test_held_out_pictures_are_never_given(capture: Path) -> None:
    data = PosedFolder(str(capture), img_size=16, holdout=4, inputs=3, window=4)
    assert data.held == [0, 4, 8] and len(data.seen) == 9
    train, val = data.train_dataset(), data._views(data.held, None)
    for place in range(30):
        views = train.views(Key(place % 3, place, place % 9))
        assert len(set(views)) == 4 and not set(views) & set(data.held)
    assert train.views(Key(0, 5, 2)) == train.views(Key(0, 5, 2)) != train.views(Key(1, 5, 2))
    for i, target in enumerate(data.held):
        *given, asked = val.views(i)
        distance = (train.centres - train.centres[target]) ** 2
        best = sorted(data.seen, key=lambda j: distance[j].sum())[:3]
        assert asked == target and given == best


def test_poses_count_from_the_first_view_in_units_of_the_capture(capture: Path) -> None:
    data = PosedFolder(str(capture), img_size=(16, 16))
    sample = data._views(data.held, None)[1]
    assert sample.images.shape == (2, 3, 16, 16) and sample.targets.shape == (1, 3, 16, 16)
    torch.testing.assert_close(sample.world_to_camera[0], torch.eye(4), atol=1e-6, rtol=0)
    centres = invert_pose(data.posed.world_to_camera)[:, :3, 3]
    views = data._views(data.held, None).views(1)
    apart = (centres[views[2]] - centres[views[0]]).norm() / (centres - centres.mean(0)).norm(dim=-1).mean()
    measured = invert_pose(sample.world_to_camera)[2, :3, 3].norm()
    torch.testing.assert_close(measured, apart.float())
    assert sample.intrinsics[0, 0, 2] == 8  # cut from 20 to 16 px


def test_a_short_training(capture: Path, tmp_path: Path) -> None:
    args = [
        "--model", "NovelViewSynthesis", "--model.model_kwargs.encoding=prope", "--model.model_kwargs.image_size=16",
        "--model.model_kwargs.embed_dim=16", "--model.model_kwargs.depth=1", "--model.model_kwargs.num_heads=2",
        "--data", "PosedFolder", "--data.root", str(capture), "--data.batch_size=2",
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1",
    ]  # fmt: skip
    cli = run(["fit", "--run_dir", str(tmp_path), *args, "--trainer.max_epochs=1"])
    assert cli.trainer.callback_metrics["val/psnr"] > 5 and (tmp_path / "views.png").exists()
    run(["predict", "--run_dir", str(tmp_path / "p"), *args])
    assert sorted(p.name for p in (tmp_path / "p/predictions").iterdir()) == ["images_00.png", "images_08.png"]


def test_refusals(capture: Path) -> None:
    with pytest.raises(ValueError, match="too few for 20 given views"):
        PosedFolder(str(capture), inputs=20)
    with pytest.raises(ValueError, match="leave eval_sizes empty"):
        PosedFolder(str(capture), eval_sizes=[(16, 16)])
