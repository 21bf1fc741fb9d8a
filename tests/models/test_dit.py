"""Diffusion transformers: every encoding, any size, saving, checkpointing, one draw of dropped classes, clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import vispe
from vispe.models.dit import EncodedDiT
from vispe.models.dit_parts import sinusoid
from vispe.models.dit_zoo import PATCHES, SIZES, VARIANTS, create_dit, dit_arguments, list_dits
from vispe.positions import custom_positions, patch_grid, with_noise
from vispe.positions.random import RandomPositions

TINY = dict(hidden_size=64, depth=2, num_heads=2, num_classes=5, input_size=8)


def tiny(variant: str, *, live: bool = True, **options) -> EncodedDiT:
    """A small model; `live` moves the zeros of its start, so that everything reaches the output."""
    torch.manual_seed(0)
    model = create_dit(f"dit_s_2_{variant}", **(TINY | options))
    if live:
        for name, p in model.named_parameters():
            if not name.startswith("encoding."):
                nn.init.normal_(p, std=0.08)
    return model.eval()


def batch(height: int = 8, width: int = 8, size: int = 3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 4, height, width, generator=generator)
    return x, torch.linspace(5, 900, size), torch.arange(size) % 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_encoding_runs_forward_and_backward(variant):
    model = tiny(variant).train()
    for size in ((8, 8), (4, 12)):
        x, t, y = batch(*size)
        out = model(x, t, y)
        assert out.shape == (3, model.out_channels if model.prediction_type == "epsilon" else 4, *size)
        assert out.isfinite().all()
    out.square().mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is None or p.grad.isfinite().all(), name
    silent = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not silent, silent


@pytest.mark.parametrize("variant", ["sincos2d", "learned", "harope", "lightning", "irpe"])
def test_saved_and_reloaded(variant, tmp_path):
    model = tiny(variant)
    model.save_pretrained(tmp_path)
    again = EncodedDiT.from_pretrained(tmp_path).eval()
    x, t, y = batch(4, 12)
    assert dict(again.config)["encoding"] == model.config["encoding"]
    torch.testing.assert_close(again(x, t, y), model(x, t, y), atol=1e-6, rtol=1e-6)
    json.loads((tmp_path / "config.json").read_text())


def test_saved_after_another_input_size(tmp_path):
    """The table is that of the new size, the reference of coordinates stays."""
    model = tiny("learned")
    assert model.set_input_size((4, 16))
    assert model.encoding["learned"].grid == (2, 8) and model.train_grid == (4, 4)
    model.save_pretrained(tmp_path)
    again = EncodedDiT.from_pretrained(tmp_path).eval()
    assert again.train_grid == (4, 4) and again.encoding["learned"].grid == (2, 8)
    x, t, y = batch(4, 16)
    torch.testing.assert_close(again(x, t, y), model(x, t, y), atol=1e-6, rtol=1e-6)


def test_a_patch_of_pixels_comes_from_its_own_token():
    """Non-square: cell (i, j) of a 4x16 latent depends on token (i // 2, j // 2) when tokens cannot see each other."""
    model = tiny("none")
    for block in model.blocks:
        nn.init.zeros_(block.attn.proj.weight)
    x, t, y = batch(4, 16, size=1)
    other = x.clone()
    other[..., 2:4, 10:12] += 1  # token (1, 5)
    changed = (model(x, t, y) - model(other, t, y)).abs().amax(dim=(0, 1)) > 1e-6
    wanted = torch.zeros(4, 16, dtype=torch.bool)
    wanted[2:4, 10:12] = True
    assert torch.equal(changed, wanted)


def test_starts_as_zero_and_identity():
    model = tiny("rope_axial", live=False)
    x, t, y = batch()
    assert not model(x, t, y).any()
    assert model.no_weight_decay() == set() and tiny("harope").no_weight_decay()


def test_checkpointing_is_equal():
    results = []
    for checkpointing in (False, True):
        model = tiny("rope_mixed", class_dropout=0.5).train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        torch.manual_seed(3)
        model(*batch()).square().mean().backward()
        results.append({n: p.grad.clone() for n, p in model.named_parameters()})
    for name, grad in results[0].items():
        torch.testing.assert_close(results[1][name], grad, atol=1e-7, rtol=1e-6, msg=name)


def test_compiles_in_one_graph():
    model = tiny("rope_axial")
    x, t, y = batch()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, t, y), model(x, t, y), atol=1e-5, rtol=1e-5)


