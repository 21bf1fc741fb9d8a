"""`vispe extrapolate`: right labels, right sizes, right methods, nothing overwritten."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageDraw
from timm.models import save_for_hf

import vispe
from vispe.cli import main
from vispe.curves import any_size, labelled, wilson
from vispe.extrapolating import COLUMNS, curve_figure, spread

TINY = dict(embed_dim=48, depth=2, num_heads=2, patch_size=8, img_size=32, num_classes=3)
SHAPES = ("circle", "cross", "square")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Three classes of four drawn images."""
    root, draw = tmp_path_factory.mktemp("shapes"), np.random.default_rng(0)
    for name in SHAPES:
        (root / name).mkdir()
        for i in range(4):
            image = Image.new("RGB", (44, 40), tuple(int(v) for v in draw.integers(0, 80, 3)))
            pen, colour = ImageDraw.Draw(image), tuple(int(v) for v in draw.integers(150, 255, 3))
            box = [8 + i, 6, 30 + i, 32]
            if name == "circle":
                pen.ellipse(box, fill=colour)
            elif name == "square":
                pen.rectangle(box, fill=colour)
            else:
                pen.line(box, fill=colour, width=5)
                pen.line([box[0], box[3], box[2], box[1]], fill=colour, width=5)
            image.save(root / name / f"{i}.png")
    return root


def vit(variant: str = "rope_axial", **kwargs):
    torch.manual_seed(0)
    return timm.create_model(f"vit_ti_{variant}", **{**TINY, **kwargs}).eval()


def rows(folder) -> list[dict[str, str]]:
    with (folder / "curves.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_curves_of_a_saved_folder(shapes, tmp_path, capsys):
    model = vit()
    save_for_hf(model, tmp_path / "model", model_config=None, model_args=TINY)
    out = tmp_path / "out"
    argv = ["extrapolate", str(tmp_path / "model"), "--data", str(shapes), "--sizes", "32", "48", "32x48", "--method", "none",
            "rescale", "yarn", "--batch-size", "5", "--out", str(out)]  # fmt: skip
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert "top-1 accuracy in % on 12 images" in printed.out and "32x48" in printed.out and "12/12" in printed.err
    found = rows(out)
    assert tuple(found[0]) == COLUMNS and len(found) == 9
    assert {(r["height"], r["width"]) for r in found} == {("32", "32"), ("48", "48"), ("32", "48")}
    assert {r["images"] for r in found} == {"12"}
    own = {r["method"]: r["loss"] for r in found if (r["height"], r["width"]) == ("32", "32")}
    assert own["none"] == own["rescale"] == own["yarn"], "nothing changes at the trained size"
    larger = [r["loss"] for r in found if (r["height"], r["width"]) == ("48", "48")]
    assert len(set(larger)) == 3
    assert min(Image.open(out / "curves.png").size) >= 400
    before = (out / "curves.csv").read_bytes()
    assert main(argv) == 2
    assert "nothing is written over" in capsys.readouterr().err and (out / "curves.csv").read_bytes() == before


def test_numbers_are_those_of_a_loop(shapes):
    model = vit()
    samples = labelled(shapes, model)
    assert [label for _, label in samples] == [0] * 4 + [1] * 4 + [2] * 4
    (point,) = vispe.resolution_curves(model, samples, [(40, 48)], methods=["ntk"], batch_size=5, workers=1)
    transform = timm.data.create_transform((3, 40, 48), interpolation="bicubic", crop_pct=0.9, mean=(0.5,) * 3, std=(0.5,) * 3)
    images = torch.stack([transform(Image.open(path)) for path, _ in samples])
    model.set_extrapolation("ntk")
    with torch.no_grad():
        logits = model(images)
    labels = torch.tensor([label for _, label in samples])
    assert point.top1 == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert point.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert (point.size, point.method, point.images, point.top5) == ((40, 48), "ntk", 12, 1.0)


def test_models_come_back_as_they_were(shapes):
    model = vit().train()
    samples = labelled(shapes, model)[:2]
    before = vit()(torch.ones(1, 3, 48, 48))
    list(vispe.resolution_curves(model, samples, [(48, 48)], methods=["rescale", "ntk"]))
    assert model.training and all(e.extrapolation is None for _, e in model.encoding.encodings())
    torch.testing.assert_close(model.eval()(torch.ones(1, 3, 48, 48)), before)


def test_classes_file_gives_the_outputs_their_order(shapes, tmp_path, capsys):
    file = tmp_path / "classes.txt"
    file.write_text("square\nunused\ncircle\ncross\n")
    model = vit(num_classes=5)
    assert [label for _, label in labelled(shapes, model, classes=["square", "unused", "circle", "cross"])][::4] == [2, 3, 0]
    argv = ["extrapolate", "vit_ti_none", "--model-kwargs", json.dumps(TINY | {"num_classes": 5}), "--data", str(shapes),
            "--sizes", "32", "--classes", str(file), "--limit", "6", "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(argv) == 0
    assert rows(tmp_path / "out")[0]["images"] == "6"
    assert spread([(str(i), i) for i in range(12)], 4) == [("0", 0), ("3", 3), ("6", 6), ("9", 9)]


def test_plain_timm_models_at_other_sizes(shapes):
    """A ViT of a fixed size resamples its table from the original each time; a convolutional model needs nothing."""
    plain = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3).eval()
    samples = labelled(shapes, plain)[:3]
    found = list(vispe.resolution_curves(plain, samples, [(64, 64), (32, 48)]))
    assert [p.size for p in found] == [(64, 64), (32, 48)] and plain.patch_embed.img_size == (32, 32)
    dynamic = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3, dynamic_img_size=True).eval()
    dynamic.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(any_size(plain)(x), dynamic(x), rtol=1e-4, atol=1e-5)
    resnet = timm.create_model("resnet10t", num_classes=3).eval()
    assert next(vispe.resolution_curves(resnet, samples, [(40, 72)])).images == 3


