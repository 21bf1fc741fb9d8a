"""`vispe convert`: the file it writes is the model, its report names every key, and it refuses before it writes."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import vispe
from vispe.cli import main
from vispe.convert import recognise
from vispe.convert.guess import guess
from vispe.converting import create

TINY = {"embed_dim": 192, "depth": 2, "num_heads": 3, "num_classes": 5}


def save(tmp_path, name: str, **kwargs) -> tuple[torch.nn.Module, str]:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**TINY, **kwargs}).eval()
    path = tmp_path / "in.pth"
    torch.save({"model": model.state_dict(), "epoch": 3}, path)
    return model, str(path)


def metadata(path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


@pytest.mark.parametrize("name, source, model", [
    ("vit_tiny_patch16_224", "plain", "vit_ti_learned"),
    ("beit_base_patch16_224", "beit", "vit_ti_beit_bias"),
    ("eva02_small_patch14_224", "eva02", "vit_ti_rope_eva02"),
    ("eva02_base_patch14_224", "eva02", "vit_ti_rope_eva02"),
    ("vit_betwixt_patch16_rope_reg4_gap_256", "eva02", "vit_ti_rope_eva02"),
    ("vit_small_patch16_dinov3", "dinov3", "vit_ti_rope_dinov3"),
    ("vit_small_patch16_rope_mixed_ape_224", "rope_vit", "vit_ti_rope_mixed_ape"),
])  # fmt: skip
def test_the_model_is_told_from_the_weights(tmp_path, capsys, name, source, model):
    official, path = save(tmp_path, name)
    out = tmp_path / "out.safetensors"
    assert main(["convert", "auto", path, str(out)]) == 0
    printed = capsys.readouterr().out
    notes = metadata(out)
    assert printed.startswith(f"{source}: ") and model in printed
    assert (notes["vispe.source"], notes["vispe.model"], notes["format"]) == (source, model, "pt")
    ours = create(notes["vispe.model"], json.loads(notes["vispe.model_kwargs"]))
    assert vispe.load(ours, out).complete
    size = ours.patch_embed.img_size
    image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    if official.patch_embed.img_size == size:
        with torch.no_grad():  # eps of the norms is no key: timm's 1e-5 of DINOv3 moves the last digits
            torch.testing.assert_close(ours(image), official(image), rtol=1e-3, atol=1e-3)


def test_named_model_and_size(tmp_path, capsys):
    _, path = save(tmp_path, "vit_tiny_patch16_224", img_size=(32, 48))
    out = tmp_path / "out.safetensors"
    argv = ["convert", "plain", path, str(out), "--model", "vit_ti_learned", "--source-grid", "2", "3"]
    kwargs = {"depth": 2, "num_classes": 5, "img_size": [48, 32]}
    assert main([*argv, "--model-kwargs", json.dumps(kwargs)]) == 0
    assert "resampled encoding.learned.pos_embed: 2x3 to 3x2" in capsys.readouterr().out
    notes = metadata(out)
    assert notes["vispe.grid"] == "3x2" and "resampled" in notes["vispe.report"]
    same = timm.create_model("vit_ti_learned", **kwargs)
    assert not vispe.load(same, out).resampled
    turned = timm.create_model("vit_ti_learned", **kwargs | {"img_size": [32, 48]})  # as many rows, another grid
    report = vispe.load(turned, out)
    assert report.resampled["encoding.learned.pos_embed"].startswith("3x2 to 2x3")


def test_partial(tmp_path, capsys):
    model, _ = save(tmp_path, "vit_tiny_patch16_224")
    state = model.state_dict() | {"extra.weight": torch.ones(2)}
    del state["norm.bias"]
    torch.save(state, tmp_path / "in.pth")
    argv = ["convert", "auto", str(tmp_path / "in.pth"), str(tmp_path / "out.safetensors")]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "missing in the source: norm.bias; extra.weight: " in error and not (tmp_path / "out.safetensors").exists()
    assert main([*argv, "--partial"]) == 0
    printed = capsys.readouterr().out
    assert "unexpected extra.weight" in printed and "missing norm.bias" in printed
    assert "norm.bias" not in load_file(tmp_path / "out.safetensors")


def test_never_over_a_file(tmp_path, capsys):
    _, path = save(tmp_path, "vit_tiny_patch16_224")
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"mine")
    assert main(["convert", "auto", path, str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err and out.read_bytes() == b"mine"
    assert main(["convert", "auto", path, str(out), "--overwrite"]) == 0
    assert load_file(out) and sorted(p.name for p in tmp_path.iterdir()) == ["in.pth", "out.safetensors"]


@pytest.mark.parametrize("more, message", [
    (["--model", "vit_ti_no_such"], "cannot create 'vit_ti_no_such'"),
    (["--model", "vit_ti_learned", "--model-kwargs", '{"dept": 2}'], "dept"),
    (["--model-kwargs", "{"], "no JSON"),
    (["--model-kwargs", "[1]"], "must be a JSON object"),
    (["--model-kwargs", '{"mlp_layer": "SwiGLUE"}'], "timm.layers has no 'SwiGLUE'"),
    (["--source-grid", "3", "3"], "source_grid=(3, 3)"),
])  # fmt: skip
def test_errors(tmp_path, capsys, more, message):
    _, path = save(tmp_path, "vit_tiny_patch16_224")
    assert main(["convert", "auto", path, str(tmp_path / "out.safetensors"), *more]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1 and not (tmp_path / "out.safetensors").exists()


def test_places_that_do_not_exist(tmp_path, capsys):
    _, path = save(tmp_path, "vit_tiny_patch16_224")
    for argv, message in (
        (["convert", "auto", str(tmp_path / "none.pth"), str(tmp_path / "o.safetensors")], "there is no file"),
        (["convert", "auto", path, str(tmp_path / "no" / "o.safetensors")], "folder of OUT does not exist"),
        (["convert", "auto", path, str(tmp_path / "o.pth")], "must end in .safetensors"),
    ):
        assert main(argv) == 2 and message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", "deit", path, str(tmp_path / "o.safetensors")])


def test_what_weights_do_not_tell(tmp_path):
    state = timm.create_model("vit_tiny_patch16_224", **{**TINY, "init_values": 1e-4}).state_dict()
    deit3 = {key.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): t for key, t in state.items()}
    assert recognise(deit3) == "rope_vit"
    with pytest.raises(ValueError, match="rope_vit weights is not clear: .*DeiT-III. Name it, e.g. --model"):
        guess(deit3, "rope_vit")
    with pytest.raises(ValueError, match="vispe weights is not clear"):
        guess(state, "vispe")
    with pytest.raises(ValueError, match="100 channels are those of none of the sizes"):
        guess({"patch_embed.proj.weight": torch.ones(100, 3, 16, 16)}, "plain")


def test_training_checkpoints_name_their_model(tmp_path, capsys):
    kwargs = {**TINY, "img_size": [32, 48], "encoding_kwargs": {"per_layer": False}}
    net = timm.create_model("vit_ti_beit_bias", **kwargs)
    content = {
        "state_dict": {f"net.{key}": value for key, value in net.state_dict().items()},
        "hyper_parameters": {"model": "vit_ti_beit_bias", "model_kwargs": kwargs},
    }
    torch.save(content, tmp_path / "last.ckpt")
    argv = ["convert", "auto", str(tmp_path / "last.ckpt"), str(tmp_path / "out.safetensors")]
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("vispe: ")
    written = load_file(tmp_path / "out.safetensors")
    assert set(written) == set(net.state_dict()) and all(torch.equal(v, written[k]) for k, v in net.state_dict().items())
    assert main([*argv, "--overwrite", "--model-kwargs", '{"img_size": [48, 32]}']) == 0
    assert "resampled encoding.beit_bias.table: 2x3 to 3x2" in capsys.readouterr().out