def test_float_types():
    model = tiny("rope_axial")
    x, t, y = batch()
    wanted = model(x, t, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (model(x, t, y) - wanted).abs().max() < 0.05 * wanted.abs().max()
    half = model.to(torch.bfloat16)(x.bfloat16(), t, y)
    assert half.dtype == torch.bfloat16 and (half - wanted).abs().max() < 0.05 * wanted.abs().max()


# ---- conditions -----------------------------------------------------------------------------------------------------


def test_a_dropped_class_is_dropped_in_every_block():
    """Every sample of a training forward is either the model of its class or the model of the null class, never in between."""
    model = tiny("sincos2d", class_dropout=0.5, depth=3).train()
    x, t, _ = batch(size=1)
    x, t, y = x.expand(32, -1, -1, -1), t[:1].expand(32), torch.full((32,), 2)
    torch.manual_seed(0)
    out = model(x, t, y)
    kept, null = (model(x[:1], t[:1], torch.tensor([i]), drop_classes=torch.tensor([False])) for i in (2, 5))
    is_kept = (out - kept).abs().amax(dim=(1, 2, 3)) < 1e-5
    is_null = (out - null).abs().amax(dim=(1, 2, 3)) < 1e-5
    assert (is_kept ^ is_null).all() and 5 < is_null.sum() < 27
    forced = model(x[:1], t[:1], y[:1], drop_classes=torch.tensor([True]))
    torch.testing.assert_close(forced, null)
    assert torch.equal(model.eval()(x, t, y), model(x, t, y))


def test_unconditional():
    model = tiny("sincos2d", num_classes=0)
    x, t, y = batch()
    assert model.y_embedder is None and model(x, t).shape == (3, 8, 8, 8)
    with pytest.raises(ValueError, match="unconditional"):
        model(x, t, y)


def test_micro_conditioning():
    model = tiny("sincos2d", micro_conditioning=True)
    x, t, y = batch()
    crop = torch.tensor([[0.1, 0.2, 0.5, 0.6]]).expand(3, -1)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(3, -1)
    torch.testing.assert_close(model(x, t, y, crop=whole), model(x, t, y))
    assert (model(x, t, y, crop=crop) - model(x, t, y)).abs().max() > 1e-3
    model.crop_embedder.dropout = 0.5
    torch.manual_seed(0)
    drawn = model.crop_embedder.train()(crop[:1].expand(64, -1), 64)
    kept, none = (model.crop_embedder.eval()(c[:1], 1) for c in (crop, whole))
    is_kept, is_none = ((drawn - c).abs().amax(dim=1) < 1e-5 for c in (kept, none))
    assert (is_kept ^ is_none).all() and 16 < is_none.sum() < 48
    nn.init.zeros_(model.crop_embedder.mlp[2].weight)
    nn.init.zeros_(model.crop_embedder.mlp[2].bias)
    torch.testing.assert_close(model(x, t, y, crop=crop), model(x, t, y))  # as at the start
    assert not tiny("sincos2d", micro_conditioning=True, live=False).crop_embedder.mlp[2].weight.any()
    with pytest.raises(ValueError, match=r"crop must be \(3, 4\)"):
        model(x, t, y, crop=crop[:2])
    with pytest.raises(ValueError, match="micro_conditioning=True"):
        tiny("sincos2d")(x, t, y, crop=crop)


def test_sinusoid():
    found = sinusoid(torch.tensor([2.0]), 4)[0]
    wanted = torch.tensor([2.0, 2.0 * 10000**-0.5])
    torch.testing.assert_close(found, torch.cat((wanted.cos(), wanted.sin())))


# ---- positions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["rope_axial", "sincos2d"])
def test_positions_of_the_callers_own(variant):
    model = tiny(variant)
    x, t, y = batch()
    torch.testing.assert_close(model(x, t, y, positions=patch_grid(4, 4)), model(x, t, y))
    drawn = RandomPositions()(patch_grid(4, 4), batch=3, generator=torch.Generator().manual_seed(0))
    out = model(x, t, y, positions=drawn)
    assert (out - model(x, t, y)).abs().max() > 1e-4
    for i in range(3):  # every sample at its own
        alone = custom_positions(drawn.coords[i])
        torch.testing.assert_close(
            model(x[i : i + 1], t[i : i + 1], y[i : i + 1], positions=alone)[0], out[i], atol=1e-5, rtol=1e-5
        )


def test_other_sizes_extend_or_rescale():
    model = tiny("rope_axial")
    x, t, y = batch(16, 16)
    extended = model(x, t, y)
    model.set_coords("rescale")
    assert (model(x, t, y) - extended).abs().max() > 1e-4
    model.set_coords(None)
    assert torch.equal(model(x, t, y), extended)
    with pytest.raises(ValueError, match="set_coords"):
        model.set_coords("stretch")


def test_fold(tmp_path):
    model = tiny("harope")
    for p in model.encoding.parameters():
        nn.init.normal_(p, std=0.3)
    x, t, y = batch(4, 12)
    wanted = model(x, t, y)
    folded = model.fold()
    torch.testing.assert_close(folded(x, t, y), wanted, atol=1e-5, rtol=1e-4)
    assert not [n for n, p in folded.named_parameters() if "skew" in n]
    with pytest.raises(ValueError, match="save it ahead of fold"):
        folded.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="cannot be folded through q_norm"):
        tiny("harope", qk_norm=True).fold()


