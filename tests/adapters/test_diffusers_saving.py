"""Swapped models of diffusers on disk: every weight comes back, nothing is left aside in silence."""

import json

import pytest
import torch
from diffusers_helpers import CONFIGS, new_parameters, run, shaken, tiny
from safetensors.torch import load_file, save_file

import vispe
from vispe.adapters import diffusers as adapters
from vispe.encodings.extrapolation import Extrapolation

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize("host", CONFIGS)
@pytest.mark.parametrize("encoding,old", [("harope", "keep"), ("harope", "remove"), ("rope_mixed+harope", "keep")])
def test_round_trip(host, encoding, old, tmp_path):
    swapped = shaken(vispe.swap(tiny(host), encoding, old=old))
    adapters.save(swapped, tmp_path)
    again = adapters.load(tmp_path, device="cpu")
    assert type(again) is type(swapped) and not again.training
    torch.testing.assert_close(again.state_dict(), swapped.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(run(again, host, (4, 4)), run(swapped, host, (4, 4)), rtol=0, atol=1e-6)
    assert all(p.requires_grad for p in new_parameters(again).values())


def test_options_start_tables_and_extrapolation_come_back(tmp_path):
    made = {
        "flux": dict(encoding="rope_diffusers", old="remove", start="init", encoding_kwargs={"channels": (4, 6, 6)},
                     train_grid=(2, 3)),
        "dit": dict(encoding="learned+harope", encoding_kwargs={"harope": {"mode": "shared", "theta": 100.0}}),
        "sd3": dict(encoding="harope", old="remove", start="init"),
    }  # fmt: skip
    for host, options in made.items():
        swapped = shaken(vispe.swap(tiny(host), **options))
        adapters.set_extrapolation(swapped, Extrapolation("yarn", temperature="yarn", turns=(4.0, 1.0)), train_grid=(2, 3))
        adapters.save(swapped, tmp_path / host)
        again = adapters.load(tmp_path / host)
        torch.testing.assert_close(run(again, host, (4, 4)), run(swapped, host, (4, 4)), rtol=0, atol=1e-6)
        adapters.set_extrapolation(again, None)
        assert not torch.allclose(run(again, host, (4, 4)), run(swapped, host, (4, 4)), atol=1e-6)


def test_models_with_nothing_but_extrapolation(tmp_path):
    model = tiny("flux")
    adapters.set_extrapolation(model, "pi", train_grid=(2, 2))
    adapters.save(model, tmp_path)
    torch.testing.assert_close(run(adapters.load(tmp_path), "flux"), run(model, "flux"), rtol=0, atol=1e-6)


def test_several_files_and_another_dtype(tmp_path):
    swapped = shaken(vispe.swap(tiny("flux"), "harope"))
    adapters.save(swapped, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    torch.testing.assert_close(adapters.load(tmp_path).state_dict(), swapped.state_dict(), rtol=0, atol=0)
    half = adapters.load(tmp_path, torch_dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    for name, p in new_parameters(swapped).items():
        torch.testing.assert_close(half.state_dict()[name], p.detach().bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "change,message",
    [("drop", "missing"), ("add", "without a place"), ("own", "missing"), ("table", "missing"), ("cut", "shape")],
)
def test_what_does_not_fit_is_refused(change, message, tmp_path):
    adapters.save(vispe.swap(tiny("sd3"), "harope"), tmp_path)
    state = load_file(tmp_path / WEIGHTS)
    key = next(name for name in state if name.endswith("sigma"))
    if change == "drop":
        del state[key]
    elif change == "add":
        state["transformer_blocks.9.attn.processor.encodings.harope.sigma"] = state[key].clone()
    elif change in ("own", "table"):
        del state["proj_out.weight" if change == "own" else "pos_embed.pos_embed"]
    else:
        state[key] = state[key][:1].clone()
    save_file(state, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        adapters.load(tmp_path)


def test_folders_of_others_are_refused(tmp_path):
    tiny("dit").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no vispe.json"):
        adapters.load(tmp_path)
    (tmp_path / "vispe.json").write_text(json.dumps({"model": "UNet2DModel"}))
    with pytest.raises(ValueError, match="no adapter"):
        adapters.load(tmp_path)
    with pytest.raises(ValueError, match="without a variant"):
        adapters.save(tiny("dit"), tmp_path, variant="fp16")
    with pytest.raises(ValueError, match="save: no adapter for Linear"):
        adapters.save(torch.nn.Linear(2, 2), tmp_path)
