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


@pytest.mark.parametrize("name", timm.list_models("vit_glyph_*", pretrained=True))
def test_own_names_are_the_shipped_folders(name):
    """`vit_glyph_NAME.glyph47` is what `local-dir:` makes of its folder, and says so itself."""
    folder = next(f for f in FOLDERS if f.name == name.partition(".")[0])
    model, other = (timm.create_model(n, pretrained=True).eval() for n in (name, f"local-dir:{folder}"))
    for key in ("mean", "std", "input_size", "crop_pct", "num_classes"):
        assert tuple(_listed(model.pretrained_cfg[key])) == tuple(_listed(other.pretrained_cfg[key]))
    x = torch.randn(2, 1, 32, 48)
    with torch.no_grad():
        assert torch.equal(model(x), other(x)) and model(x).std() > 0.1


def _listed(value):
    return value if isinstance(value, (list, tuple)) else [value]


def test_every_shipped_vit_has_a_name():
    assert {f.name for f in FOLDERS if f.name.startswith("vit_")} == set(timm.list_models("vit_glyph_*"))


def test_weights_of_another_model_are_refused():
    folder = next(f for f in FOLDERS if f.name.endswith("rope_mixed"))
    with pytest.raises((ValueError, RuntimeError), match="freqs|encoding"):
        timm.create_model("vit_ti_rope_axial", checkpoint_path=str(folder / "model.safetensors"), num_classes=47, in_chans=1)
    assert torch.isfinite(timm.create_model(f"local-dir:{folder}", pretrained=True).head.weight).all()
