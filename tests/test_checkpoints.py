"""Shipped weights load offline and do what their cards say."""

import json
import math
import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from test_docs import load_script

import vispe

FOLDERS = sorted(p.parent for p in (Path(__file__).parents[1] / "checkpoints").glob("*/config.json"))
IMAGES = [folder for folder in FOLDERS if folder.name.startswith(("vit_", "judge_"))]
OTHERS = [folder for folder in FOLDERS if folder not in IMAGES]


def test_there_are_some_and_they_are_small():
    assert len(IMAGES) >= 9 and {folder.name.partition("_")[0] for folder in OTHERS} >= {"dit", "vid", "vlm", "nvs"}
    assert sum(f.stat().st_size for folder in FOLDERS for f in folder.iterdir()) < 60e6
    for folder in FOLDERS:
        (weights,) = folder.glob("*.safetensors")
        assert {f.name for f in folder.iterdir()} == {weights.name, "config.json", "metrics.json", "README.md"}
        with safe_open(weights, "pt") as file:
            kinds = {file.get_slice(name).get_dtype() for name in file.keys()}
        assert "F16" in kinds and not kinds & {"F32", "F64"}, folder.name


@pytest.mark.parametrize("folder", IMAGES, ids=lambda folder: folder.name)
def test_the_weights_reach_what_their_card_says(folder):
    metrics = json.loads((folder / "metrics.json").read_text())
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    check = metrics["check"]
    found = load_script("export_checkpoint").top1(model, tuple(check["size"]), check["images"], check["split"])
    assert abs(found - check["top1"]) <= 100 * 2 / check["images"]  # two pictures on the border of two classes, elsewhere
    own = next(iter(metrics["top1"].values()))
    assert f"| {own['32x32']:.1f} |" in (folder / "README.md").read_text()


@pytest.mark.parametrize("folder", OTHERS, ids=lambda folder: folder.name)
def test_the_figures_of_a_card_are_those_of_its_weights(folder):
    """What the export script measured on a small fixed part of the data comes out again; its table is on the card."""
    facts = json.loads((folder / "metrics.json").read_text())
    script = load_script(Path(facts["export"]).stem)
    torch.manual_seed(0)
    found = script.check(script.load(folder))
    assert found.keys() == facts["check"].keys() == script.TOLERANCE.keys()
    for name, value in found.items():
        assert abs(value - facts["check"][name]) <= script.TOLERANCE[name], (name, value, facts["check"][name])
    card = (folder / "README.md").read_text()
    for row in facts["measured"].values():
        assert f"| {' | '.join(f'{value:.1f}' for value in row.values())} |" in card
    assert facts["data"] and f"{facts['steps']:,} steps" in card and re.search(rf"seed(_everything)? {facts['seed']}\b", card)


@pytest.mark.parametrize("folder", OTHERS, ids=lambda folder: folder.name)
def test_other_weights_do_not_reach_them(folder):
    """The figures tell these weights from weights of the same model that were not trained."""
    facts = json.loads((folder / "metrics.json").read_text())
    script = load_script(Path(facts["export"]).stem)
    model = script.load(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p[torch.randperm(len(p))])
    found = script.check(model)
    assert any(not math.isclose(v, facts["check"][k], abs_tol=script.TOLERANCE[k]) for k, v in found.items()), found


def test_folders_are_found_by_name():
    assert [vispe.shipped(folder.name) for folder in FOLDERS] == FOLDERS
    with pytest.raises(ValueError, match="vit_glyph_comrope"):
        vispe.shipped("vit_glyph")


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
