"""`vispe.diagnose` and `vispe inspect`: everything at once, pictures, and what is refused."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import vispe
from vispe.cli import main
from vispe.diagnostics import NAMES, textures

SIZE = (48, 64)
TINY = dict(embed_dim=96, depth=2, num_heads=2, patch_size=8, img_size=SIZE, num_classes=5)
KWARGS = json.dumps(TINY)


def vit(variant: str):
    torch.manual_seed(0)
    return timm.create_model(f"vit_ti_{variant}", **TINY)


def test_diagnose_gives_every_result_and_leaves_no_trace(tmp_path):
    model = vit("rope_mixed").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    seen = []
    found = vispe.diagnose(model, three_cell_images=64, progress=seen.append)
    assert torch.equal(torch.rand(3), expected), "global random numbers were used"
    assert isinstance(found, vispe.Diagnosis) and found.names == NAMES == tuple(seen)
    assert model.training and all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert found.title == "vit_ti_rope_mixed (rope_mixed), 48 x 64 pixels"
    assert vispe.diagnose(model, three_cell_images=64).numbers() == found.numbers(), "not deterministic"
    files = found.save(tmp_path / "new" / "folder")
    assert [f.name for f in files] == [*(f"{n}.png" for n in NAMES), "diagnosis.json"]
    for file in files[:-1]:
        assert min(Image.open(file).size) >= 400
    numbers = json.loads(files[-1].read_text())
    assert numbers["attention_distance"]["uniform"] == pytest.approx(found.attention_distance.uniform)
    files[0].write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="three_cell.png exists"):
        found.save(tmp_path / "new" / "folder")
    assert files[0].read_bytes() == b"mine"


def test_results_that_do_not_apply_are_absent():
    found = vispe.diagnose(vit("learned"), only=("wavelengths", "padding"))
    assert found.names == ("padding",) and found.three_cell is None
    with pytest.raises(ValueError, match="no result 'wavelengths'"):
        found.figure("wavelengths")


@pytest.mark.parametrize("name", ["rope_mixed_ape", "lookhere", "loope", "swinv2_cpb"])
def test_masks_and_compositions_are_drawn(name):
    only = ("logit_decay", "wavelengths", "equivariance", "relevance")
    found = vispe.diagnose(vit(name), textures(2, SIZE), only=only)
    for result in found.names:
        assert found.figure(result).axes


def test_plain_timm_models_are_diagnosed_as_copies():
    model = timm.create_model("vit_tiny_patch16_224", img_size=SIZE, depth=2, num_classes=3)
    found = vispe.diagnose(model, three_cell_images=32, only=("three_cell", "decodability", "relevance"))
    assert found.title.startswith("vit_tiny_patch16_224 (learned)") and found.relevance.ways["tokens"] != 0


def test_grey_models_and_other_sizes():
    model = timm.create_model("vit_ti_sincos2d", **TINY, in_chans=1)
    found = vispe.diagnose(model, size=(32, 40), only=("three_cell", "padding"), three_cell_images=32)
    assert found.padding.maps.shape[1:] == (4, 5)


def test_half_precision():
    exact, half = vit("rope_mixed"), vit("rope_mixed").bfloat16()
    only = ("equivariance", "logit_decay", "attention_distance", "padding", "relevance", "decodability")
    one, other = (vispe.diagnose(m, textures(4, SIZE), only=only, target=1) for m in (exact, half))
    torch.testing.assert_close(other.attention_distance.distance, one.attention_distance.distance, rtol=0.01, atol=0.01)
    assert other.equivariance["positions shifted"].scores < 0.05 and other.relevance.content.dtype == torch.float32
    for name in only:
        assert other.figure(name).axes or other.figure(name).subfigs


@pytest.mark.parametrize("kwargs, text", [
    (dict(only=("padding", "paddding")), "no result 'paddding'"),
    (dict(images=torch.zeros(4, 1, *SIZE)), r"\(B, 3, height, width\), got \(4, 1, 48, 64\)"),
    (dict(images=torch.zeros(2, 3, *SIZE)), "at least 4 images, got 2"),
    (dict(three_cell_images=4), "at least 8"),
])  # fmt: skip
def test_diagnose_refuses(kwargs, text):
    with pytest.raises(ValueError, match=text):
        vispe.diagnose(vit("none"), **kwargs)


def test_inspect_writes_pictures_of_a_file_of_weights(tmp_path, capsys):
    model = vit("sincos2d")
    weights = tmp_path / "mine.safetensors"
    save_file(model.state_dict(), weights, metadata={"vispe.model": "vit_ti_sincos2d", "vispe.model_kwargs": KWARGS})
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (60, 50), (40 * i, 90, 10)).save(folder / f"{i}.png")
    out = tmp_path / "out"
    argv = ["inspect", str(weights), "--images", str(folder), "--out", str(out), "--only", "decodability", "padding"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert "mine (sincos2d), 48 x 64 pixels" in printed and "R² of row and column" in printed
    assert {f.name for f in out.iterdir()} == {"decodability.png", "padding.png", "diagnosis.json"}
    assert main(argv) == 2
    assert "diagnosis.json exists" in capsys.readouterr().err


@pytest.mark.parametrize("argv, text", [
    (["resnet10t"], "ResNet"),
    (["vit_ti_comrop"], "did you mean"),
    (["vit_ti_none", "--images", "no/such/folder"], "no/such/folder"),
    (["no_such.safetensors"], "no_such.safetensors"),
    (["vit_ti_none", "--model-kwargs", "[1]"], "JSON object"),
    (["vit_ti_none", "--device", "cuda:77"], "--device cuda:77"),
    (["vit_ti_none", "--size", "big"], "number of pixels"),
])  # fmt: skip
def test_inspect_refuses(argv, text, tmp_path, capsys):
    assert main(["inspect", *argv, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()
