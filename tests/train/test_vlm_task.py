"""The vision-language probe task: trained and tested by the command line, resumed exactly, and every recipe builds."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from train_helpers import Killed, run

from train.data.probes import ProbeBatch, VlmProbes, join
from train.data.sampling import Key
from train.vlm import VisionLanguageProbe

ROOT = Path(__file__).parents[2]
TOWER = {"patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 1, "class_token": False, "global_pool": "avg"}
NET = {"vision_window": 8, "dim": 32, "depth": 1, "num_heads": 2}
QUIET = [
    "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
    "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0",
]  # fmt: skip
CONDITIONS = {
    "haystack": "{long: {frames: 12}, fine: {frames: 12, rate: 0.125}}", "relations": "{wide: {grids: [[3, 6]]}}",
    "location": "{big: {grids: [[9, 7]]}}",
}  # fmt: skip


def command(kind: str, run_dir: Path, probe: str, scheme: str, *more: str) -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "VisionLanguageProbe", "--model.scheme", scheme,
        *(f"--model.model_kwargs.{k}={v}" for k, v in NET.items()), f"--model.model_kwargs.vision_kwargs={TOWER}",
        "--data", "VlmProbes", "--data.probe", probe, f"--data.conditions={CONDITIONS[probe]}",
        "--data.train_length", "24", "--data.val_length", "9", "--data.test_length", "5", "--data.batch_size", "8",
        *QUIET, *more,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "probe, scheme, kinds",
    [
        ("haystack", "v2pe", ("first", "second", "third", "last")),
        ("relations", "mrope_interleave", ("above", "left")),
        ("location", "cca", ("first", "second", "third", "last")),
    ],
)
def test_fit_test_and_predict(probe: str, scheme: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    metrics = run(command("fit", tmp_path, probe, scheme, "--trainer.max_epochs=1")).trainer.callback_metrics
    names = ["", *(f"@{name}" for name in yaml.safe_load(CONDITIONS[probe]))]
    assert {f"val/acc{at}{kind}" for at in names for kind in ("", *(f"/{k}" for k in kinds))} <= set(metrics)
    assert all(0 <= float(v) <= 1 for k, v in metrics.items() if "/acc" in k)
    last = ["--ckpt_path", str(tmp_path / "checkpoints/last.ckpt")]
    again = run(command("validate", tmp_path, probe, scheme, *last)).trainer.callback_metrics
    assert all(again[k] == metrics[k] for k in metrics if k.startswith("val/"))
    assert "test/acc" in run(command("test", tmp_path, probe, scheme, *last)).trainer.callback_metrics
    run(command("predict", tmp_path / "p", probe, scheme, *last))
    table = (tmp_path / "p/predictions.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table] == ["name", "0", "1", "2", "3", "4"]


def test_a_training_learns_to_read_the_mark(tmp_path: Path) -> None:
    more = [
        "--data.options={grids: [[1, 2]], faces: 1}", "--data.train_length=4480", "--data.batch_size=64",
        "--data.val_length=64", "--data.conditions=null", "--trainer.max_epochs=1", "--model.lr=6e-3",
    ]  # fmt: skip
    metrics = run(command("fit", tmp_path, "location", "shared_position", *more)).trainer.callback_metrics
    assert metrics["val/acc"] > 0.5  # chance is 1/8


def test_a_killed_run_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas drawn in training and questions are functions of the step."""

    def args(folder: Path) -> list[str]:
        return command("fit", folder, "haystack", "v2pe", "--trainer.max_epochs=2", "--checkpoint.every_n_train_steps=1")

    whole = run(args(tmp_path / "a")).model.net.state_dict()
    original = VisionLanguageProbe.training_step

    def training_step(self: VisionLanguageProbe, batch: ProbeBatch, batch_idx: int) -> torch.Tensor:
        if self.trainer.fit_loop.total_batch_idx == 4:
            raise Killed
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patched:
        patched.setattr(VisionLanguageProbe, "training_step", training_step)
        with pytest.raises(Killed):
            run(args(tmp_path / "b"))
    resumed = run([*args(tmp_path / "b"), "--ckpt_path", "last"]).model.net.state_dict()
    assert all(torch.equal(resumed[k], whole[k]) for k in whole)


def test_training_questions_are_new_in_every_epoch() -> None:
    train = VlmProbes(probe="location", train_length=10).train_dataset()
    first, again, other = train[Key(0, 3, 5)], train[Key(0, 9, 5)], train[Key(1, 3, 5)]
    assert torch.equal(first.picture, again.picture)
    assert first.picture.shape != other.picture.shape or not torch.equal(first.picture, other.picture)


