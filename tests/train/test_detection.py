"""The detection task and its data: training by the command line, mAP and errors by hand, noise, recipes, the table's page."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import yaml
from train_helpers import run

from train.data.rig import RigData, as_maps
from train.data.sampling import Key
from train.detection import Detection
from train.detection_metrics import CentreErrors, Detections, average_precision

ROOT = Path(__file__).parents[2]
NET = {"encoding": "petr", "encoding_kwargs": "{depth_num: 4}", "embed_dim": 32, "num_heads": 2, "stem_width": 4}


def command(kind: str, run_dir: Path, *more: str, net: dict = NET, model: str = "dense") -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "Detection", "--model.model", model,
        *(f"--model.model_kwargs.{k}={v}" for k, v in net.items()),
        "--data", "RigData", "--data.train_length", "16", "--data.val_length", "6", "--data.test_length", "3",
        "--data.batch_size", "4", "--trainer.max_epochs=1",
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0",
        *more,
    ]  # fmt: skip


def test_dense_training_makes_errors_smaller(tmp_path: Path) -> None:
    more = ("--data.train_length=480", "--data.batch_size=16", "--data.val_length=24", "--model.lr=4e-3")
    net = NET | {"encoding": "petr_3dppe", "encoding_kwargs": "{depth_source: given}", "depth": 1}
    before = run(command("validate", tmp_path / "v", more[2], "--model.depth=true", net=net)).trainer.callback_metrics
    cli = run(command("fit", tmp_path, *more, "--model.depth=true", net=net))
    after = cli.trainer.callback_metrics
    assert cli.trainer.global_step == 30
    assert after["val/centre_error"] < 0.5 * before["val/centre_error"]
    assert 0 <= after["val/within_1m"] <= 1 and after["val/median_error"] > 0
    again = run(command("validate", tmp_path, more[2], "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt"), net={}))
    torch.testing.assert_close(again.trainer.callback_metrics["val/centre_error"], after["val/centre_error"])
    with pytest.raises(ValueError, match="no boxes"):
        run(command("predict", tmp_path, "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt"), net={}))


def test_queries_train_and_write_boxes(tmp_path: Path) -> None:
    net = NET | {"num_queries": 6, "decoder_depth": 2}
    cli = run(command("fit", tmp_path, net=net, model="queries"))
    metrics = cli.trainer.callback_metrics
    assert {"train/loss", "train/class", "train/box", "val/mAP", "val/centre_error"} <= set(metrics)
    assert 0 <= metrics["val/mAP"] <= 1
    run(command("predict", tmp_path / "p", "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt"), model="queries"))
    rows = (tmp_path / "p/boxes.csv").read_text().splitlines()
    assert rows[0] == "name,class,score,x,y,z,length,width,height,yaw" and len(rows) == 1 + 3 * 16
    assert {r.split(",")[1] for r in rows[1:]} <= {"red", "green", "blue", "yellow"}


def test_detector_fits_one_scene() -> None:
    """The losses, the matching and the metric work together: one scene is learned by heart."""
    torch.manual_seed(0)
    data = RigData(img_size=(24, 48), val_length=1)
    batch = torch.utils.data.default_collate(data.eval_dataset("val", (24, 48)).__getitems__([0]))
    batch = batch._replace(present=torch.ones_like(batch.present))
    net = {"encoding": "petr", "encoding_kwargs": {"depth_num": 4}, "embed_dim": 32, "num_heads": 2, "num_queries": 6}
    task = Detection("queries", net | {"stem_width": 4, "decoder_depth": 1})
    task.log = task.log_dict = lambda *a, **k: None
    optimizer = torch.optim.AdamW(task.parameters(), lr=5e-3)
    task.optimizers = lambda: optimizer
    for _ in range(120):
        optimizer.zero_grad()
        task.training_step(batch, 0).backward()
        optimizer.step()
    with torch.no_grad():
        task._evaluate(batch, 0)
    found = task.metric.compute()
    assert found["mAP"] > 0.7 and found["centre_error"] < 0.5


def test_losses_are_those_of_cells_that_show_a_box() -> None:
    data = RigData(img_size=(24, 48), val_length=2)
    batch = torch.utils.data.default_collate(data.eval_dataset("val", (24, 48)).__getitems__([0, 1]))
    task = Detection("dense", {"encoding": "none", "embed_dim": 16, "num_heads": 2, "stem_width": 4})
    found = torch.randn(2, 4, 6, 12, 3)
    own, truth = task.on_cells(found, batch)
    rows = []
    for b in range(2):
        for v in range(4):
            for i in range(6):
                for j in range(12):
                    label = int(batch.object[b, v, 4 * i + 2, 4 * j + 2])
                    if label >= 0:
                        rows.append((found[b, v, i, j], batch.boxes[b, label, :3]))
    assert len(rows) == len(own) > 5
    torch.testing.assert_close(own, torch.stack([r[0] for r in rows]))
    torch.testing.assert_close(truth, torch.stack([r[1] for r in rows]))


def test_depth_noise() -> None:
    depth = torch.full((4, 4, 6, 12), 5.0)
    assert as_maps(depth, 0.0) is depth
    noisy = as_maps(depth, 0.3, torch.Generator().manual_seed(0))
    assert (noisy > 0).all() and abs((noisy / 5).log().std() - 0.3) < 0.02
    assert torch.equal(noisy, as_maps(depth, 0.3, torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match="needs depth=true"):
        Detection("dense", depth_noise=0.1)
    with pytest.raises(ValueError, match="model must be one of"):
        Detection("anchors")


def test_supervised_depth_comes_nearer() -> None:
    torch.manual_seed(0)
    data = RigData(img_size=(24, 48), val_length=4)
    batch = torch.utils.data.default_collate(data.eval_dataset("val", (24, 48)).__getitems__(range(4)))
    net = {"encoding": "petr_3dppe+learned", "embed_dim": 32, "num_heads": 2, "stem_width": 4, "depth": 1}
    options = {"petr_3dppe": {"position_range": (-12, -12, -3, 12, 12, 6)}}
    task = Detection("dense", net | {"encoding_kwargs": options}, depth_weight=1.0)
    logged = {}
    task.log = lambda name, value, **_: logged.setdefault(name, []).append(float(value))
    optimizer = torch.optim.AdamW(task.parameters(), lr=5e-3)
    task.optimizers = lambda: optimizer
    for _ in range(40):
        optimizer.zero_grad()
        task.training_step(batch, 0).backward()
        optimizer.step()
    assert logged["train/depth"][-1] < 0.7 * logged["train/depth"][0] and logged["train/loss"][0] > logged["train/depth"][0]
    with pytest.raises(ValueError, match="'learned' predicts no depth"):
        Detection("dense", net | {"encoding": "learned+petr_3dppe"}).net.predicted_depth(batch.images)


def test_training_scenes_are_new_in_every_epoch() -> None:
    train = RigData(img_size=(24, 48), train_length=4, seed=0).train_dataset()
    first, second = train[Key(0, 1, 0)], train[Key(1, 1, 0)]
    assert not torch.equal(first.images, second.images) and len(train) == 4
    val = RigData(img_size=(24, 48), seed=3).eval_dataset("val", (24, 48))
    assert torch.equal(val[0].images, RigData(img_size=(24, 48), seed=5).eval_dataset("val", (24, 48))[0].images)
    with pytest.raises(ValueError, match="leave repeats at 1"):
        RigData(repeats=2)


# ---- metrics ------------------------------------------------------------------------------------------------------------


def test_average_precision_by_hand() -> None:
    assert average_precision(torch.ones(10, dtype=torch.bool), 10) == pytest.approx(1.0)
    assert average_precision(torch.zeros(3, dtype=torch.bool), 4) == 0.0
    half = average_precision(torch.ones(5, dtype=torch.bool), 10)  # recall ends at 0.5: 40 of 90 recalls count fully
    assert half == pytest.approx(40 / 90, abs=1e-6)
    right = torch.tensor([True, False, True, False])
    recall = [0.5, 0.5, 1.0, 1.0]
    precision = [1.0, 0.5, 2 / 3, 0.5]
    total = 0.0
    for r in range(11, 101):
        x = r / 100
        if x < 0.5:
            p = 1.0
        else:  # between (0.5, 0.5), where recall stands still, and (1, 2/3)
            p = precision[1] + (x - recall[1]) / 0.5 * (precision[2] - precision[1])
        if r == 100:  # where recall stands still, the last precision counts
            p = precision[3]
        total += max(p - 0.1, 0)
    assert average_precision(right, 2) == pytest.approx(total / 90 / 0.9, abs=1e-6)


def test_map_and_centre_error() -> None:
    metric = Detections(3)
    assert metric.compute()["mAP"] == 0.0 and math.isnan(metric.compute()["centre_error"])
    boxes = torch.zeros(2, 3, 7)
    boxes[0, 0, :3], boxes[0, 1, :3], boxes[1, 0, :3] = torch.tensor([[3.0, 0, 1], [0, 5, 1], [-4, 2, 1]])
    present = torch.tensor([[True, True, False], [True, False, False]])
    found = {"scores": torch.tensor([[0.9, 0.8, 0.7], [0.95, 0.2, 0.1]]), "labels": torch.tensor([[0, 1, 0], [0, 2, 1]])}
    guess = torch.zeros(2, 3, 7)
    guess[0, 0, :2], guess[0, 1, :2], guess[1, 0, :2] = torch.tensor([[3.0, 0.3], [0, 5 - 1.5], [-4, 2.0]])
    guess[0, 2, :2] = torch.tensor([3.1, 0.0])  # the second one on the same box is wrong
    metric.update({**found, "boxes": guess}, boxes, present)
    result = metric.compute()
    # class 0: both boxes found by the two best at every threshold, then a wrong one, whose 2/3 is the precision at recall 1;
    # class 1: 1.5 m off, right at 2 and 4 m alone, then a wrong one
    first, second = 1 - (1 - 2 / 3) / 90 / 0.9, 1 - (1 - 1 / 2) / 90 / 0.9
    assert result["mAP"] == pytest.approx((4 * first + 2 * second) / 8, abs=1e-6)
    assert result["centre_error"] == pytest.approx((0.3 + 0.0 + 1.5) / 3, abs=1e-6)
    metric.reset()
    assert metric.found == []


def test_centre_errors() -> None:
    metric = CentreErrors()
    metric.update(torch.tensor([[3.0, 4.0, 9.0], [1.0, 0.5, 0.0]]), torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    assert metric.compute() == {"centre_error": pytest.approx(2.75), "median_error": pytest.approx(0.5), "within_1m": 0.5}


# ---- recipes and the page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "configs/detection").glob("*.yaml")), ids=lambda p: p.stem)
def test_recipes_say_what_they_do_and_build(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ") and "python -m train fit" in text
    config = yaml.safe_load((ROOT / "configs/detection/base.yaml").read_text())["model"]["init_args"]
    own = yaml.safe_load(text)["model"]["init_args"]
    merged = own if path.stem == "detector" else config | own
    merged["model_kwargs"] = (config["model_kwargs"] if path.stem != "detector" else {}) | own["model_kwargs"]
    task = Detection(**merged)
    assert task.img_size == [24, 48]


def test_the_page_tells_what_was_run(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("dense_table", ROOT / "scripts/dense_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    results = [
        {"encoding": name, "seed": seed, "steps": 300, "seconds": 60, "centre_error": error + 0.02 * seed,
         "median_error": error, "within_1m": 0.3}
        for name, error in (("none", 1.9), ("petr", 1.6), ("petr_3dppe", 0.5)) for seed in (0, 1)
    ]  # fmt: skip
    script.DOCS = tmp_path
    script.write_page(results, tmp_path, planned=24)
    page = (tmp_path / "detection.md").read_text()
    assert "6 of 24 runs are finished" in page and "1.91 ± 0.01" in page and "No run of it" in page
    verdicts = [line.split("|")[-2].strip() for line in page.splitlines() if "| below" in line or "| above" in line]
    assert verdicts == ["yes", "no", "yes", "yes"]  # none, PETR, 3DPPE, 3DPPE over PETR
    assert len((tmp_path / "detection.csv").read_text().splitlines()) == 7
