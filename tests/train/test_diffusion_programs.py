"""Samples into a file, their evaluation, and the recipes of configs/dit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from test_diffusion_task import NET, command
from test_recipes import Parsed
from train_helpers import run

import vispe
from train import evaluate_images, generate
from train.diffusion import DiffusionModule
from vispe.evaluation import frechet_distance, statistics

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "configs/dit").glob("*.yaml"))
DIFFUSION = [path for path in RECIPES if path.name != "glyph_judge.yaml"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(command("fit", folder, "--trainer.max_steps=2", "--trainer.limit_val_batches=0", "--checkpoint.every_n_train_steps=1"))
    return folder / "checkpoints/last.ckpt"


def test_samples_into_a_file(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "a/samples.npz"
    options = ["--classes", "3", "7", "--per_class", "2", "--size", "16", "24", "--steps", "3"]
    generate.main([str(checkpoint), "--out", str(out), *options])
    assert "4 samples of (1, 16, 24)" in capsys.readouterr().out
    with np.load(out) as file:
        assert file["arr_0"].shape == (4, 16, 24, 1) and file["arr_0"].dtype == np.uint8
        assert file["labels"].tolist() == [3, 3, 7, 7]
        found = file["arr_0"]
    task = generate.load_task(checkpoint)
    assert isinstance(task, DiffusionModule) and not task.training
    stored = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(t, stored[key]) for key, t in task.state_dict().items())
    assert np.array_equal(generate.to_bytes(task.sample([3, 7], (16, 24), count=2, steps=3)), found)


def test_extrapolation_changes_larger_sizes_alone(checkpoint: Path, tmp_path: Path) -> None:
    def made(size: str, *more: str) -> np.ndarray:
        generate.main([str(checkpoint), "--out", str(tmp_path / "x.npz"), "--classes", "1", "--size", size, size, *more])
        return np.load(tmp_path / "x.npz")["arr_0"]

    assert np.array_equal(made("16"), made("16", "--extrapolation", "ntk"))
    assert np.array_equal(made("16"), made("16", "--temperature", "log_n"))
    larger = [made("32"), made("32", "--extrapolation", "ntk"), made("32", "--extrapolation", "ntk", "--temperature", "log_n")]
    assert {x.shape for x in larger} == {(1, 32, 32, 1)}
    with pytest.raises(ValueError, match="temperature must be one of"):
        made("32", "--temperature", "cold")


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save({"hyper_parameters": {"model": "vit_ti_learned"}, "state_dict": {}}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="no checkpoint of the diffusion task"):
        generate.load_task(tmp_path / "a.ckpt")
    torch.save({"hyper_parameters": {"model": "dit_s_4_none", "model_kwargs": NET}, "state_dict": {}}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match="lacks .* tensors"):
        generate.load_task(tmp_path / "b.ckpt")


def pictures(path: Path, count: int, seed: int, channels: int = 1, **more: np.ndarray) -> Path:
    rng = np.random.default_rng(seed)
    np.savez(path, arr_0=rng.integers(0, 255, (count, 12, 16, channels), dtype=np.uint8), **more)
    return path


class Means(torch.nn.Module):
    """Two features of a picture in place of a network's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack((x.mean((1, 2, 3)), x.std((1, 2, 3))), dim=1)


def test_evaluation_offline_is_no_fid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("vispe.evaluation.lite0.Lite0Features", Means)
    a, b = pictures(tmp_path / "a.npz", 9, 0, labels=np.arange(9)), pictures(tmp_path / "b.npz", 11, 1)
    evaluate_images.main([str(a), "--reference", str(b), "--batch_size", "4", "--judge", str(ROOT / "checkpoints/judge_glyph")])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "feature_distance", "feature_precision", "feature_recall", "samples", "real", "class_accuracy", "note"
    }  # fmt: skip
    x, y = (Means()(torch.from_numpy(np.load(p)["arr_0"]).permute(0, 3, 1, 2).float() / 255) for p in (a, b))
    assert found["feature_distance"] == pytest.approx(frechet_distance(statistics(x), statistics(y)))
    assert (found["samples"], found["real"]) == (9, 11) and "as many only" in found["note"]
    evaluate_images.main([str(a), "--glyphs", "test", "--count", "5"])
    assert json.loads(capsys.readouterr().out)["real"] == 5


