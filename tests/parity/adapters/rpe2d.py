"""RPE-2D: no code was published. The cases are float64 numbers of the sampling law and of the formulas we chose.

That our sampler follows `order_statistics` is tested in tests/positions/test_random_positions.py, by enumeration and draws.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from vispe import create_encoding
from vispe.encodings.sincos2d import sincos
from vispe.layers import attend
from vispe.positions import custom_positions
from vispe.positions.extrapolate import base_frequencies, log_n_scale, yarn_temperature
from vispe.positions.random import inference_positions, order_statistics
from vispe.positions.time_shift import log_snr, shift_ddpm, shift_factor, shift_flow, shift_flow_to_data

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    return KINDS[kind(case)](case)


def kind(case: Case) -> str:
    c = case.config
    if "pairs" in c:
        return "time_shift" if "ddpm" in c else "inference"
    return "distribution" if "n_tokens" in c else "embedding" if "max_positions" in c else "attention_scale"


def distribution(case: Case) -> Results:
    c = case.config
    law = order_statistics(c["n_tokens"], c["max_positions"])
    place = torch.arange(c["max_positions"], dtype=torch.float64)
    mean = law.pmf @ place
    return {
        "out.pmf": law.pmf, "out.gap_pmf": law.gaps, "out.mean": mean + c.get("origin", 0),
        "out.var": law.pmf @ place.square() - mean.square(),
        "out.inclusion_probability": law.pmf.sum(0)[:1],
    }  # fmt: skip


def inference(case: Case) -> Results:
    return {
        f"out.{mode}.n{n}_L{places}": inference_positions(n, places, mode)
        for n, places in case.config["pairs"]
        for mode in ("linspace", "expected", "stride", "arange", "centered", "linspace_int")
    }


def attention_scale(case: Case) -> Results:
    c, x = case.config, case.inputs
    now, train = x["n_test"].tolist(), x["n_train"].tolist()
    pairs = list(zip(now, train))

    def numbers(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    scale = log_n_scale(c["n_test"], c["n_train"]) * c["head_dim"] ** -0.5
    none = create_encoding("none", dim=c["head_dim"] * x["q"].shape[1], num_heads=x["q"].shape[1])
    return {
        "out.entropy_scale": numbers([log_n_scale(*p) for p in pairs]),
        "out.entropy_scale_only_up": numbers([log_n_scale(*p, only_up=True) for p in pairs]),
        "out.yarn_scale": numbers([yarn_temperature(math.sqrt(n / m)) for n, m in pairs]),
        f"out.attention_train{c['n_train']}_test{c['n_test']}": attend(x["q"], x["k"], x["v"], none, None, None, scale=scale),
    }


def time_shift(case: Case) -> Results:
    x = case.inputs
    alphas = [shift_factor(int(n), int(m)) for n, m in zip(x["n_test"], x["n_train"])]
    first, last, steps = re.match(r"linear betas (\S+)\.\.(\S+), (\d+) steps", case.config["ddpm"]).groups()
    kept = (1 - torch.linspace(float(first), float(last), int(steps), dtype=torch.float64)).cumprod(0)
    snr = log_snr(kept)[x["ddpm_step"]]
    return {
        "out.alpha": torch.tensor(alphas, dtype=torch.float64),
        "out.flow": torch.stack([shift_flow(x["t_flow"], a) for a in alphas]),
        "out.flow_t1_is_data": torch.stack([shift_flow_to_data(x["t_flow"], a) for a in alphas]),
        "out.ddpm_log_snr": snr,
        "out.ddpm_shifted_log_snr": torch.stack([snr - 2 * math.log(a) for a in alphas]),
        "out.ddpm_nearest_step": torch.stack([shift_ddpm(x["ddpm_step"], kept, a) for a in alphas]),
    }


def embedding(case: Case) -> Results:
    """Tables at positions of their own for each sample; float64, as the case."""
    c, x = case.config, case.inputs
    rows = x["rows"][:, :, None].expand(-1, -1, c["grid_w"])
    cols = x["cols"][:, None].expand(-1, c["grid_h"], -1)
    coords = torch.stack((rows, cols), dim=-1).flatten(1, 2).double()  # (B, N, 2)
    head_dim = x["q"].shape[-1]
    rotary = create_encoding("rope3d", dim=head_dim * c["heads"], num_heads=c["heads"], axes=2)  # rows first, pairs (2i, 2i+1)
    series = base_frequencies(c["theta"], head_dim // 2)
    rotary.frequencies = lambda: torch.block_diag(series[None], series[None])[None]
    ctx = rotary.prepare(custom_positions(coords))
    q, _ = rotary.qk(x["q"], x["q"], ctx, ctx)
    angles = torch.cat((coords[..., :1] * series, coords[..., 1:] * series), dim=-1)
    table = sincos(coords, c["dim"], theta=float(c["theta"]), order="col_row", stacking="axis")
    return {"out.sincos": table, "out.q_rotated": q, "out.angles": angles}


KINDS = {
    "distribution": distribution, "inference": inference, "attention_scale": attention_scale, "time_shift": time_shift,
    "embedding": embedding,
}  # fmt: skip