def test_a_rate_changes_only_schemes_that_have_one() -> None:
    data = VlmProbes(probe="haystack", options={"frames": 6}, val_length=32)
    batch = join([data.eval_probe("val", {})[i] for i in range(32)])
    assert batch.answers.shape == batch.kinds.shape == (32,) and len(batch.sequences) == 32
    for scheme, changes in (("v2pe", True), ("rope1d", False)):
        torch.manual_seed(0)
        task = VisionLanguageProbe(scheme, model_kwargs={"vision_kwargs": TOWER, **NET}).eval()
        assert task.draws is changes
        with torch.no_grad():
            same = torch.equal(task.answers(batch, 1.0), task.answers(batch, 0.01))
        assert same is not changes


@pytest.mark.parametrize("path", sorted((ROOT / "configs/vlm").glob("*.yaml")), ids=lambda p: p.stem)
def test_recipes_build_and_name_their_probe(path: Path) -> None:
    text = path.read_text()
    config = yaml.safe_load(text)
    assert "python -m train fit" in text and config["run_dir"] == f"runs/vlm/{path.stem}"
    data = VlmProbes(**config["data"]["init_args"])
    assert data.probe == path.stem and len(data.conditions) > 1
    task = VisionLanguageProbe(**config["model"]["init_args"])
    batch = join([data.train_dataset()[Key(0, 0, i)] for i in range(3)])
    assert task.net(batch.sequences, last=True).shape == (3, 16)
    for changes in data.conditions.values():
        assert data.eval_probe("test", changes)[0].picture.ndim == 4


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vlm_table", ROOT / "scripts/vlm_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_come_from_finished_cells_alone(script: ModuleType, tmp_path: Path) -> None:
    bands = [f"@g24/{band}" for band in script.BANDS]
    cells = [("rope1d", s, dict(zip(["", "@g24", *bands], [1.0, 0.6, 0.2 + 0.1 * s, 0.4, 0.6, 0.9]))) for s in (0, 1)]
    cells += [("cca", 0, dict(zip(["", "@g24", *bands], [1.0, 0.6, 0.3, 0.6, 0.6, 0.5])))]
    for scheme, seed, found in cells:
        folder = tmp_path / "runs" / f"location-{scheme}-{seed}"
        folder.mkdir(parents=True)
        done = {"probe": "location", "scheme": scheme, "seed": seed, "steps": 2, "seconds": 90}
        (folder / "done.json").write_text(json.dumps(done | {"metrics": {f"val/acc{k}": v for k, v in found.items()}}))
    (tmp_path / "vlm_probes.md").write_text(f"kept\n{script.BEGIN}\nold\n{script.END}\nkept too\n")
    for _ in range(2):  # written again over itself
        script.write_page(script.load(tmp_path / "runs", tmp_path), planned=9, docs=tmp_path)
    page = (tmp_path / "vlm_probes.md").read_text()
    assert page.startswith("kept\n") and page.endswith("\nkept too\n") and "old" not in page
    assert "3 of 9 cells are finished" in page and page.count("Nothing was trained on this probe.") == 2
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert "0.25 ± 0.07" in rows["1-D rotary"] and "| 0.30 |" in rows["CCA"]
    recency = next(line for line in rows.values() if "favours the bottom" in line)
    assert "0.65 ± 0.07 | 2 | shown |" in recency and "Xing et al." in recency
    assert next(line for line in rows.values() if "top and bottom alike" in line).endswith("-0.20 | 1 | not shown |")
    assert sum(line.endswith("not measured |") for line in rows.values()) == len(script.CLAIMS) - 2
    assert (tmp_path / "vlm_probes.csv").read_text().count("\n") == 1 + 18 and (tmp_path / "vlm_probes.png").stat().st_size > 0


def test_the_table_reads_metrics_that_the_recipes_report(script: ModuleType) -> None:
    for probe, schemes in script.SCHEMES.items():
        data = VlmProbes(**yaml.safe_load((script.CONFIGS / f"{probe}.yaml").read_text())["data"]["init_args"])
        at = {f"@{name}" if name else "" for name in data.conditions}
        known = at | {f"{a}/{kind}" for a in at for kind in data.kinds}
        claims = [c for c in script.CLAIMS if c.probe == probe]
        assert claims and set(script.COLUMNS[probe]) <= known
        assert all(key in known and scheme in schemes for c in claims for _, scheme, key in c.terms)
        assert set(schemes) <= set(script.TITLES)


def test_bad_settings_are_named() -> None:
    for make, message in (
        (lambda: VlmProbes(probe="needle"), "probe must be one of"),
        (lambda: VlmProbes(probe="location", conditions={"x": {"frames": 4}}), r"condition 'x' changes \['frames'\]"),
        (lambda: VlmProbes(img_size=8), "sizes are conditions"),
        (lambda: VlmProbes(repeats=2), "repeats has no meaning"),
        (lambda: VlmProbes(options={"frames": 0}), "Haystack: frames"),
        (lambda: VisionLanguageProbe("vrope", draw_rates=True), "has no rate to draw"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