def test_evaluation_with_inception_and_a_stored_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from vispe.evaluation.inception import InceptionOutput

    class Net(Means):
        def __init__(self, weights: Path) -> None:
            super().__init__()

        def forward(self, x: torch.Tensor) -> InceptionOutput:
            features = super().forward(x)
            return InceptionOutput(features, 2 * features, features.softmax(1))

    monkeypatch.setattr("vispe.evaluation.inception.InceptionFeatures", Net)
    a, b = pictures(tmp_path / "a.npz", 9, 0), pictures(tmp_path / "b.npz", 11, 1)
    evaluate_images.main([str(a), "--reference", str(b), "--inception", "w"])
    plain = json.loads(capsys.readouterr().out)
    assert set(plain) == {"FID", "sFID", "IS", "precision", "recall", "samples", "real", "note"}
    assert plain["sFID"] == pytest.approx(4 * plain["FID"])
    own = statistics(Means()(torch.from_numpy(np.load(a)["arr_0"]).permute(0, 3, 1, 2).float() / 255))
    stored = {"mu": own.mean.numpy(), "sigma": own.cov.numpy()}
    evaluate_images.main([str(a), "--reference", str(pictures(tmp_path / "c.npz", 11, 1, **stored)), "--inception", "w"])
    found = json.loads(capsys.readouterr().out)
    assert abs(found["FID"]) < 1e-12 and found["sFID"] == pytest.approx(plain["sFID"])
    assert found["precision"] == plain["precision"]


def test_wrong_pictures_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "floats.npz", arr_0=np.zeros((3, 8, 8, 3)))
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    for number, size in enumerate((8, 9)):
        (tmp_path / "mixed").mkdir(exist_ok=True)
        Image.new("RGB", (size, 8)).save(tmp_path / f"mixed/{number}.png")
    (tmp_path / "none").mkdir()
    for name, words in (
        ("floats.npz", "uint8, got .* float64"), ("other.npz", "pictures are in arr_0"), ("mixed", "of several sizes"),
        ("none", "holds no pictures"),
    ):  # fmt: skip
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            list(evaluate_images.batches(tmp_path / name, 2))
    (tmp_path / "mixed/1.png").unlink()
    assert next(evaluate_images.batches(tmp_path / "mixed", 2)).shape == (1, 3, 8, 8)


def parse(path: Path, kind: str = "fit") -> dict:
    base = ROOT / "configs/dit/glyphs.yaml"
    files = [base, path] if path.name.startswith("glyphs_") else [path]
    return Parsed([kind, *(arg for file in files for arg in ("--config", str(file)))]).config[kind].as_dict()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_parse_and_say_what_they_are(path: Path) -> None:
    text, config = path.read_text(), parse(path)
    head = text.split("seed_everything")[0].split("run_dir")[0]
    assert "python -m train fit" in head and config["run_dir"].startswith("runs/dit/")
    if path.name.startswith("imagenet"):
        assert "NOT RUN HERE" in head and "GUIDED" in head and "ublished for this row" in head
        numbers = {"ape": "11.47, IS 110.04", "rope": "9.49, IS 124.78", "harope": "8.90, IS 127.01", "rpe2d": "Nothing is"}
        assert numbers[path.stem.removeprefix("imagenet256_")] in head


@pytest.mark.parametrize("path", DIFFUSION, ids=lambda path: path.stem)
def test_recipes_build_their_model(path: Path) -> None:
    settings = parse(path)["model"]["init_args"]
    small = {"depth": 1} if path.name.startswith("imagenet") else {}
    net = vispe.create_model(settings["model"], **settings["model_kwargs"] | small)
    assert net.config.num_classes in (47, 1000) and net.config.hidden_size == (144 if not small else 768)
    tiny = {"depth": 1, "hidden_size": 48, "num_heads": 3}
    task = DiffusionModule(**settings | {"model_kwargs": settings["model_kwargs"] | tiny})
    assert (task.policy is not None) == path.stem.endswith("rpe2d")
    assert yaml.safe_load(path.read_text())["run_dir"] == f"runs/dit/{path.stem}"
