"""TULIP's distillation on a tiny tower and a file of captions."""

from pathlib import Path

import pytest
import torch
from test_recipes import parse
from train_helpers import run

from train.clip_distill import ClipDistillation
from vispe.models.clip_text import tokenize

TEXT = {"layers": 1, "width": 32, "heads": 2}
CONFIG = Path(__file__).parents[2] / "configs/clip/tulip_stage1.yaml"


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    things = ["dog", "apple", "red bus", "blue fish", "tree", "moon"]
    lines = [f"a {a} left of a {b}" for a in things for b in things if a != b]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "val.txt").write_text("\n".join(lines[:5]))
    return tmp_path


def command(kind: str, root: Path, *more: str) -> list[str]:
    text = ",".join(f"{k}: {v}" for k, v in TEXT.items())
    return [
        kind, "--run_dir", str(root / "run"), "--model", "ClipDistillation", "--model.model", "ViT-B-32",
        "--model.text_config", f"{{{text}}}", "--model.context_length", "100", "--model.lr", "3e-3",
        "--data", "Captions", "--data.root", str(root), "--data.batch_size", "10",
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", *more,
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """open_clip builds the image tower as well; a small one will do."""
    import open_clip

    config = open_clip.get_model_config("ViT-B-32")
    config["vision_cfg"] |= {"layers": 1, "width": 64, "head_width": 32}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-32", config)


def test_the_student_comes_nearer_and_the_teacher_stays(captions: Path) -> None:
    cli = run(command("fit", captions, "--trainer.max_epochs=4"))
    task = cli.model
    assert not any(p.requires_grad for p in task.teacher.parameters())
    ids = tokenize(["a dog left of a moon", "a tree left of a red bus"], 77)
    fresh = ClipDistillation("ViT-B-32", text_config=TEXT)
    fresh.teacher.load_state_dict(task.teacher.state_dict())
    names = set(fresh.student.state_dict()) & set(task.teacher.state_dict())
    fresh.student.load_state_dict({k: v for k, v in task.teacher.state_dict().items() if k in names})
    assert task.step(ids) < 0.7 * fresh.step(ids)
    assert torch.equal(task.student.token_embedding.weight, task.teacher.token_embedding.weight)
    long = tokenize(" ".join(["dog"] * 90), 100)
    assert task.student(long).isfinite().all()
    again = run(command("validate", captions, "--ckpt_path", str(captions / "run/checkpoints/last.ckpt")))
    torch.testing.assert_close(again.trainer.callback_metrics["val/loss"], cli.trainer.callback_metrics["val/loss"])


def test_a_caption_that_does_not_fit_is_named(captions: Path) -> None:
    with (captions / "val.txt").open("a") as file:
        file.write("\n" + " ".join(["dog"] * 80))
    with pytest.raises(ValueError, match=r"val\.txt, line 6: tokenize: text 0 has 82 tokens .* the context is 77"):
        run(command("validate", captions))


def test_refusals(captions: Path) -> None:
    with pytest.raises(ValueError, match="open_clip has no model 'ViT-Z'"):
        ClipDistillation("ViT-Z")
    (captions / "train.txt").unlink()
    with pytest.raises(FileNotFoundError, match="expected one caption a line"):
        run(command("fit", captions))


def test_recipe_says_what_it_is() -> None:
    settings = parse(CONFIG)["model"]["init_args"]
    assert "NOT RUN HERE" in CONFIG.read_text()
    assert (settings["lr"], settings["context_length"], settings["model"]) == (5e-4, 248, "ViT-B-16")
