"""Rotary tables of diffusers' models against diffusers itself, and layouts that cannot be mixed up."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed, get_2d_rotary_pos_embed
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

from vispe import create_encoding, patch_grid
from vispe.encodings.functional import rotate
from vispe.encodings.rope_diffusers import narrow, shares, widen
from vispe.positions import full_grid
from vispe.positions.diffusers_grids import caption_ids, crop_region, sd3_positions
from vispe.positions.flow_shift import resolution_mu, shift_sigma


def make(preset: str, head_dim: int, axes: int = 2, **options):
    return create_encoding("rope_diffusers", dim=2 * head_dim, num_heads=2, axes=axes, preset=preset, **options)


def test_flux_of_real_width():
    """Text at the origin is a prefix here; image ids are (0, row, column)."""
    grid = patch_grid(5, 7)
    ids = torch.cat((torch.zeros(3, 3), torch.nn.functional.pad(grid.coords[0], (1, 0))))
    cos, sin = FluxPosEmbed(10000, [16, 56, 56])(ids)
    ctx = make("flux", 128).prepare(patch_grid(5, 7, prefix=3))
    torch.testing.assert_close(widen(ctx.cos[0, 0], "interleaved"), cos, atol=1e-6, rtol=0)
    torch.testing.assert_close(widen(ctx.sin[0, 0], "interleaved"), sin, atol=1e-6, rtol=0)


def test_wan_video():
    cos, sin = WanRotaryPosEmbed(44, (1, 2, 2), 64)(torch.zeros(1, 4, 3, 8, 10))
    ctx = make("wan", 44, axes=3).prepare(full_grid((3, 4, 5)))
    torch.testing.assert_close(widen(ctx.cos[0, 0], "interleaved"), cos[0, :, 0], atol=1e-6, rtol=0)
    torch.testing.assert_close(widen(ctx.sin[0, 0], "interleaved"), sin[0, :, 0], atol=1e-6, rtol=0)


def test_hunyuan_dit_turns_columns_first():
    cos, _ = get_2d_rotary_pos_embed(16, ((0, 0), (3, 4)), (3, 4))
    ctx = make("hunyuan_dit", 16).prepare(patch_grid(3, 4))
    torch.testing.assert_close(widen(ctx.cos[0, 0], "interleaved"), cos, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout, unbind", [("interleaved", -1), ("half", -2)])
def test_narrowed_tables_turn_as_diffusers_does(layout, unbind):
    cos, sin = get_1d_rotary_pos_embed(8, torch.arange(6.0), use_real=True, repeat_interleave_real=layout == "interleaved")
    x = torch.randn(2, 3, 6, 8)
    wanted = apply_rotary_emb(x, (cos, sin), use_real=True, use_real_unbind_dim=unbind)
    torch.testing.assert_close(rotate(x, narrow(cos, layout), narrow(sin, layout), layout), wanted)
    other = "half" if layout == "interleaved" else "interleaved"
    with pytest.raises(ValueError, match=f"in the layout '{other}'; is it '{layout}'"):
        narrow(cos, other)
    assert torch.equal(widen(narrow(cos, layout), layout), cos)


def test_image_is_frame_zero():
    """The channels of time do not turn, the others as in a video's first frame."""
    image, video = make("wan", 32), make("wan", 32, axes=3)
    a, b = image.prepare(patch_grid(3, 4)), video.prepare(full_grid((1, 3, 4)))
    assert torch.equal(a.cos, b.cos) and torch.equal(a.sin, b.sin)
    assert not a.sin[..., : shares("wan", 32)[0] // 2].any()


def test_extrapolation_knows_every_axis():
    encoding = make("flux", 32)
    encoding.set_extrapolation("ntk")
    native, larger = (encoding.prepare(patch_grid(n, 8, train=(8, 8))) for n in (8, 16))
    plain = make("flux", 32).prepare(patch_grid(16, 8, train=(8, 8)))
    torch.testing.assert_close(native.cos, make("flux", 32).prepare(patch_grid(8, 8)).cos, atol=1e-6, rtol=0)
    rows, columns = slice(2, 9), slice(9, 16)
    assert (larger.cos[..., rows] - plain.cos[..., rows]).abs().max() > 1e-2
    torch.testing.assert_close(larger.cos[..., columns], plain.cos[..., columns], atol=1e-6, rtol=0)


def test_shares():
    assert shares("flux", 128) == (16, 56, 56) and shares("wan", 128) == (44, 42, 42)
    assert shares("cogvideox", 64) == (16, 24, 24)
    with pytest.raises(ValueError, match=r"'flux' cannot share out a head of 16 channels in pairs \(it would be \(2, 7, 7\)\)"):
        make("flux", 16)
    with pytest.raises(ValueError, match="3 even numbers that sum to head_dim=16"):
        make("flux", 16, channels=[4, 6, 4])
    with pytest.raises(ValueError, match="is for images"):
        make("lumina_next", 16, axes=3)
    with pytest.raises(ValueError, match="interleaves two equal axes"):
        make("lumina_next", 16, channels=[4, 12])
    with pytest.raises(ValueError, match="preset must be one of"):
        make("sd3", 16)


def test_grids():
    corner = sd3_positions(2, 4, max_size=6, base_size=3)
    assert corner.coords[0, 0].tolist() == [1.0, 0.5] and corner.coords[0, -1].tolist() == [1.5, 2.0]
    with pytest.raises(ValueError, match="grid of 7x2 does not fit the table of 6x6"):
        sd3_positions(7, 2, max_size=6, base_size=3)
    assert crop_region(9, 4, height=6, width=8) == ((0, 2), (6, 5))
    ids, lengths = caption_ids([2, 1], (1, 2))
    assert lengths == [4, 3] and ids[1].tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_flow_shift():
    assert resolution_mu(256) == 0.5 and abs(resolution_mu(4096) - 1.15) < 1e-12
    sigma = torch.tensor([0.25, 1.0], dtype=torch.float64)
    assert shift_sigma(sigma, 3.0, kind="linear").tolist() == [0.5, 1.0]
    torch.testing.assert_close(shift_sigma(sigma, 0.0), sigma)
    with pytest.raises(ValueError, match="kind must be"):
        shift_sigma(sigma, 1.0, kind="cubic")
