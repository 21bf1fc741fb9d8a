"""State, loading and precision: public reports and the right values.

One test a report with its smallest input, named by a repository and a number; the first line says what went wrong there.
"""


import copy

import pytest
import timm
import torch
from report_helpers import TINY, encoding, images, vit
from timm.models import save_for_hf

from vispe.models.vit_zoo import VARIANTS
from vispe.positions import custom_positions, patch_grid

# ---- state and loading --------------------------------------------------------------------------------------------------


def test_timm_2692_options_survive_saving(tmp_path):
    """A converted model lost its rotary layout without a word."""
    model = vit("rope_dinov3", encoding_kwargs=dict(base=30.0, normalize="min", resize="extend"), reg_tokens=2)
    save_for_hf(model, tmp_path, model_config={"tag": "x"}, safe_serialization=True)
    twin = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert torch.equal(twin(images(40, 24)), model(images(40, 24)))
    assert not torch.allclose(vit("rope_dinov3", reg_tokens=2)(images(40, 24)), model(images(40, 24)))


@pytest.mark.parametrize("variant", ["rope_axial", "rope_dinov3", "sincos2d", "comrope", "irpe", "gta2d"])
def test_transformers_45902_nothing_outside_the_state_dict(variant):
    """After loading from the meta device, a frequency buffer that was never filled again held garbage."""
    model = vit(variant)
    with torch.device("meta"):
        shell = timm.create_model(f"vit_ti_{variant}", **TINY)
    shell = shell.to_empty(device="cpu").eval()
    shell.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(shell(images(40, 24)), model(images(40, 24)))


def test_torchtitan_316_frequencies_are_configuration():
    """Persistent frequencies in a file overrode the configuration, or had the wrong length."""
    for variant, option in (("rope_axial", "theta"), ("rope_dinov3", "base"), ("sincos2d", "theta"), ("gta2d", "theta")):
        old, new = vit(variant), vit(variant, encoding_kwargs={option: 7.0})
        assert not [k for k in old.state_dict() if k.startswith("encoding.")]
        fresh = new(images())
        new.load_state_dict(old.state_dict(), strict=True)
        assert torch.equal(new(images()), fresh) and not torch.allclose(new(images()), old(images()), atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_anemoi_743_no_buffer_is_registered_anew(variant):
    """Averaging swapped the contents of two buffers that a forward had registered in another order."""
    model = vit(variant)
    before = [(n, id(b)) for n, b in model.named_buffers()]
    model(images()), model(images(40, 24))
    assert [(n, id(b)) for n, b in model.named_buffers()] == before


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_21118_no_parameter_is_idle(variant):
    """Parameters of a switched-off table broke data-parallel training."""
    model = vit(variant).train()
    model(images()).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_equinox_no_shared_caches():
    """A cache by size alone let modules with other thetas share one table (and rotary-embedding-torch reused offsets)."""
    pos = patch_grid(4, 4)
    a, b = encoding("rope_axial", theta=100.0), encoding("rope_axial", theta=50.0)
    first = a.prepare(pos)
    assert not torch.equal(first.cos, b.prepare(pos).cos) and torch.equal(first.cos, a.prepare(pos).cos)


# ---- precision ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rope_axial", "rope_dinov3", "gta2d"])
@pytest.mark.parametrize("offset", [0, 256, 1024, 65536])
def test_transformers_29496_positions_in_half_precision(name, offset):
    """bfloat16 tells 3 of 16 neighbours apart at 1024, and one at 65536."""
    line = torch.stack((torch.full((16,), float(offset)), torch.arange(16.0) + offset), dim=-1)
    assert len(torch.arange(600).bfloat16().unique()) == 407  # the reason
    e = encoding(name)
    want = e.prepare(custom_positions(line))
    for dtype in (torch.bfloat16, torch.float16):
        got = copy.deepcopy(e).to(dtype).prepare(custom_positions(line))
        assert got.cos.dtype == torch.float32
        assert torch.equal(got.cos, want.cos) and torch.equal(got.sin, want.sin)
    assert len(want.sin[0, 0].unique(dim=0)) == 16


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "comrope", "rope_dinov3"])
def test_diffusers_13920_autocast_does_not_round_positions(name):
    """A product of positions and frequencies by matmul is downcast: positions from 65536 on fell together in steps of 512."""
    model = vit(name)
    line = torch.stack((torch.zeros(16), 65536 + torch.arange(16.0)), dim=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, cast = model.encoding.layer(model.encoding.prepare(custom_positions(line)), 0)
    _, plain = model.encoding.layer(model.encoding.prepare(custom_positions(line)), 0)
    assert torch.equal(cast.cos, plain.cos) and torch.equal(cast.sin, plain.sin)
    assert len(cast.cos[0, 0].unique(dim=0)) == 16


@pytest.mark.parametrize("variant", ["rope_dinov3", "rope_axial", "comrope", "gta2d"])
def test_dinov3_181_bfloat16_features(variant):
    """Features in bfloat16 looked visibly worse: here at least 0.999 of cosine for every patch, at 14 x 14 with heads of 64."""
    torch.manual_seed(0)
    model = timm.create_model(f"vit_s_{variant}", depth=2, img_size=112, patch_size=8, num_classes=0).eval()
    half = copy.deepcopy(model).bfloat16()
    x = images(112, 112)
    a, b = half.forward_features(x.bfloat16()).float(), model.forward_features(x)
    assert torch.cosine_similarity(a, b, dim=-1).min() > 0.999
    if not list(model.encoding.parameters()):
        pos = model.positions(14, 14)
        for p, q in zip(half.encoding.prepare(pos), model.encoding.prepare(pos)):
            assert torch.equal(p.cos, q.cos) and torch.equal(p.sin, q.sin)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_skyrl_1725_blanket_casts(variant, dtype):
    """Complex frequencies cannot be cast, and cast buffers gave NaN."""
    model = vit(variant).to(dtype)
    assert not any(t.is_complex() for t in (*model.state_dict().values(), *model.buffers()))
    assert model(images(40, 24).to(dtype)).isfinite().all()
