"""Extrapolation of the rotary tables of Flux, Wan and Lumina2, and of encodings that were swapped in."""

import math

import pytest
import torch
from diffusers.models.embeddings import get_1d_rotary_pos_embed
from diffusers_helpers import arguments, flux_ids, run, shaken, tiny

import vispe
from vispe.adapters import diffusers as adapters
from vispe.encodings.extrapolation import PRESETS, Extrapolation

GRIDS = {"flux": (3, 5), "lumina2": (3, 5), "wan": (3, 3, 5)}
METHODS = ("pi", "ntk", "by_parts", "yarn", "riflex", "vision_yarn")


@pytest.mark.parametrize("host", GRIDS)
@pytest.mark.parametrize("method", METHODS)
def test_the_trained_size_is_the_model_itself(host, method):
    model = tiny(host)
    before = run(model, host)
    adapters.set_extrapolation(model, method, train_grid=GRIDS[host])
    torch.testing.assert_close(run(model, host), before, rtol=0, atol=1e-6)
    small = tuple(n - 1 for n in GRIDS[host])
    adapters.set_extrapolation(model, method, train_grid=small)
    if method != "riflex" or host != "flux":
        assert (run(model, host) - before).abs().max() > 1e-6
    adapters.set_extrapolation(model, None)
    torch.testing.assert_close(run(model, host), before, rtol=0, atol=0)


def by_diffusers(places, channels, *, thetas, linear):
    """cos and sin of every axis by diffusers' own function."""
    tables = [
        get_1d_rotary_pos_embed(d, p, theta=t, linear_factor=f, use_real=True, freqs_dtype=torch.float64)
        for d, p, t, f in zip(channels, places, thetas, linear)
    ]
    return [torch.cat(parts, dim=-1) for parts in zip(*tables)]


def test_flux_tables_on_a_larger_grid_of_another_shape():
    model, train, channels = tiny("flux", axes_dims_rope=(4, 12, 12), attention_head_dim=28), (4, 4), (4, 12, 12)
    ids = torch.cat((torch.zeros(3, 3), flux_ids(12, 6)))
    s, t0 = (3.0, 1.5), 10000.0
    adapters.set_extrapolation(model, "pi", train_grid=train)
    expected = by_diffusers(ids.T, channels, thetas=[t0] * 3, linear=[1, *s])
    torch.testing.assert_close(list(model.pos_embed(ids)), expected, rtol=0, atol=1e-6)
    adapters.set_extrapolation(model, "ntk", train_grid=train)
    bases = [t0, *(t0 * n ** (12 / 10) for n in s)]
    expected = by_diffusers(ids.T, channels, thetas=bases, linear=[1] * 3)
    torch.testing.assert_close(list(model.pos_embed(ids)), expected, rtol=0, atol=1e-6)
    adapters.set_extrapolation(model, Extrapolation("pi", axes="longest", temperature="yarn"), train_grid=train)
    expected = by_diffusers(ids.T, channels, thetas=[t0] * 3, linear=[1, 3, 3])
    factor = 0.1 * math.log(3) + 1
    torch.testing.assert_close(list(model.pos_embed(ids)), [factor * e for e in expected], rtol=0, atol=1e-6)
    adapters.set_extrapolation(model, Extrapolation("pi", axes="area"), train_grid=train)  # the first id is no axis of the area
    root = math.sqrt(72 / 16)
    expected = by_diffusers(ids.T, channels, thetas=[t0] * 3, linear=[1, root, root])
    torch.testing.assert_close(list(model.pos_embed(ids)), expected, rtol=0, atol=1e-6)


def test_wan_tables_beyond_the_trained_video():
    model, train = tiny("wan", attention_head_dim=24), (2, 4, 4)
    latents = torch.zeros(1, 4, 6, 16, 8)  # 6 frames of 8 x 4 tokens
    cells = torch.stack(torch.meshgrid(*(torch.arange(n) for n in (6, 8, 4)), indexing="ij"), dim=-1).reshape(-1, 3).float()
    adapters.set_extrapolation(model, "pi", train_grid=train)
    expected = by_diffusers(cells.T, (8, 8, 8), thetas=[10000.0] * 3, linear=[3, 2, 1])
    for ours, theirs in zip(model.rope(latents), expected):
        torch.testing.assert_close(ours, theirs[None, :, None], rtol=0, atol=1e-6)
    adapters.set_extrapolation(model, Extrapolation("riflex", pair=2), train_grid=train)
    freqs = 10000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    freqs[1] = 0.9 * 2 * math.pi / 6
    theirs = by_diffusers(cells.T, (8, 8, 8), thetas=[10000.0] * 3, linear=[1] * 3)
    angle = (cells[:, :1] * freqs).repeat_interleave(2, dim=-1)
    for ours, other, own in zip(model.rope(latents), theirs, (angle.cos(), angle.sin())):
        torch.testing.assert_close(ours[0, :, 0, :8].double(), own, rtol=0, atol=1e-6)
        torch.testing.assert_close(ours[0, :, 0, 8:], other[:, 8:], rtol=0, atol=1e-6)