# ---- names and refusals ---------------------------------------------------------------------------------------------


def test_names():
    assert len([name for name in list_dits() if name.startswith("dit_")]) == len(SIZES) * len(PATCHES) * len(VARIANTS)
    assert dit_arguments("dit_xl_8_rope_axial") | {} == {
        "hidden_size": 1152, "depth": 28, "num_heads": 16, "patch_size": 8, "encoding": "rope_axial",
        "encoding_kwargs": {"theta": 10000.0},
    }  # fmt: skip
    model = vispe.create_model("dit_b_4_comrope", depth=1, input_size=(8, 16))
    assert model.train_grid == (2, 4) and model.config.hidden_size == 768
    with pytest.raises(ValueError, match="did you mean 'dit_b_2_rope_axial'"):
        vispe.create_model("dit_b_2_rope_axal")
    with pytest.raises(ValueError, match="there are no pretrained weights"):
        vispe.create_model("dit_b_2_rope_axial", pretrained=True)
    with pytest.raises(TypeError, match="unknown argument 'img_size'"):
        create_dit("dit_s_2_none", img_size=32)


def test_importing_vispe_leaves_diffusers_alone():
    code = "import sys, vispe, vispe.models.dit_zoo; sys.exit('diffusers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_bad_input():
    model, (x, t, y) = tiny("rope_axial"), batch()
    with pytest.raises(ValueError, match="5x8 cells is no multiple of the patch of 2x2; sides must be .* e.g. 4x8"):
        model(x[..., :5, :], t, y)
    with pytest.raises(ValueError, match=r"needs latents \(B, 4, height, width\), got \(3, 3, 8, 8\)"):
        model(x[:, :3], t, y)
    for bad in (-1, 6):
        with pytest.raises(ValueError, match=rf"0..5 \(5 classes; 5 is the null class\), got {min(bad, 0)}..{max(bad, 1)}"):
            model(x, t, torch.tensor([0, 1, bad]))
    with pytest.raises(ValueError, match=r"needs class ids y \(3,\) int64, got None"):
        model(x, t)
    with pytest.raises(ValueError, match=r"needs class ids y \(3,\) int64, got \(\(3,\), torch.float32\)"):
        model(x, t, y.float())
    with pytest.raises(ValueError, match=r"timesteps must be one number or \(3,\), one a sample; got \(2,\)"):
        model(x, t[:2], y)
    with pytest.raises(ValueError, match=r"1 or 3 samples of 16 tokens .* got \(1, 15\)"):
        model(x, t, y, positions=patch_grid(3, 5))
    with pytest.raises(ValueError, match="no multiple of the patch"):
        tiny("none", input_size=9)
    with pytest.raises(ValueError, match="prediction_type must be one of"):
        tiny("none", prediction_type="noise")
    with pytest.raises(ValueError, match="needs null_class=True"):
        tiny("none", null_class=False)
    with pytest.raises(ValueError, match="no null class to drop to"):
        tiny("none", null_class=False, class_dropout=0.0)(x, t, y % 5, drop_classes=torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("variant, times", [("rope_axial", (900.0, 100.0)), ("lightning", (0.1, 0.9))])
def test_extrapolation_that_depends_on_the_time(variant, times):
    """Lumina's rule interpolates while mostly noise; the model knows the level from its own convention of times."""
    options = {"encoding": "rope_axial", "encoding_kwargs": {"theta": 100.0}} if variant == "lightning" else {}
    model = tiny(variant, **options)
    x, _, y = batch(16, 16)
    noisy, clean = times
    plain = [model(x, torch.tensor(t), y) for t in times]
    model.set_extrapolation("lumina")
    level = model.noise_level(torch.tensor([noisy]))
    assert abs(level - 0.9) < 1e-6 and abs(model.noise_level(torch.tensor(clean)) - 0.1) < 1e-6
    given = with_noise(model.positions(8, 8), level)
    torch.testing.assert_close(model(x, torch.tensor(noisy), y), model(x, torch.tensor(noisy), y, positions=given))
    assert not any(torch.equal(model(x, torch.tensor(t), y), before) for t, before in zip(times, plain))
    with pytest.raises(ValueError, match="needs one time for all samples"):
        model(x, torch.tensor([noisy, noisy, clean]), y)
    model.set_extrapolation(None)
    assert torch.equal(model(x, torch.tensor(noisy), y), plain[0])
