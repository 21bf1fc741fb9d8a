"""Fixed sin-cos tables: MAE / DiT, MoCo v3, SimpleViT, timm, diffusers and DETR, told apart by what their
configurations name."""

from __future__ import annotations

from dataclasses import replace

import torch

from vispe import create_encoding, patch_grid
from vispe.positions import Positions, masked_grid

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    return detr(case) if "num_pos_feats" in case.config else table(case)


def preset(config: dict) -> str:
    if "interleave_sin_cos" in config:
        return "timm_interleaved" if config["interleave_sin_cos"] else "timm"
    if "base_size" in config:
        return "diffusers"
    if "frequency" in config:
        return "simplevit"  # the only one that states its frequencies: the end point is included
    return "mocov3" if "grid_w" in config.get("layout", "") else "mae"  # DiT's is MAE's


def table(case: Case) -> Results:
    c = case.config
    name = preset(c)
    options = {n: c[n] for n in ("base_size", "interpolation_scale") if name == "diffusers" and n in c}
    encoding = create_encoding(
        "sincos2d", dim=c["dim"], num_heads=1, preset=name, theta=c.get("temperature", c.get("theta")), **options
    )
    height, width = c["height"], c["width"]
    if name == "mocov3" or c.get("reverse_coord"):
        # These enumerate tokens column by column with the column as their first axis, which is the row-major table of the
        # transposed grid.
        height, width = width, height
    pos = patch_grid(height, width, prefix=int(bool(c.get("class_token"))) or c.get("extra_tokens", 0) or 0)
    if "float64" in str(c.get("dtype", "")):
        pos = replace(pos, coords=pos.coords.double())
    return {"out.pe": encoding.prepare(pos)[0]}


def tolerance(case: Case, key: str) -> float | None:
    """diffusers rounds its positions to float32 ahead of its float64 frequencies: half a unit in the last place of
    positions up to 64."""
    return 4e-6 if preset(case.config) == "diffusers" else None


def detr(case: Case) -> Results:
    c = case.config
    scale = 2 * torch.pi if isinstance(c["scale"], str) else c["scale"]
    pos: Positions = masked_grid(case.inputs["mask"], normalize=c["normalize"], scale=scale, eps=c["eps"])
    encoding = create_encoding("sincos2d", dim=2 * c["num_pos_feats"], num_heads=1, preset="detr", theta=c["temperature"])
    return {"out.pe": encoding.prepare(pos).mT.unflatten(-1, (c["height"], c["width"]))}
