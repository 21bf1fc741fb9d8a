"""Every recipe parses, says what it is, and names a model that exists."""

from pathlib import Path

import pytest
import timm
import yaml
from train_helpers import CLASSES

from train.cli import VispeCLI

CONFIGS = Path(__file__).parents[2] / "configs"
BASES = {  # files that only change another one
    "glyphs": "glyphs/base.yaml",
    "two_shot_learned.yaml": "video/two_shot.yaml",
    "two_shot_none.yaml": "video/two_shot.yaml",
    "cluster.yaml": "imagenet/deit3_rope_mixed_b.yaml",
    "deit3_finetune_224.yaml": "imagenet/deit3_rope_mixed_b.yaml",
}
TASKS = {"droppos.yaml": "DropPos", "mp3.yaml": "PositionPrediction", "video": "VideoClassification"}
RECIPES = sorted(
    path
    for folder in ("glyphs", "imagenet", "video", ".")
    for path in (CONFIGS / folder).glob("*.yaml")
    if "run_dir" in path.read_text() or path.name in BASES
)


class Parsed(VispeCLI):
    """Stops after parsing."""

    def instantiate_classes(self) -> None:
        return None

    def _run_subcommand(self, subcommand: str) -> None:
        return None


def parse(path: Path, kind: str = "fit") -> dict:
    base = BASES.get(path.name) or BASES.get(path.parent.name)
    files = [CONFIGS / base, path] if base and path != CONFIGS / base else [path]
    cli = Parsed([kind, *(arg for file in files for arg in ("--config", str(file)))])
    return cli.config[kind].as_dict()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_recipe_parses_and_names_a_model(path: Path) -> None:
    config = parse(path)
    model = config["model"]["init_args"]
    assert timm.is_model(model["model"])
    assert config["run_dir"].startswith("runs/")
    assert config["trainer"]["max_epochs"] >= 1
    assert config["model"]["class_path"].endswith(TASKS.get(path.name) or TASKS.get(path.parent.name, "ImageClassification"))
    parse(path, "test")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_recipe_opens_with_what_it_is(path: Path) -> None:
    lines = path.read_text().splitlines()
    head = "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])
    assert "python -m train fit" in head or path.name == "deit3_finetune_224.yaml"
    if path.parent.name == "imagenet" or path.name.endswith("ucf101.yaml"):
        assert "NOT RUN HERE" in head and ("ublished" in head)


def test_imagenet_models_build_with_their_arguments() -> None:
    for path in sorted((CONFIGS / "imagenet").glob("*_s.yaml")):
        model = yaml.safe_load(path.read_text())["model"]["init_args"]
        net = timm.create_model(model["model"], **model["model_kwargs"] | {"depth": 1, "num_classes": CLASSES})
        assert net.num_classes == CLASSES


def test_glyph_models_build_with_their_arguments() -> None:
    for path in sorted((CONFIGS / "glyphs").glob("*.yaml")):
        model = parse(path)["model"]["init_args"]
        net = timm.create_model(model["model"], **model["model_kwargs"])
        assert len(net.blocks) == 6 and net.embed_dim == 128 and net.cls_token is None
        assert not model.get("eval_coords") or hasattr(net, "set_coords")


def test_video_models_build_with_their_arguments() -> None:
    for path in sorted((CONFIGS / "video").glob("*.yaml")):
        model = parse(path)["model"]["init_args"]
        net = timm.create_model(model["model"], **model["model_kwargs"] | {"depth": 1})
        assert net.patch_embed.num_frames == 8
