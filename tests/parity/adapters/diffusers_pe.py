"""diffusers' own positions: rotary tables of its transformers, sin-cos tables of its patch embeddings, layouts, time shift.

Tables in float64 there come from our encodings with frequencies and coordinates in float64.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vispe import create_encoding
from vispe.encodings.functional import rotate
from vispe.encodings.rope_diffusers import RopeDiffusers, axis_frequencies, narrow, widen
from vispe.positions import Positions, custom_positions, full_grid, patch_grid
from vispe.positions.diffusers_grids import caption_ids, crop_region, crop_span, sd3_positions
from vispe.positions.flow_shift import resolution_mu, shift_sigma, static_sigmas

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    return next(make for key, make in KINDS.items() if key in case.config)(case)


def rotary(preset: str, channels: list[int], theta: float, axes: int = 3, **options) -> RopeDiffusers:
    return create_encoding(
        "rope_diffusers", dim=sum(channels), num_heads=1, axes=axes, preset=preset, channels=channels, theta=float(theta),
        **options,
    )  # fmt: skip


def tables(made: RopeDiffusers, pos: Positions) -> tuple[Tensor, Tensor]:
    """cos and sin (B, N, P) from float64 frequencies."""
    made.frequencies = made.table
    ctx = made.prepare(replace(pos, coords=pos.coords.double()))
    return ctx.cos[:, 0], ctx.sin[:, 0]


def turned(x: Tensor, cos: Tensor, sin: Tensor, *, heads_at: int) -> Tensor:
    """x with heads on axis 1 or 2, turned in pairs (2i, 2i + 1) by tables (B, N, P)."""
    x = x if heads_at == 1 else x.transpose(1, 2)
    out = rotate(x, cos[:, None].float(), sin[:, None].float())
    return out if heads_at == 1 else out.transpose(1, 2)


def flux(case: Case) -> Results:
    c = case.config
    made = rotary("flux", c["axes_dim"], c["theta"])
    cos, sin = tables(made, custom_positions(case.inputs["ids"].float()))
    out = {f"out.{n}": turned(x, cos, sin, heads_at=2) for n, x in case.inputs.items() if n in "qk"}
    return out | {"out.cos": widen(cos[0], "interleaved").float(), "out.sin": widen(sin[0], "interleaved").float()}


def span_positions(crop: list, grid: list[int], frames: int | None = None) -> Positions:
    axes = crop_span(crop[0], crop[1], grid)
    if frames is not None:
        axes = [torch.arange(frames, dtype=torch.float32), *axes]
    mesh = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return custom_positions(mesh.flatten(0, -2))


def rope2d(case: Case) -> Results:
    c = case.config
    d = c["embed_dim"]
    out: Results = {}
    for i, crop in enumerate(c["crops"]):
        made = rotary("hunyuan_dit", [d // 2, d // 2], c.get("theta", 10000), axes=2)
        cos, sin = tables(made, span_positions(crop, c["grid"]))
        out |= {f"out.{i}.cos": widen(cos[0], "interleaved").float(), f"out.{i}.sin": widen(sin[0], "interleaved").float()}
        out[f"out.{i}.q"] = turned(case.inputs["q"], cos, sin, heads_at=1)
        if i == 0:
            out["out.complex"] = torch.stack((cos[0], sin[0]), dim=-1).float()
    return out


def rope3d(case: Case) -> Results:
    c = case.config
    made = rotary("cogvideox", c["dim_split"], c["theta"])
    cos, sin = tables(made, span_positions(c["crops"], c["grid"], c["frames"]))
    out = {"out.linspace.cos": widen(cos[0], "interleaved").float(), "out.linspace.sin": widen(sin[0], "interleaved").float()}
    out["out.linspace.q"] = turned(case.inputs["q"], cos, sin, heads_at=1)
    cos, sin = tables(made, full_grid((c["frames"], *c["grid"])))
    out |= {"out.slice.cos": widen(cos[0], "interleaved").float(), "out.slice.sin": widen(sin[0], "interleaved").float()}
    width, height = c["crop_target_wh"]
    regions = [crop_region(int(h), int(w), height=height, width=width) for h, w in case.inputs["crop_src"]]
    return out | {"out.crop_region": torch.tensor(regions)}


def layouts(case: Case) -> Results:
    c, x = case.config, case.inputs["x"]
    angle = case.inputs["pos"][:, None] * axis_frequencies(c["D"], float(c["theta"]), dtype=torch.float32)
    cos, sin = angle.cos(), angle.sin()
    out = {f"out.{kind}": rotate(x, cos, sin, kind) for kind in ("interleaved", "half")}
    scaled = case.inputs["pos"][:, None] * axis_frequencies(c["D"], float(c["theta"]), linear=2.0, ntk=3.0, dtype=torch.float32)
    # the mix-up, by hand: no function of ours takes tables of halves for pairs that lie side by side
    with pytest.raises(ValueError, match="is it 'half'"):
        narrow(widen(cos, "half"), "interleaved")
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    mixed = x * widen(cos, "half") + torch.stack((-b, a), dim=-1).flatten(-2) * widen(sin, "half")
    return out | {
        "out.complex": out["out.interleaved"].transpose(1, 2), "out.wrong_mix": mixed,
        "out.linear2_ntk3.cos": widen(scaled.cos(), "interleaved"),
    }  # fmt: skip


def wan_hunyuan(case: Case) -> Results:
    c = case.config
    grid = tuple(n // p for n, p in zip(c["latent_fhw"], c["patch"]))
    out: Results = {}
    for name, preset in (("wan", "wan"), ("hunyuan", "hunyuan_video")):
        cos, sin = tables(rotary(preset, c[f"{name}_dims"], c[f"{name}_theta"]), full_grid(grid))
        for kind, table in (("cos", cos), ("sin", sin)):
            wide = widen(table[0], "interleaved").float()
            out[f"out.{name}.{kind}"] = wide[None, :, None] if name == "wan" else wide
        if name == "wan":
            out["out.wan.q"] = turned(case.inputs["q"], cos, sin, heads_at=2)
    return out


def lumina2(case: Case) -> Results:
    c, mask = case.config, case.inputs["mask"]
    p, lengths = c["patch"], case.inputs["mask"].sum(dim=1).tolist()
    grid = (c["latent_hw"][0] // p, c["latent_hw"][1] // p)
    ids, joint = caption_ids(lengths, grid)
    cos, sin = tables(rotary("lumina2", c["axes_dim"], c["theta"]), custom_positions(ids))
    every = torch.stack((cos, sin), dim=-1)
    captions, images = torch.zeros(len(lengths), mask.shape[1], *every.shape[2:]).double(), []
    for i, length in enumerate(lengths):
        captions[i, :length] = every[i, :length]
        images.append(every[i, length : joint[i]])
    one = c["lumina_next"]
    d = one["embed_dim"]
    made = rotary(
        "lumina_next", [d // 2, d // 2], 10000, axes=2, linear_factor=one["linear_factor"], ntk_factor=one["ntk_factor"]
    )
    cos, sin = tables(made, patch_grid(one["h"], one["w"]))
    tokens = F.pixel_unshuffle(case.inputs["x"], p).unflatten(1, (-1, p * p)).permute(0, 3, 4, 2, 1)
    return {
        "out.all": every, "out.cap": captions, "out.img": torch.stack(images), "out.seq_lengths": torch.tensor(joint),
        "out.lumina_next_2d": torch.stack((cos, sin), dim=-1)[0].unflatten(0, (one["h"], one["w"])).float(),
        "out.tokens": tokens.flatten(1, 2).flatten(2),
    }  # fmt: skip


def patch_embed(case: Case) -> Results:
    c, p = case.config, case.config["patch"]
    d, base = c["embed_dim"], c["sample_size"] // c["patch"]
    weight, bias = case.params["sd3.proj.weight"], case.params["sd3.proj.bias"]

    def tokens(x: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, stride=p).flatten(2).mT

    plain = create_encoding("sincos2d", dim=d, num_heads=1, preset="diffusers")
    pos = sd3_positions(*(n // p for n in c["input_hw"]), max_size=c["pos_embed_max_size"], base_size=base)
    cropped = plain.prepare(pos)
    rescaling = create_encoding("sincos2d", dim=d, num_heads=1, preset="diffusers", base_size=base)
    three, (width, height) = c["sincos3d"], c["sincos3d"]["spatial_wh"]
    video = create_encoding("sincos3d", dim=three["embed_dim"], num_heads=1, axes=3, preset="cogvideox")
    coords = full_grid((three["frames"], height, width)).coords  # divided in float32 there, too
    scale = torch.tensor([three.get("temporal_interpolation_scale", 1.0), *[three["spatial_interpolation_scale"]] * 2])
    second = patch_grid(*(n // p for n in c["input2_hw"]))
    return {
        "out.sd3": plain.tokens(tokens(case.inputs["x"]), cropped), "out.sd3_pos_cropped": cropped,
        "out.dit": rescaling.tokens(tokens(case.inputs["x2"]), rescaling.prepare(second)),
        "out.dit_native_pos": rescaling.prepare(patch_grid(base, base)),
        "out.sincos3d": video.prepare(custom_positions((coords / scale).double()))[0].unflatten(0, (three["frames"], -1)),
    }  # fmt: skip


def time_shift(case: Case) -> Results:
    c, sigma = case.config, case.inputs["sigma"]
    mu = resolution_mu(
        case.inputs["seq"].double(), base_tokens=c["base_seq"], max_tokens=c["max_seq"], base_shift=c["base_shift"],
        max_shift=c["max_shift"],
    )  # fmt: skip
    return {
        "out.mu": mu, "out.exponential": torch.stack([shift_sigma(sigma, m) for m in mu.tolist()]),
        "out.linear": torch.stack([shift_sigma(sigma, m, kind="linear") for m in c["linear_mu"]]),
        **{f"out.static{s}.sigmas": static_sigmas(5, s).float() for s in c.get("static_shift", (1.0, 3.0))},
    }  # fmt: skip


KINDS = {
    "text_tokens": flux, "dim_split": rope3d, "crops": rope2d, "S": layouts, "wan_dims": wan_hunyuan, "lumina_next": lumina2,
    "pos_embed_max_size": patch_embed, "base_seq": time_shift,
}  # fmt: skip