def test_wan_axes_of_unequal_width_have_their_own_bases():
    model, train = tiny("wan", attention_head_dim=16), (2, 4, 4)  # 8 channels of time, 4 of rows, 4 of columns
    cells = torch.stack(torch.meshgrid(*(torch.arange(n) for n in (6, 8, 4)), indexing="ij"), dim=-1).reshape(-1, 3).float()
    adapters.set_extrapolation(model, "ntk", train_grid=train)
    bases = [10000.0 * 3 ** (8 / 6), 10000.0 * 2 ** (4 / 2), 10000.0]
    expected = by_diffusers(cells.T, (8, 4, 4), thetas=bases, linear=[1] * 3)
    for ours, theirs in zip(model.rope(torch.zeros(1, 4, 6, 16, 8)), expected):
        torch.testing.assert_close(ours, theirs[None, :, None], rtol=0, atol=1e-6)


def test_lumina_tables_leave_captions_alone():
    model = tiny("lumina2")
    call = arguments("lumina2", (6, 4))
    plain = model.rope_embedder(call["hidden_states"], call["encoder_attention_mask"])
    adapters.set_extrapolation(model, "pi", train_grid=(3, 4))
    moved = model.rope_embedder(call["hidden_states"], call["encoder_attention_mask"])
    torch.testing.assert_close(moved[0], plain[0], rtol=0, atol=0)
    torch.testing.assert_close(moved[1], plain[1], rtol=0, atol=0)
    assert moved[4:] == plain[4:]
    for b, words in enumerate((5, 3)):
        cells = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(4), indexing="ij"), dim=-1).reshape(-1, 2).double()
        freqs = 10000.0 ** -(torch.arange(2, dtype=torch.float64) / 2)
        angle = torch.cat((torch.full((24, 1), float(words)) * freqs, cells[:, :1] / 2 * freqs, cells[:, 1:] * freqs), dim=-1)
        expected = torch.polar(torch.ones_like(angle), angle)
        torch.testing.assert_close(moved[2][b], expected.to(moved[2].dtype), rtol=0, atol=1e-6)
        torch.testing.assert_close(moved[3][b, words : words + 24], expected.to(moved[3].dtype), rtol=0, atol=1e-6)
        torch.testing.assert_close(moved[3][b, :words], plain[3][b, :words], rtol=0, atol=1e-6)


@pytest.mark.parametrize("host", ["flux", "sd3"])
def test_methods_by_the_diffusion_time(host):
    model = tiny(host) if host == "flux" else shaken(vispe.swap(tiny(host), "harope", start="init"))
    plain = run(model, host)
    adapters.set_extrapolation(model, "dype_ntk", train_grid=(2, 2))
    with pytest.raises(ValueError, match="set_noise"):
        run(model, host)
    outputs = []
    for noise in (1.0, 0.5, 0.0):
        adapters.set_noise(model, noise)
        outputs.append(run(model, host))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-6
    torch.testing.assert_close(outputs[2], plain, rtol=0, atol=1e-6)  # fades out towards the data
    with pytest.raises(ValueError, match="from 0 .data. to 1"):
        adapters.set_noise(model, 500)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_on_flux(preset):
    model = tiny("flux")
    adapters.set_extrapolation(model, preset, train_grid=(2, 2))
    adapters.set_noise(model, 0.9)
    assert torch.isfinite(run(model, "flux", (4, 6))).all()


@pytest.mark.parametrize("host,old", [("sd3", "keep"), ("dit", "remove"), ("flux", "remove"), ("lumina2", "remove")])
def test_encodings_that_were_swapped_in(host, old):
    model = shaken(vispe.swap(tiny(host), "harope", old=old))
    before = run(model, host)
    adapters.set_extrapolation(model, "ntk", train_grid=(3, 5))
    torch.testing.assert_close(run(model, host), before, rtol=0, atol=1e-6)
    adapters.set_extrapolation(model, "ntk", train_grid=(2, 2))
    assert (run(model, host) - before).abs().max() > 1e-6


def test_harope_and_the_models_own_table_together():
    model = tiny("flux")
    adapters.set_extrapolation(model, "yarn", train_grid=(2, 2))
    expected = run(model, "flux")
    swapped = vispe.swap(tiny("flux"), "harope")
    adapters.set_extrapolation(swapped, "yarn", train_grid=(2, 2))
    torch.testing.assert_close(run(swapped, "flux"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "build,setting,options,message",
    [
        (lambda: tiny("dit"), "yarn", {}, "no rotary frequencies.*swap a rotary"),
        (lambda: vispe.swap(tiny("sd3"), "learned"), "yarn", {}, "no rotary frequencies"),
        (lambda: tiny("flux"), "yarn", {}, "does not say.*train_grid"),
        (lambda: tiny("flux"), "yarn", {"train_grid": (1, 4, 4)}, "2 axes"),
        (lambda: tiny("flux"), "yarnn", {"train_grid": (4, 4)}, "no method 'yarnn'"),
        (lambda: vispe.swap(tiny("flux"), "rope_mixed"), "ntk", {"train_grid": (4, 4)}, "learned"),
        (lambda: torch.nn.Linear(2, 2), "yarn", {}, "set_extrapolation: no adapter for Linear"),
    ],
)
def test_what_cannot_be_extrapolated_is_refused(build, setting, options, message):
    with pytest.raises(ValueError, match=message):
        adapters.set_extrapolation(build(), setting, **options)


def test_order_of_the_two_calls_and_noise_without_a_table():
    model = tiny("flux")
    with pytest.raises(ValueError, match="call set_extrapolation first"):
        adapters.set_noise(model, 0.5)
    adapters.set_extrapolation(model, "pi", train_grid=(2, 2))
    with pytest.raises(ValueError, match="has set_extrapolation already"):
        vispe.swap(model, "harope")
