"""JJJYmmm/Multimodal-RoPEs: GRAPE with learned planes over time, row and column."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe import create_encoding
from vispe.positions import custom_positions

from ..cases import Case
from .common import Results, bind, gradients, leaves

BANKS = ("t_grape", "h_grape", "w_grape")


def run(case: Case) -> Results:
    c = case.config
    params, inputs = leaves(case.params), leaves({n: case.inputs[n] for n in "qk"})
    ours = stored(params, c["mode"])
    blocks, planes, width = ours["first"].shape[1:]
    encoding = create_encoding(
        "grape_multimodal", dim=c["head_dim"], num_heads=1, axes=3, mode=c["mode"], planes=planes, block_size=width,
        theta=float(c["rope_theta"]), log_scale=c.get("log_freq_scale", 1.0),
    )  # fmt: skip
    bind(encoding, **ours)
    ctx = encoding.prepare(custom_positions(case.inputs["position_ids"].movedim(0, -1).float()))
    q, k = encoding.qk(inputs["q"], inputs["k"], ctx, ctx)
    results = {"out.q_rot": q, "out.k_rot": k}
    if "cotangent" in case.inputs:
        loss = (q * case.inputs["cotangent"]).sum()
        if "cotangent_k" in case.inputs:
            loss = loss + (k * case.inputs["cotangent_k"]).sum()
        results |= gradients(loss, params | inputs)
    return results


def stored(params: dict[str, Tensor], mode: str) -> dict[str, Tensor]:
    """The official parameters where ours are."""
    if mode == "axis":
        return {new: torch.stack([params[f"{bank}.{old}"] for bank in BANKS])[:, None] for new, old in NAMES[:2]}
    return {new: params[old].view(1, -1, *params[old].shape[-2:]) for new, old in NAMES}


NAMES = (("first", "a"), ("second", "b"), ("mixing", "axis_weight"))
