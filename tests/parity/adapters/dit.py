"""DiT, SiT and LightningDiT as whole models, HARoPE's DiT (from its own folder), and the way into diffusers' class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from vispe.convert import convert
from vispe.convert.diffusers_dit import to_diffusers
from vispe.models.dit import EncodedDiT
from vispe.models.guidance import guide

from ..cases import Case
from .common import Results, gradients, leaves

SOURCES = {"DiT": "dit", "SiT": "sit", "LightningDiT": "lightningdit", "HARoPE": "harope"}


def run(case: Case) -> Results:
    return whole(case, case.config["model"]) if "model" in case.config else conversion(case)


def build(c: dict[str, Any], official: str) -> EncodedDiT:
    encoding, options = "sincos2d", {"preset": "dit"}
    if official == "LightningDiT" and c.get("use_rope", False):
        encoding = "sincos2d+rope_eva02"
        options = {"sincos2d": options, "rope_eva02": {"pretrain_grid": None, "theta": c.get("rope_theta", 10000.0)}}
    if official == "HARoPE":
        encoding, options = "harope", {"theta": float(c["rope_theta"]), "mode": c.get("mode", "conjugate")}
    dropout = c.get("class_dropout_prob", 0.1)
    return EncodedDiT(
        encoding=encoding, encoding_kwargs=options, input_size=c["input_size"], patch_size=c["patch_size"],
        in_channels=c["in_channels"], hidden_size=c.get("hidden_size", c["num_heads"] * c.get("head_dim", 0)), depth=c["depth"],
        num_heads=c["num_heads"], mlp_ratio=c.get("mlp_ratio", 4.0), num_classes=c["num_classes"], null_class=dropout > 0,
        class_dropout=dropout, learn_sigma=c.get("learn_sigma", official != "LightningDiT"),
        prediction_type="epsilon" if official in ("DiT", "HARoPE") else "sit_velocity",
        qk_norm=c.get("use_qknorm", c.get("qk_norm", False)), norm="rms" if c.get("use_rmsnorm") else "layer",
        mlp="swiglu" if c.get("use_swiglu") else "gelu", shift=not c.get("wo_shift", False),
    ).eval()  # fmt: skip


def whole(case: Case, official: str) -> Results:
    c, x = case.config, case.inputs
    params = leaves(case.params)
    model = build(c, official)
    state, report = convert(params, model, SOURCES[official])
    assert report.complete, report.problems()

    def forward(*args: Tensor) -> Tensor:
        return functional_call(model, state, args)

    out = forward(x["x"], x["t"], x["y"])
    results = {"out.model": out}
    if "cfg_x" in x:
        results["out.cfg_model"] = guided(forward, case)
    if "cotangent" in x:
        results |= gradients((out * x["cotangent"]).sum(), params)
    return results


def guided(forward: Any, case: Case) -> Tensor:
    """Official `forward_with_cfg`: the first half of the batch serves both halves of the classes."""
    c, x = case.config, case.inputs
    half = x["cfg_x"][: len(x["cfg_x"]) // 2]
    cond, uncond = forward(torch.cat((half, half)), x["cfg_t"], x["cfg_y"]).chunk(2)
    scale = c["cfg_scale"]
    if c.get("cfg_interval") and x["cfg_t"][0] < c["cfg_interval_start"]:
        scale = 1.0  # LightningDiT, whose time runs from noise to data
    first = guide(cond, uncond, scale, channels=c["cfg_channels"])
    return torch.cat((first, torch.cat((first[:, : c["cfg_channels"]], uncond[:, c["cfg_channels"] :]), dim=1)))


def conversion(case: Case) -> Results:
    """Official weights to ours to diffusers, with the official function and with diffusers' own."""
    model = build(case.config, "DiT")
    state, report = convert(case.params, model, "dit")
    assert report.complete, report.problems()
    model.load_state_dict(state)
    x, t, y = (case.inputs[n] for n in "xty")
    with torch.no_grad():
        official, stock = (
            to_diffusers(model, times=times)(x, timestep=t, class_labels=y, return_dict=False)[0]
            for times in ("official", "stock")
        )
    return {"out.official": official, "out.diffusers_stock": stock}
