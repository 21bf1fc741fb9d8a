"""`vispe.swap` of diffusers' transformers: the same function at the start, then other encodings in the same calls."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from diffusers import UNet2DModel
from diffusers_helpers import CONFIGS, arguments, flux_ids, new_parameters, run, shaken, tiny

import vispe
from vispe.adapters import diffusers as adapters
from vispe.positions import RandomPositions, patch_grid

KINDS = {
    "dit": ("harope", "rope_axial", "rope_mixed", "comrope", "liere", "learned", "swin_bias", "learned+rope_mixed"),
    "pixart": ("harope", "rope_axial", "learned"),
    "sd3": ("harope", "rope_axial", "rope_mixed", "swin_bias", "lepe", "learned+harope"),
    "flux": ("harope", "rope_axial", "rope_mixed", "comrope", "harope+rope_mixed", "rope_diffusers"),
    "lumina2": ("harope", "rope_axial", "rope_mixed"),
    "wan": ("harope", "rope3d", "rope_mixed"),
}
PAIRS = [(host, encoding) for host, encodings in KINDS.items() for encoding in encodings]


@pytest.mark.parametrize("host,encoding", PAIRS)
def test_identity_start(host, encoding):
    model = tiny(host)
    swapped = vispe.swap(model, encoding)
    assert type(swapped) is type(model) and not swapped.training
    shapes = [(3, 5), (4, 4), (4, 2)] if host != "dit" else [(4, 4)]
    for grid in shapes:
        torch.testing.assert_close(run(swapped, host, grid), run(model, host, grid), rtol=0, atol=1e-5)
    torch.testing.assert_close(run(swapped, host, (4, 4), batch=1), run(model, host, (4, 4), batch=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("host", CONFIGS)
def test_the_original_does_not_change(host):
    model = tiny(host)
    keys, before = set(model.state_dict()), run(model, host, (4, 4))
    shaken(vispe.swap(model, "harope", old="remove", start="init"))
    assert set(model.state_dict()) == keys
    torch.testing.assert_close(run(model, host, (4, 4)), before, rtol=0, atol=0)
    assert vispe.swap(model, "harope", into="model") is model and new_parameters(model)


@pytest.mark.parametrize("host,encoding", PAIRS)
def test_every_layer_has_its_own_parameters_and_they_learn(host, encoding):
    swapped = vispe.swap(tiny(host), encoding)
    new = new_parameters(swapped)
    assert len({p.data_ptr() for p in new.values()}) == len(new) and set(new) <= set(swapped.state_dict())
    layers = {name.split(".processor.")[0] for name in new if ".processor." in name}
    if encoding != "learned":
        expected = {"dit": 2, "pixart": 2, "sd3": 3, "flux": 4, "lumina2": 3, "wan": 2}[host]
        assert len(layers) == expected
    before = run(swapped, host, (4, 4))
    before.square().sum().backward()
    for layer in layers:
        largest = max(float(p.grad.abs().max()) for name, p in new.items() if name.startswith(layer))
        assert largest > 1e-9, f"{layer} cannot leave the start"
    torch.optim.SGD(new.values(), lr=10.0).step()
    assert not torch.allclose(run(swapped, host, (4, 4)), before)


@pytest.mark.parametrize("host,encoding", [("flux", "harope"), ("sd3", "harope"), ("dit", "swin_bias"), ("wan", "rope_mixed")])
def test_all_gradients_away_from_the_start(host, encoding):
    swapped = shaken(vispe.swap(tiny(host), encoding))
    run(swapped, host, (4, 4)).square().sum().backward()
    for name, p in new_parameters(swapped).items():
        assert torch.isfinite(p.grad).all() and float(p.grad.abs().max()) > 0, name


@pytest.mark.parametrize("host", ["dit", "pixart", "sd3", "flux", "lumina2", "wan"])
def test_removed_means_the_model_without_its_positions(host):
    model = tiny(host)
    bare = vispe.swap(model, "none", old="remove")
    assert not torch.allclose(run(bare, host, (4, 4)), run(model, host, (4, 4)), atol=1e-4)
    swapped = vispe.swap(model, "rope_mixed", old="remove")
    torch.testing.assert_close(run(swapped, host, (4, 4)), run(bare, host, (4, 4)), rtol=0, atol=1e-5)


def test_removed_tables_leave_the_state():
    assert "pos_embed.pos_embed" in tiny("sd3").state_dict()
    assert "pos_embed.pos_embed" not in vispe.swap(tiny("sd3"), "harope", old="remove").state_dict()


@pytest.mark.parametrize("host", ["dit", "pixart"])
def test_the_own_table_through_sincos2d(host):
    model = tiny(host)
    options = {"preset": "diffusers"}
    swapped = vispe.swap(model, "sincos2d", old="remove", start="init", encoding_kwargs=options)
    torch.testing.assert_close(run(swapped, host, (4, 4)), run(model, host, (4, 4)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("host", ["flux", "sd3", "dit", "lumina2", "wan"])
def test_checkpointing_changes_nothing(host):
    grads = []
    for checkpointing in (False, True):
        swapped = shaken(vispe.swap(tiny(host), "harope")).train()
        if checkpointing:
            swapped.enable_gradient_checkpointing()
        run(swapped, host, (4, 4)).square().sum().backward()
        grads.append([p.grad for p in swapped.parameters() if p.grad is not None])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("host", CONFIGS)
def test_copies_are_their_own(host):
    swapped = shaken(vispe.swap(tiny(host), "rope_mixed"))
    before = run(swapped, host, (4, 4))
    twins = (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped)))
    for twin in twins:
        torch.testing.assert_close(run(twin, host, (4, 4)), before, rtol=0, atol=1e-6)
        with torch.no_grad():
            for p in new_parameters(twin).values():
                p.add_(1.0)
        assert not torch.allclose(run(twin, host, (4, 4)), before)
    torch.testing.assert_close(run(swapped, host, (4, 4)), before, rtol=0, atol=0)


@pytest.mark.parametrize("host", ["flux", "sd3", "wan"])
def test_bfloat16_starts_as_the_model_does(host):
    model = tiny(host).to(torch.bfloat16)
    swapped = vispe.swap(model, "harope")
    assert {p.dtype for p in new_parameters(swapped).values()} == {torch.bfloat16}
    call = {k: v.bfloat16() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in arguments(host, (4, 4)).items()}
    ours, theirs = (m(**call, return_dict=False)[0].float() for m in (swapped, model))
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


# ---- particular models ----------------------------------------------------------------------------------------------


def test_dit_of_any_shape_has_each_token_in_its_place():
    bare = vispe.swap(tiny("dit"), "none", old="remove")  # without positions, tokens can be laid out anyhow
    call = arguments("dit", (2, 8))
    wide = bare(**call, return_dict=False)[0]
    assert wide.shape == (2, 4, 4, 16)

    def laid(x, rows, columns):  # the same tokens, row by row, on another grid
        cells = x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        return cells.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)

    square = bare(**{**call, "hidden_states": laid(call["hidden_states"], 4, 4)}, return_dict=False)[0]
    torch.testing.assert_close(laid(wide, 4, 4), square, rtol=0, atol=1e-5)
    assert run(vispe.swap(tiny("dit"), "harope"), "dit", (3, 5)).shape == (2, 4, 6, 10)


def test_lumina_places_images_behind_captions_of_any_length():
    swapped = shaken(vispe.swap(tiny("lumina2"), "rope_axial", start="init"))
    call = arguments("lumina2", (3, 4))
    both = swapped(**call, return_dict=False)[0]
    short = {key: value[1:] for key, value in call.items()}
    short["encoder_hidden_states"], short["encoder_attention_mask"] = (
        short[key][:, :3] for key in ("encoder_hidden_states", "encoder_attention_mask")
    )
    torch.testing.assert_close(swapped(**short, return_dict=False)[0], both[1:], rtol=0, atol=1e-5)


def test_flux_tokens_of_a_part_of_the_grid():
    swapped = shaken(vispe.swap(tiny("flux"), "rope_axial", old="remove", start="init"))
    call = arguments("flux", (3, 5))
    whole = swapped(**call, return_dict=False)[0]
    order = torch.randperm(15, generator=torch.Generator().manual_seed(4))
    mixed = {**call, "hidden_states": call["hidden_states"][:, order], "img_ids": call["img_ids"][order]}
    torch.testing.assert_close(swapped(**mixed, return_dict=False)[0], whole[:, order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("host,passes", [("sd3", "joint_attention_kwargs"), ("flux", "joint_attention_kwargs"),
                                         ("dit", "cross_attention_kwargs"), ("pixart", "cross_attention_kwargs")])  # fmt: skip
def test_positions_of_the_callers_own(host, passes):
    swapped = shaken(vispe.swap(tiny(host), "rope_axial", start="init"))
    call, policy = arguments(host, (4, 4)), RandomPositions()
    grid = patch_grid(4, 4, train=(4, 4))
    plain = swapped(**call, return_dict=False)[0]
    torch.testing.assert_close(swapped(**call, **{passes: {"positions": grid}}, return_dict=False)[0], plain, rtol=0, atol=1e-6)
    drawn = policy(grid, batch=2, generator=torch.Generator().manual_seed(0))
    both = swapped(**call, **{passes: {"positions": drawn}}, return_dict=False)[0]
    assert (both - plain).abs().max() > 1e-4
    one = drawn.take(torch.arange(16))
    for b in range(2):
        own = {passes: {"positions": dataclasses.replace(one, coords=one.coords[b : b + 1], indices=None)}}
        torch.testing.assert_close(swapped(**call, **own, return_dict=False)[0][b], both[b], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="2 samples of 16 image tokens"):
        swapped(**call, **{passes: {"positions": patch_grid(4, 5)}})


def test_pixart_masks_of_image_tokens():
    model, call = tiny("pixart"), arguments("pixart", (3, 5))
    mask = (torch.rand(2, 15, generator=torch.Generator().manual_seed(0)) > 0.4).long()
    plain = model(**call, attention_mask=mask, return_dict=False)[0]
    assert (plain - model(**call, return_dict=False)[0]).abs().max() > 1e-3
    for encoding in ("harope", "swin_bias"):
        ours = vispe.swap(model, encoding)(**call, attention_mask=mask, return_dict=False)[0]
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-5)


def test_flux_takes_fused_projections():
    swapped = shaken(vispe.swap(tiny("flux"), "harope"))
    before = run(swapped, "flux")
    swapped.fuse_qkv_projections()
    torch.testing.assert_close(run(swapped, "flux"), before, rtol=0, atol=1e-5)


def test_sd3_says_when_its_processors_were_replaced():
    swapped = shaken(vispe.swap(tiny("sd3"), "harope"))
    before = run(swapped, "sd3")
    swapped.fuse_qkv_projections()
    with pytest.raises(ValueError, match="replaced by FusedJointAttnProcessor2_0.*unfuse"):
        run(swapped, "sd3")
    swapped.unfuse_qkv_projections()
    torch.testing.assert_close(run(swapped, "sd3"), before, rtol=0, atol=0)


def test_no_weight_decay_names_what_is_there():
    swapped = vispe.swap(tiny("sd3"), "harope")
    names = adapters.no_weight_decay(swapped)
    assert names == set(new_parameters(swapped)) and any(name.endswith("gate") for name in names)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host,encoding,options,message",
    [
        ("dit", "cpe", {}, "acts on .'between'.*e.g. harope"),
        ("flux", "learned", {}, "acts on .'tokens'.*e.g. harope"),
        ("flux", "rope_dinov3", {}, "no setting.*start='init'"),
        ("flux", "swin_bias", {}, "belongs to a grid.*train_grid"),
        ("dit", "sincos2d", {}, "no setting.*start='init'"),
        ("dit", "kprpe", {}, "needs"),
        ("dit", "haropee", {}, "did you mean 'harope'"),
        ("lumina2", "swin_bias", {}, "captions of different lengths"),
        ("wan", "rope_timm", {}, "axes"),
        ("flux", "harope", {"encoding_kwargs": {"theta": 100.0}}, "takes 'mode'"),
        ("sd3", "harope", {"encoding_kwargs": {"thetas": 100.0}}, "did you mean 'theta'"),
        ("dit", "harope", {"old": "drop"}, "old must be"),
        ("dit", "harope", {"start": "zero"}, "start must be"),
        ("wan", "harope", {"train_grid": (3, 5)}, "3 axes"),
    ],
)
def test_what_has_no_place_is_refused(host, encoding, options, message):
    with pytest.raises(ValueError, match=message):
        vispe.swap(tiny(host), encoding, **options)


def test_other_classes_and_processors_are_refused():
    unet = UNet2DModel(block_out_channels=(8, 8), norm_num_groups=4, down_block_types=("DownBlock2D",) * 2,
                       up_block_types=("UpBlock2D",) * 2)  # fmt: skip
    with pytest.raises(ValueError, match="no adapter for UNet2DModel.*FluxTransformer2DModel"):
        vispe.swap(unet, "harope")
    with pytest.raises(TypeError, match="encodng_kwargs"):
        vispe.swap(tiny("dit"), "harope", encodng_kwargs={})
    swapped = vispe.swap(tiny("flux"), "harope")
    with pytest.raises(ValueError, match="has 'harope' already"):
        vispe.swap(swapped, "rope_mixed")
    pixart = tiny("pixart")
    pixart.fuse_qkv_projections()
    with pytest.raises(ValueError, match="FusedAttnProcessor2_0, which would be lost"):
        vispe.swap(pixart, "harope")


def test_wrong_calls_are_refused():
    flux = vispe.swap(tiny("flux"), "rope_mixed")
    call = arguments("flux")
    with pytest.raises(ValueError, match="same for neighbours from 256"):
        flux(**{**call, "img_ids": (call["img_ids"] * 100).bfloat16()})
    with pytest.raises(ValueError, match="reference images"):
        flux(**{**call, "img_ids": flux_ids(3, 5) + torch.tensor([1.0, 0, 0])})
    with pytest.raises(ValueError, match="no multiple of the patch"):
        vispe.swap(tiny("sd3"), "harope")(**{**arguments("sd3"), "hidden_states": torch.randn(2, 4, 6, 7)})
    with pytest.raises(ValueError, match="through its whole model"):
        flux.transformer_blocks[0].attn(torch.randn(1, 4, 32), torch.randn(1, 2, 32))
    swin = vispe.swap(tiny("sd3"), "swin_bias")
    swin.transformer_blocks[0].attn.processor._attention_backend = "flash"
    with pytest.raises(ValueError, match="bias.*'flash' cannot take"):
        run(swin, "sd3")


def test_vispe_does_not_import_diffusers_and_names_the_extra():
    code = (
        "import sys, vispe; assert 'diffusers' not in sys.modules; sys.modules['diffusers'] = None\n"
        "try: vispe.adapters.diffusers\nexcept ImportError as error: assert 'vispe[diffusion]' in str(error), error\n"
        "else: raise SystemExit('imported')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
