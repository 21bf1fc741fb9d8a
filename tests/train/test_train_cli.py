"""The command line: subcommands, composition, and who wins over a checkpoint."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file
from train_helpers import NET, command, folder_args, run

from train import weights
from train.cli import stored_model

REPOSITORY = Path(__file__).parents[2]


def program(args: list[str]) -> subprocess.CompletedProcess[str]:
    """``python -m train`` as a user runs it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "train", *args], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one epoch, by the real program."""
    run_dir = tmp_path_factory.mktemp("trained")
    done = program(command("fit", run_dir, *folder_args(folder), "--trainer.max_epochs=1", "--model.lr=2e-3"))
    assert done.returncode == 0, done.stderr
    return run_dir


def last(run_dir: Path) -> str:
    return str(run_dir / "checkpoints/last.ckpt")


def test_fit_leaves_logs_checkpoints_and_configuration(trained: Path) -> None:
    rows = list(csv.DictReader((trained / "logs/version_0/metrics.csv").open()))
    assert {"train/loss", "train/lr", "train/images_per_s", "train/peak_memory_mb", "val/top1", "val/top5"} <= rows[0].keys()
    assert float(rows[3]["train/images_per_s"]) > 0 and float(rows[3]["train/peak_memory_mb"]) > 10
    assert list((trained / "logs/version_0").glob("events.out.tfevents.*"))
    saved = yaml.safe_load((trained / "logs/version_0/config.yaml").read_text())
    assert saved["model"]["init_args"]["lr"] == 2e-3
    assert Path(last(trained)).is_file()


@pytest.mark.parametrize("kind", ["validate", "test"])
def test_evaluation_equals_that_of_the_run(trained: Path, folder: Path, tmp_path: Path, kind: str) -> None:
    cli = run(command(kind, tmp_path, *folder_args(folder), "--ckpt_path", last(trained)))
    stage = "val" if kind == "validate" else "test"
    rows = list(csv.DictReader((trained / "logs/version_0/metrics.csv").open()))
    assert float(cli.trainer.callback_metrics[f"{stage}/loss"]) == pytest.approx(float(rows[-1]["val/loss"]), rel=1e-6)


def test_predict_writes_names_and_probabilities(trained: Path, folder: Path, tmp_path: Path) -> None:
    images = folder / "val" / "c1"
    done = program(
        command("predict", tmp_path, *folder_args(folder, "--data.predict_dir", str(images)), "--ckpt_path", last(trained))
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert [row["name"] for row in rows] == sorted(str(p) for p in images.iterdir())
    assert all(0 <= int(row["class"]) < 3 and 1 / 3 <= float(row["probability"]) <= 1 for row in rows)
    assert all(sorted(row["top5"].split()) == ["0", "1", "2"] for row in rows)


def test_model_comes_from_the_checkpoint_when_the_command_line_is_silent(trained: Path, folder: Path, tmp_path: Path) -> None:
    args = ["test", "--run_dir", str(tmp_path), *folder_args(folder), "--ckpt_path", last(trained)]
    cli = run([*args, "--trainer.accelerator", "cpu", "--trainer.devices", "1"])
    assert cli.model.hparams.lr == 2e-3 and cli.model.hparams.model_kwargs == NET


def test_command_line_wins_over_the_checkpoint(trained: Path, folder: Path, tmp_path: Path) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--ckpt_path", last(trained), "--trainer.max_epochs=2")
    cli = run([*args, "--model.model_kwargs.img_size=32", "--model.lr=5e-4", "--model.weight_decay=0.3"])
    assert cli.model.hparams.model_kwargs["img_size"] == 32
    assert cli.trainer.datamodule.sizes() == [(32, 32)]
    optimizer = cli.trainer.optimizers[0]
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}
    assert {group["initial_lr"] for group in optimizer.param_groups} == {5e-4}
    rows = [r for r in csv.DictReader((tmp_path / "logs/version_0/metrics.csv").open()) if r["train/lr"]]
    assert [int(row["step"]) for row in rows] == list(range(6, 12))  # it resumed
    assert 0 < float(rows[0]["train/lr"]) <= 5e-4 * (1 + 1e-6)  # the saved schedule has not brought 2e-3 back
    saved = yaml.safe_load((tmp_path / "logs/version_0/config.yaml").read_text())
    assert saved["model"]["init_args"]["model_kwargs"]["img_size"] == 32


def test_resume_at_another_size_says_what_it_resampled(
    trained: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--ckpt_path", last(trained), "--trainer.max_epochs=2")
    with caplog.at_level("INFO"):
        run([*args, "--model.model_kwargs.img_size=[16,24]"])
    assert "resampled encoding.learned.pos_embed: 4x4 to 4x6" in caplog.text
    assert "moments of 1 resampled parameters start anew" in caplog.text


def test_init_from_another_size(trained: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = torch.load(last(trained), weights_only=True)["state_dict"]
    args = command("validate", tmp_path, *folder_args(folder), "--model.init_from", last(trained))
    with caplog.at_level("INFO"):
        cli = run([*args, "--model.model_kwargs.img_size=32"])
    assert "resampled encoding.learned.pos_embed: 4x4 to 8x8" in caplog.text
    for name, value in cli.model.net.state_dict().items():
        assert "pos_embed" in name or torch.equal(value, stored["net." + name]), name


def test_init_from_is_not_read_where_a_checkpoint_is(trained: Path, folder: Path, tmp_path: Path) -> None:
    """The file that a run started from may be gone by the time it is resumed or tested."""
    gone = ["--model.init_from", str(tmp_path / "gone.ckpt"), "--ckpt_path", last(trained)]
    stored = torch.load(last(trained), weights_only=True)["state_dict"]
    cli = run([*command("test", tmp_path / "a", *folder_args(folder)), *gone])
    assert all(torch.equal(value, stored["net." + name]) for name, value in cli.model.net.state_dict().items())


def test_init_from_another_class_count_leaves_the_classifier(trained: Path) -> None:
    net = timm.create_model("vit_ti_learned", **NET | {"num_classes": 5})
    before = net.head.weight.clone()
    lines = weights.init_from(net, last(trained))
    assert torch.equal(net.head.weight, before) and any("head.weight" in line for line in lines)
    stored = torch.load(last(trained), weights_only=True)["state_dict"]
    assert torch.equal(net.blocks[1].attn.qkv.weight, stored["net.blocks.1.attn.qkv.weight"])


def test_init_from_safetensors_and_a_plain_timm_model(tmp_path: Path) -> None:
    source = timm.create_model("vit_tiny_patch16_224", **NET)
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    torch.save({"model": source.state_dict()}, tmp_path / "a.pth")
    images = torch.rand(2, 3, 16, 16)
    for file in ("a.safetensors", "a.pth"):
        net = timm.create_model("vit_ti_learned", **NET)
        weights.init_from(net, str(tmp_path / file))
        torch.testing.assert_close(net.eval()(images), source.eval()(images))
    other = timm.create_model("vit_tiny_patch16_224", **NET | {"num_classes": 5})
    assert any("head.weight" in line for line in weights.init_from(other, str(tmp_path / "a.pth")))
    assert torch.equal(other.cls_token, source.cls_token)


def test_finished_run_is_not_overwritten_by_accident(folder: Path, tmp_path: Path) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--trainer.max_steps=2", "--trainer.limit_val_batches=0")
    run(args)
    with pytest.raises(FileExistsError, match="--ckpt_path last.*--overwrite true"):
        run(args)
    run([*args, "--ckpt_path=last", "--trainer.max_steps=3"])
    with pytest.raises(FileExistsError, match="init_from .* would delete"):
        run([*args, "--overwrite=true", f"--model.init_from={last(tmp_path)}"])
    cli = run([*args, "--overwrite=true", "--trainer.max_steps=1"])
    assert cli.trainer.global_step == 1
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"last.ckpt", "epoch=0000-step=00000001.ckpt"}


def make_newest(path: Path) -> None:
    """Date a file 10 s after every other checkpoint of its run: clocks of a file system may differ by more than a fit takes."""
    run_dir = path.parent if path.parent.name != "checkpoints" else path.parent.parent
    newest = max(other.stat().st_mtime for other in run_dir.rglob("*.ckpt"))
    os.utime(path, (newest + 10, newest + 10))


def test_last_takes_the_checkpoint_of_a_requeued_job(folder: Path, tmp_path: Path) -> None:
    args = [*folder_args(folder), "--trainer.limit_val_batches=0"]
    run(command("fit", tmp_path / "a", *args, "--trainer.max_steps=2"))
    run(command("fit", tmp_path / "b", *args, "--trainer.max_steps=4"))
    (tmp_path / "b/checkpoints/last.ckpt").rename(tmp_path / "a/hpc_ckpt_1.ckpt")
    make_newest(tmp_path / "a/hpc_ckpt_1.ckpt")
    cli = run(command("fit", tmp_path / "a", *args, "--trainer.max_steps=5", "--ckpt_path=last"))
    assert cli.trainer.ckpt_path.endswith("hpc_ckpt_1.ckpt") and cli.trainer.global_step == 5
    make_newest(Path(last(tmp_path / "a")))
    cli = run(command("fit", tmp_path / "a", *args, "--trainer.max_steps=6", "--ckpt_path=last"))
    assert cli.trainer.ckpt_path.endswith("last.ckpt") and cli.trainer.global_step == 6


def test_configs_compose_and_the_later_wins(folder: Path, tmp_path: Path) -> None:
    base = {"model": {"class_path": "ImageClassification", "init_args": {"model_kwargs": NET, "lr": 0.5, "warmup": 0.1}}}
    base |= {"data": {"class_path": "ImageFolderData", "init_args": {"root": str(folder), "batch_size": 4}}}
    over = {"model": {"class_path": "ImageClassification", "init_args": {"model": "vit_ti_rope_axial", "lr": 0.25}}}
    for name, content in (("base", base), ("over", over)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    configs = ["--config", str(tmp_path / "base.yaml"), "--config", str(tmp_path / "over.yaml")]
    rest = ["--trainer.fast_dev_run=true", "--trainer.accelerator=cpu", "--model.min_lr=1e-6", f"--run_dir={tmp_path}"]
    hparams = run(["fit", *configs, *rest]).model.hparams
    assert hparams.model_kwargs == NET and hparams.model == "vit_ti_rope_axial"
    assert (hparams.lr, hparams.warmup, hparams.min_lr) == (0.25, 0.1, 1e-6)


def test_print_config_explains_every_key() -> None:
    done = program(["fit", "--model=ImageClassification", "--data=Glyphs", "--print_config"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model:"))
    for i, line in enumerate(lines[start:], start):
        key = line.strip().partition(":")[0]
        if line.startswith("    ") and line.strip()[0] not in "#-" and key.isidentifier():
            assert lines[i - 1].strip().startswith("#"), f"{key} has no explanation"


def test_misspelt_option_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(command("fit", tmp_path, *folder_args(folder), "--model.mixupp=0.8"))
    assert "mixupp" in capsys.readouterr().err


def test_stored_model_needs_a_path() -> None:
    assert stored_model(["fit", "--ckpt_path", "last"]) is None
    assert stored_model(["fit"]) is None


@pytest.mark.parametrize("model", ["vit_ti_learned", "vit_ti_beit_bias"])
def test_resume_from_a_rectangle(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, model: str) -> None:
    """A checkpoint of 3 x 8 patches goes on at 8 x 3, which has as many, and at 4 x 4."""
    quiet = ["--trainer.limit_val_batches=0", "--trainer.max_epochs=9"]
    first = command("fit", tmp_path / "a", *folder_args(folder), *quiet, "--trainer.max_steps=1", model=model)
    run([*first, "--model.model_kwargs.img_size=[12,32]"])
    for name, size, grid in (("b", "[32,12]", "8x3"), ("c", "[16,16]", "4x4")):
        args = command("fit", tmp_path / name, *folder_args(folder), *quiet, "--trainer.max_steps=2", model=model)
        with caplog.at_level("INFO"):
            cli = run([*args, "--ckpt_path", last(tmp_path / "a"), f"--model.model_kwargs.img_size={size}"])
        assert cli.trainer.global_step == 2
        assert f": 3x8 to {grid}" in caplog.text
        tables = 1 if model == "vit_ti_learned" else 2
        assert f"moments of {tables} resampled parameters start anew" in caplog.text  # 8x3 has the old shape
        caplog.clear()
