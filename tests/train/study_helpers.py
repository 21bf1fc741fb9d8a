"""Tiny studies for the tests: a recipe of eight steps, two rows, one seed, eight test images."""

from pathlib import Path

import yaml

from train.study.cli import build_parser
from train.study.config import Study
from train.study.results import Row

KWARGS = {
    "num_classes": 47, "in_chans": 1, "img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2,
    "class_token": False, "global_pool": "avg",
}  # fmt: skip
RECIPE = {
    "model": {"class_path": "ImageClassification", "init_args": {"model": "vit_ti_none", "model_kwargs": KWARGS}},
    "data": {"class_path": "Glyphs", "init_args": {"channels": 1, "train_length": 32, "batch_size": 4}},
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 1, "log_every_n_steps": 1, "num_sanity_val_steps": 0,
    },
    "checkpoint": {"every_n_train_steps": 2},
}  # fmt: skip
PROTOCOLS = {
    "images": 8, "batch_size": 8, "sizes": [[24, 24], [16, 24]], "extrapolation": ["ntk"], "canvas": [[20, 20]],
    "shifts": [[0.1, 0.0]], "crops": [[12, 12]],
}  # fmt: skip
SINCOS = {"model.model": "vit_ti_learned", "model.model_kwargs.encoding_kwargs": {"init": "sincos"}}


def write(folder: Path, **changes: object) -> Path:
    """A study's YAML file, with its recipe beside it."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    content = {
        "name": "tiny", "recipe": [str(recipe)], "encodings": {"table": SINCOS, "rope_axial": {}}, "baseline": "table",
        "seeds": [0], "runs": str(folder / "runs"), "protocols": PROTOCOLS,
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content | changes, sort_keys=False))
    return path


def load(path: Path) -> Study:
    """The study of a YAML file."""
    parser = build_parser()
    found = parser.parse_args(["--config", str(path)])
    for name in ("config", "jobs", "only", "dry_run", "page"):
        found.pop(name)
    return Study(**vars(parser.instantiate_classes(found)))


def row(encoding: str, seed: int, value: float, **changes: object) -> Row:
    """A made-up row of top-1 accuracy at the training size."""
    fields = {
        "format": 1, "protocol": "resize", "size": "32x32", "option": "", "coords": "own", "method": "-", "default": True,
        "metric": "top1", "images": 100, "params": 1000, "images_per_s": 50.0, "commit": "abc", "config_hash": f"h{encoding}",
    }  # fmt: skip
    return Row(**{**fields, "encoding": encoding, "seed": seed, "value": value, **changes})


def table(accuracies: dict[str, list[float]], **changes: object) -> list[Row]:
    """Rows of several encodings, one accuracy for each seed, with what training took."""
    found = []
    for encoding, values in accuracies.items():
        for seed, value in enumerate(values):
            found.append(row(encoding, seed, value, **changes))
            found.append(row(encoding, seed, 3600.0, protocol="train", metric="seconds", images=0))
    return found
