"""The view synthesis task and its data: training, frames, numbers of views, pictures, rays, recipes, the table's page."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from train_helpers import run

from train.data.sampling import Key
from train.data.scenes import NvsScenes, Views
from train.nvs import NovelViewSynthesis, picture
from vispe.models.nvs import SceneTransformer, ViewTransformer

ROOT = Path(__file__).parents[2]
NET = {"encoding": "gta", "image_size": 16, "embed_dim": 32, "depth": 1, "num_heads": 2}
CONDITIONS = "{far: {frame: far}, one: {inputs: 1}, wide: {size: [16, 24]}, zoom: {focal_spread: 0.5}}"


def command(kind: str, run_dir: Path, *more: str, net: dict = NET, model: str = "views") -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "NovelViewSynthesis", "--model.model", model,
        *(f"--model.model_kwargs.{k}={v}" for k, v in net.items()),
        "--data", "NvsScenes", "--data.train_length", "12", "--data.val_length", "5", "--data.test_length", "3",
        "--data.batch_size", "4", "--data.spheres", "2",
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0",
        *more,
    ]  # fmt: skip


def batch(data: NvsScenes, count: int = 2) -> Views:
    return torch.utils.data.default_collate(data.eval_dataset("val", (16, 16)).__getitems__(range(count)))


def test_fit_and_evaluate_in_several_conditions(tmp_path: Path) -> None:
    cli = run(command("fit", tmp_path, "--data.conditions", CONDITIONS, "--trainer.max_epochs=2"))
    metrics = cli.trainer.callback_metrics
    assert cli.trainer.global_step == 6
    names = {f"val/{m}{at}" for m in ("psnr", "ssim") for at in ("", "@far", "@one", "@wide", "@zoom")}
    assert names <= set(metrics)
    torch.testing.assert_close(metrics["val/psnr"], metrics["val/psnr@far"], atol=2e-3, rtol=0)
    assert metrics["val/psnr"] != metrics["val/psnr@zoom"] and metrics["val/psnr"] > 5
    with Image.open(tmp_path / "views.png") as shown:
        assert shown.size == (4 * 18 * 3, 4 * 5 * 18 * 3 // 4)  # 2 given, truth, rendering; 5 scenes
    again = run(command("validate", tmp_path, "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt")))
    torch.testing.assert_close(again.trainer.callback_metrics["val/psnr"], metrics["val/psnr"])
    run(command("predict", tmp_path / "p", "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt")))
    assert sorted(p.name for p in (tmp_path / "p/predictions").iterdir()) == ["0.png", "1.png", "2.png"]


def test_a_training_makes_pictures_better(tmp_path: Path) -> None:
    net = NET | {"encoding": "prope", "depth": 2}
    more = ("--data.train_length=640", "--data.batch_size=16", "--trainer.max_epochs=1", "--data.val_length=16")
    before = run(command("validate", tmp_path / "v", *more[:2], more[3], net=net)).trainer.callback_metrics["val/psnr"]
    after = run(command("fit", tmp_path, *more, net=net)).trainer.callback_metrics["val/psnr"]
    assert after > before + 2


def test_scene_model_learns_from_some_rays(tmp_path: Path) -> None:
    net = NET | {"stem_width": 4, "decoder_depth": 1}
    cli = run(command("fit", tmp_path, "--model.train_rays=32", "--trainer.max_epochs=1", net=net, model="scene"))
    assert isinstance(cli.model.net, SceneTransformer) and cli.trainer.callback_metrics["val/psnr"] > 5


def test_loss_of_rays_is_that_of_their_pixels() -> None:
    net = NET | {"stem_width": 4, "decoder_depth": 1, "query_size": 2}
    task = NovelViewSynthesis("scene", net, train_rays=4000)
    views = batch(NvsScenes(img_size=16, spheres=2, targets=2, val_length=4))
    torch.manual_seed(0)
    some = task._loss_of_rays(views)
    rendered = task(views)
    torch.manual_seed(0)
    rays = torch.randint(2 * 64, (2, 4000))
    squares = (rendered - views.targets).square().unfold(-2, 2, 2).unfold(-2, 2, 2).mean((2, 5, 6)).flatten(1)
    torch.testing.assert_close(some, squares.gather(1, rays).mean())


def test_more_and_fewer_views_keep_the_target() -> None:
    data = NvsScenes(img_size=16, inputs=2, targets=1)
    assert data.cameras(2) == [0, 1, 2] and data.cameras(1) == [0, 2] and data.cameras(4) == [0, 1, 3, 4, 2]
    two, four = (data.eval_dataset("val", (16, 16), inputs=n)[3] for n in (2, 4))
    assert torch.equal(two.targets, four.targets) and torch.equal(two.images, four.images[:2])
    assert four.images.shape == (4, 3, 16, 16) and four.world_to_camera.shape == (5, 4, 4)


def test_training_scenes_are_new_in_every_epoch_and_a_function_of_seed_and_place() -> None:
    train, again = (NvsScenes(img_size=16, seed=3, train_length=10).train_dataset() for _ in range(2))
    first = train[Key(1, 0, 4)]
    assert torch.equal(first.images, again.__getitems__([Key(0, 0, 0), Key(1, 0, 4)])[1].images)
    assert not torch.equal(first.images, train[Key(0, 0, 4)].images)
    other = NvsScenes(img_size=16, seed=4, train_length=10)
    assert not torch.equal(first.images, other.train_dataset()[Key(1, 0, 4)].images)
    assert torch.equal(batch(other).images, batch(NvsScenes(img_size=16, seed=9)).images)  # evaluation is fixed


def test_the_picture_has_truth_beside_rendering() -> None:
    views = Views(torch.zeros(2, 2, 3, 4, 4), torch.ones(2, 1, 3, 4, 4), torch.eye(4), torch.eye(3))
    shown = picture(views, torch.full((2, 1, 3, 4, 4), 0.5), scale=1)
    assert shown.shape == (3, 12, 24)
    assert [shown[0, 3, 6 * k + 3].item() for k in range(4)] == [0, 0, 1, 0.5] and shown[0, 0, 0] == 1


def test_psnr_is_that_of_the_mean_squared_error() -> None:
    task = NovelViewSynthesis("views", NET)
    data = NvsScenes(img_size=16, spheres=2, val_length=4)
    views = batch(data, 4)
    from torchmetrics.image import PeakSignalNoiseRatio

    counter = PeakSignalNoiseRatio(data_range=1.0)
    rendered = task(views).detach()
    for half in (slice(0, 1), slice(1, 4)):
        counter.update(rendered[half], views.targets[half])
    torch.testing.assert_close(counter.compute(), -10 * (rendered - views.targets).square().mean().log10())


def test_recipes_name_models_that_exist() -> None:
    base = yaml.safe_load((ROOT / "configs/nvs/base.yaml").read_text())["model"]["init_args"]["model_kwargs"]
    found = sorted((ROOT / "configs/nvs").glob("*.yaml"))
    assert {"gta", "prope", "plucker", "camera_ape", "none", "cape", "rays", "base"} <= {path.stem for path in found}
    for path in found:
        text = path.read_text()
        recipe = yaml.safe_load(text)
        assert "python -m train fit" in text.split("run_dir")[0] and recipe["run_dir"].startswith("runs/nvs/")
        init = recipe["model"]["init_args"]
        kwargs = {k: v for k, v in base.items() if k != "mlp_ratio"} if init.get("model") != "scene" else {}
        net = (SceneTransformer if init.get("model") == "scene" else ViewTransformer)(**kwargs | init["model_kwargs"])
        images, poses = torch.rand(1, 1, 3, 32, 32), torch.eye(4).repeat(1, 2, 1, 1)
        k = torch.tensor([[35.0, 0, 16], [0, 35, 16], [0, 0, 1]]).repeat(1, 2, 1, 1)
        assert net(images, poses, k).shape == (1, 1, 3, 32, 32)


def test_refusals() -> None:
    for options, words in (
        ({"conditions": {"a": {"lens": 1}}}, r"condition 'a' changes \['lens'\]"),
        ({"repeats": 2}, "repeats has no meaning"),
        ({"eval_sizes": [(16, 16)]}, "other sizes are conditions"),
        ({"targets": 0}, "at least 1 given view and 1 target"),
    ):
        with pytest.raises(ValueError, match=words):
            NvsScenes(**options)
    with pytest.raises(ValueError, match="train_rays needs model 'scene'"):
        NovelViewSynthesis("views", NET, train_rays=5)
    with pytest.raises(ValueError, match="model must be one of"):
        NovelViewSynthesis("video", NET)


def table_script() -> object:
    spec = importlib.util.spec_from_file_location("nvs_table", ROOT / "scripts/nvs_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = table_script()
    monkeypatch.setattr(script, "DOCS", tmp_path)
    levels = {"gta": 19.0, "plucker": 18.5, "camera_ape": 18.9, "prope": 19.2}
    for name, level in levels.items():
        for setting in ("random", "canonical", "zoom"):
            for seed in (0, 1):
                folder = tmp_path / "runs" / f"{name}-{setting}-{seed}"
                folder.mkdir(parents=True)
                metrics = {f"val/ssim{'@' + c if c else ''}": 0.5 for c in script.CONDITIONS}
                metrics |= {f"val/psnr{'@' + c if c else ''}": level + 0.1 * seed for c in script.CONDITIONS}
                metrics["val/psnr@far"] = level + 0.1 * seed - (3 if name == "plucker" else 0)
                result = {"encoding": name, "setting": setting, "seed": seed, "steps": 600, "seconds": 60, "metrics": metrics}
                (folder / "done.json").write_text(json.dumps(result))
    Image.new("RGB", (4, 4)).save(tmp_path / "runs/gta-canonical-0/views.png")
    script.write_page(script.load(tmp_path / "runs"), tmp_path / "runs", planned=63)
    page = (tmp_path / "nvs.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert rows["random frame: GTA over Plücker"].endswith("| 0.500 ± 0.000 | 2 | yes |")
    assert rows["random frame: GTA over APE"].endswith("| 0.100 ± 0.000 | 2 | no |")
    assert rows["canonical to far frame: Plücker"].endswith("| -3.000 ± 0.000 | 2 | yes |")
    assert rows["canonical to far frame: APE"].endswith("| no |")
    assert rows["varying focal length: PRoPE over GTA"].endswith("| 0.200 ± 0.000 | 2 | no |")
    assert "24 of 63 cells are finished" in page and "19.05 ± 0.07" in page and (tmp_path / "nvs_views.png").exists()
    assert len((tmp_path / "nvs.csv").read_text().splitlines()) == 1 + 24 * len(script.CONDITIONS)