def test_pictures_keep_lone_and_square_sizes_apart(shapes):
    model = vit()
    points = list(vispe.resolution_curves(model, labelled(shapes, model)[:3], [(32, 32), (48, 48), (32, 48)]))
    axes = curve_figure(points, title="t", train=(32, 32)).axes[0]
    line, lone = axes.lines[0], axes.lines[1]
    assert list(line.get_xdata()) == [32, 48] and lone.get_xdata()[0] == pytest.approx((32 * 48) ** 0.5)


def test_wilson_interval():
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 5)[0] == pytest.approx(0, abs=1e-12)


ROPE = ["vit_ti_rope_axial", "--model-kwargs", json.dumps(TINY)]


@pytest.mark.parametrize("argv, text", [
    ([*ROPE, "--sizes", "32", "--method", "yarm"], "no method 'yarm'"),
    ([*ROPE, "--sizes", "36"], "no multiple of the patches"),
    ([*ROPE, "--sizes", "32x"], "HEIGHTxWIDTH"),
    ([*ROPE, "--sizes", "32", "32"], "names something twice"),
    ([*ROPE, "--sizes", "32", "--weights", "none.pth"], "there is no file none.pth"),
    ([*ROPE, "--sizes", "32", "--limit", "0"], "--limit must be at least 1"),
    (["vit_ti_rope_axial", "--sizes", "32"], "3 classes and the model has 1000 outputs"),
    (["vit_ti_rope_mixed", "--model-kwargs", json.dumps(TINY), "--sizes", "32", "--method", "ntk"], "no base"),
    (["vit_ti_learned", "--model-kwargs", json.dumps(TINY), "--sizes", "32", "--method", "rescale"], "needs an encoding with"),
    (["vit_ti_alibi2d", "--model-kwargs", json.dumps(TINY), "--sizes", "32", "--method", "yarn"], "no rotary frequencies"),
    (["resnet10t", "--model-kwargs", '{"num_classes": 3}', "--sizes", "32", "--method", "yarn"], "none that can be reached"),
])  # fmt: skip
def test_refusals_come_before_any_work(argv, text, shapes, tmp_path, capsys):
    assert main(["extrapolate", *argv, "--data", str(shapes), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert text in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_broken_images_and_missing_folders_are_named(shapes, tmp_path, capsys):
    data = tmp_path / "data"
    for name in SHAPES:
        (data / name).mkdir(parents=True)
        (data / name / "x.png").write_bytes((shapes / name / "0.png").read_bytes())
    (data / "cross" / "x.png").write_bytes(b"no image")
    argv = ["extrapolate", *ROPE, "--sizes", "32", "--out", str(tmp_path / "out")]
    assert main([*argv, "--data", str(data)]) == 2
    assert "cross/x.png" in capsys.readouterr().err
    assert main([*argv, "--data", str(tmp_path / "nowhere")]) == 2
    assert "no folder of images" in capsys.readouterr().err
    with pytest.raises(ValueError, match="are not among"):
        labelled(shapes, vit(), classes=["circle", "square"])
