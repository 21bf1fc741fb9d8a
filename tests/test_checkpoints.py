"""Shipped weights load offline and do what their cards say."""

import json
from pathlib import Path

import pytest
import timm
import torch
from test_docs import load_script

import vispe  # noqa: F401  registers the names

FOLDERS = sorted(p.parent for p in (Path(__file__).parents[1] / "checkpoints").glob("*/config.json"))


def test_there_are_some_and_they_are_small():
    assert len(FOLDERS) >= 5
    assert sum(f.stat().st_size for folder in FOLDERS for f in folder.iterdir()) < 60e6
    for folder in FOLDERS:
        assert {f.name for f in folder.iterdir()} == {"model.safetensors", "config.json", "metrics.json", "README.md"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_weights_reach_what_their_card_says(folder):
    metrics = json.loads((folder / "metrics.json").read_text())
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    check = metrics["check"]
    found = load_script("export_checkpoint").top1(model, tuple(check["size"]), check["images"], check["split"])
    assert abs(found - check["top1"]) <= 100 * 2 / check["images"]  # two pictures on the border of two classes, elsewhere
    own = next(iter(metrics["top1"].values()))
    assert f"| {own['32x32']:.1f} |" in (folder / "README.md").read_text()


def test_weights_of_another_model_are_refused():
    folder = next(f for f in FOLDERS if f.name.endswith("rope_mixed"))
    with pytest.raises((ValueError, RuntimeError), match="freqs|encoding"):
        timm.create_model("vit_ti_rope_axial", checkpoint_path=str(folder / "model.safetensors"), num_classes=47, in_chans=1)
    assert torch.isfinite(timm.create_model(f"local-dir:{folder}", pretrained=True).head.weight).all()
