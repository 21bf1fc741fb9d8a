"""A user's own model, from a name, a folder or a file."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

import vispe  # noqa: F401  registers the names
from vispe.converting import parse_kwargs
from vispe.opening import open_model

TINY = dict(embed_dim=48, depth=2, num_heads=2, patch_size=8, img_size=32, num_classes=3)
PLAIN = dict(img_size=32, depth=1, num_classes=3)


def vit(name: str = "vit_ti_rope_mixed", kwargs: dict = TINY):
    torch.manual_seed(0)
    return timm.create_model(name, **kwargs).train()


def same(opened, model) -> bool:
    return not opened.training and all(torch.equal(v, model.state_dict()[k]) for k, v in opened.state_dict().items())


def test_a_folder_of_timm(tmp_path):
    model = vit()
    save_for_hf(model, tmp_path, model_args=TINY)
    assert same(open_model(str(tmp_path)), model)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match="config.json"):
        open_model(str(tmp_path))


def test_files_that_name_their_model(tmp_path):
    model = vit()
    notes = {"vispe.model": "vit_ti_rope_mixed", "vispe.model_kwargs": json.dumps(TINY)}
    save_file(model.state_dict(), tmp_path / "a.safetensors", metadata=notes)
    assert same(open_model(str(tmp_path / "a.safetensors")), model)
    state = {f"net.{k}": v for k, v in model.state_dict().items()}
    settings = {"model": "vit_ti_rope_mixed", "model_kwargs": TINY}
    torch.save({"state_dict": state, "hyper_parameters": settings}, tmp_path / "last.ckpt")
    assert same(open_model(str(tmp_path / "last.ckpt")), model)
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    with pytest.raises(ValueError, match="does not say which model"):
        open_model(str(tmp_path / "bare.pth"))
    assert same(open_model("vit_ti_rope_mixed", weights=tmp_path / "bare.pth", kwargs=TINY), model)


def test_weights_of_a_plain_timm_model_must_fit(tmp_path):
    model = vit("vit_tiny_patch16_224", PLAIN)
    torch.save({"model": model.state_dict()}, tmp_path / "w.pth")
    assert same(open_model("vit_tiny_patch16_224", weights=tmp_path / "w.pth", kwargs=PLAIN), model)
    with pytest.raises(ValueError, match="does not fit VisionTransformer: .*head.weight"):
        open_model("vit_tiny_patch16_224", weights=tmp_path / "w.pth", kwargs={**PLAIN, "num_classes": 4})


def test_what_cannot_be_opened_is_named():
    for source, text in (("vit_ti_rope_mixd", "did you mean"), ("no_such_file.ckpt", "no_such_file.ckpt")):
        with pytest.raises((ValueError, OSError), match=text):
            open_model(source)
    with pytest.raises(ValueError, match="cannot create 'vit_ti_none'"):
        open_model("vit_ti_none", kwargs={"no_such": 1})
    with pytest.raises(ValueError, match="no JSON"):
        parse_kwargs("{")
