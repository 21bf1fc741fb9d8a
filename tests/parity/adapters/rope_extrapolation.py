"""FiT, DyPE, Lumina-Next and RIFLEx: frequencies and tables at sizes never trained, through the setting that encodings take.

Official codes mix with ramps that turn round outside the series: `ends="released"`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vispe import create_encoding
from vispe.encodings.extrapolation import Extrapolation, Series
from vispe.encodings.functional import phase
from vispe.positions import Positions, with_noise
from vispe.positions.extrapolate import (
    base_frequencies,
    fit_proportion,
    growth,
    intrinsic_pair,
    lumina,
    riflex,
    yarn_temperature,
)

from ..cases import Case
from .common import Results

FIT = {
    "normal": ("none", "none"), "linear": ("pi", "none"), "ntk-aware": ("ntk", "none"), "ntk-by-parts": ("by_parts", "none"),
    "yarn": ("yarn", "yarn"), "ntk-aware-pro1": ("ntk", "fit_side"), "ntk-aware-pro2": ("ntk", "fit_area"),
}  # fmt: skip


def run(case: Case) -> Results:
    c = case.config
    if "trained_tokens_per_axis" in c:
        return fit(case)
    return dype(case) if "base_patches" in c else lumina_next(case) if "scale_watershed" in c else riflex_tables(case)


def turns(options: dict[str, Any]) -> dict[str, Any]:
    """The thresholds of a case, for `Extrapolation`."""
    out: dict[str, Any] = {"ends": "released"}
    if "yarn" in options:
        out["turns"] = (float(options["yarn"]["beta_fast"]), float(options["yarn"]["beta_slow"]))
    if "ntk_by_parts" in options:
        out["parts"] = (tuple(options["ntk_by_parts"]["beta"]), tuple(options["ntk_by_parts"]["gamma"]))
    return out


def fit(case: Case) -> Results:
    c, out = case.config, {}
    now, train = (c["test_tokens_h"], c["test_tokens_w"]), (c["trained_tokens_per_axis"],) * 2
    coords = case.inputs["grid"].flip(1).mT.float()  # official order: width, height
    pos = Positions(coords, extent=now, train=train)
    for name, (method, temperature) in FIT.items():
        for axes, word in (("longest", "coupled"), ("own", "decoupled")):
            encoding = create_encoding(
                "rope3d", dim=c["head_dim"] * c["heads"], num_heads=c["heads"], axes=2, theta=float(c["theta"])
            )  # rows first, pairs (2i, 2i+1)
            encoding.set_extrapolation(Extrapolation(method, axes=axes, temperature=temperature, **turns(c)))
            ctx = encoding.prepare(pos)
            freqs = encoding.extrapolated(encoding.frequencies(), pos)[0][0]
            half = freqs.shape[-1] // 2
            q, _ = encoding.qk(case.inputs["q"], case.inputs["q"], ctx, ctx)
            out |= {
                f"out.{name}.{word}.freqs_h": freqs[0, :half], f"out.{name}.{word}.freqs_w": freqs[1, half:],
                f"out.{name}.{word}.cos": ctx.weigh(ctx.cos)[0, 0].repeat_interleave(2, -1),
                f"out.{name}.{word}.sin": ctx.weigh(ctx.sin)[0, 0].repeat_interleave(2, -1),
                f"out.{name}.{word}.q": q[:1],
            }  # fmt: skip
    side, area = (max(now), train[0]), (now[0] * now[1], train[0] ** 2)
    numbers = {"mscale": yarn_temperature(growth(*side))}
    numbers |= {"proportion1": fit_proportion(*side), "proportion2": fit_proportion(*area)}
    return out | {f"out.{key}": torch.tensor([value]) for key, value in numbers.items()}


def dype(case: Case) -> Results:
    c, ids = case.config, case.inputs["ids"].double()
    freqs = torch.block_diag(*(base_frequencies(c["theta"], d)[None] for d in c["axes_dim"]))  # (3, P)
    series = [Series(float(c["theta"]), d // 2) for d in c["axes_dim"]]
    now = (1, *(int(n) + 1 for n in ids[:, 1:].amax(0)))  # texts and frames, the first axis, are never scaled
    train = (1, c["base_patches"], c["base_patches"])
    pos = Positions(ids[None], extent=now, train=train)
    own = torch.tensor([yarn_temperature(growth(n, m)) for n, m in zip(now, train)], dtype=torch.float64)
    factors = own.repeat_interleave(torch.tensor(c["axes_dim"]))  # an axis' own factor on its own channels

    def tables(name: str, method: str, noise: float, factor: Tensor | float) -> Results:
        setting = Extrapolation(method, lambda_s=c["lambda_s"], lambda_t=c["lambda_t"], **turns(c))
        moved = setting.frequencies(freqs, with_noise(pos, noise), series=series, units=(1.0, 1.0, 1.0), name="case")
        angle = phase(pos.coords, moved[None])[0, 0].repeat_interleave(2, -1)
        return {f"out.{name}.cos": (angle.cos() * factor).float(), f"out.{name}.sin": (angle.sin() * factor).float()}

    out = tables("base", "none", 1.0, 1.0) | tables("ntk", "ntk", 1.0, 1.0) | tables("yarn", "dype_yarn", 1.0, factors)
    for t in c["timesteps"]:
        out |= tables(f"ntk.dype.t{t}", "dype_ntk", t, 1.0) | tables(f"yarn.dype.t{t}", "dype_yarn", t, factors)
    return out


def lumina_next(case: Case) -> Results:
    c, out = case.config, {}
    freqs, place = base_frequencies(c["theta"], c["head_dim"] // 2), torch.arange(c["max_len"], dtype=torch.float64)
    for t in c["timesteps"]:
        angle = place[:, None] * lumina(freqs, c["scale_factor"], 1 - t, watershed=c["scale_watershed"])
        rows, cols = angle[:, None].expand(-1, len(place), -1), angle[None].expand(len(place), -1, -1)
        both = torch.stack((rows, cols), dim=-1).flatten(-2)  # axes alternate
        out[f"out.t{t}.freqs_cis"] = torch.stack((both.cos(), both.sin()), dim=-1).float()
    return out


def riflex_tables(case: Case) -> Results:
    out: Results = {}
    for i, c in enumerate(case.config["cases"]):
        freqs = base_frequencies(c["theta"], c["dim"])
        if c["k"] is not None:
            freqs = riflex(freqs, c["L_test"], pair=c["k"])
        angle = (torch.arange(c["frames"], dtype=torch.float64)[:, None] * freqs).repeat_interleave(2, -1)
        out |= {f"out.{i}.cos": angle.cos().float(), f"out.{i}.sin": angle.sin().float()}
    if "identify" in case.inputs:
        rows = case.inputs["identify"].tolist()
        out["out.identify"] = torch.tensor([intrinsic_pair(theta, int(dim), int(n)) for theta, dim, n in rows])
    return out
