"""whlzy/FiT (FiT and FiTv2, at fe40110) onto EncodedDiT: the names "dit_xl_2_fit", and "dit_xl_2_fitv2" with depth=36.

Patches are flattened channels first there, and the embedding is a linear layer. FiTv2's modulation is a product of two layers
plus one layer for all blocks, with nothing in between that is not linear: it becomes one layer a block, the same function, with
more parameters. The rotation (rows first, θ 10000) is computed. FiT's SwiGLU is its "large" one (mlp_ratio=6 here), FiTv2's has
the usual two thirds. Masks and packed sequences are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from . import dit
from .report import Draft
from .tables import Grid

ENCODINGS = ("rope3d",)  # whose weights these are
_GATE = re.compile(r"blocks\.(\d+)\.mlp\.fc1_g\.(weight|bias)")
_LOW_RANK = re.compile(r"blocks\.(\d+)\.adaLN_modulation\.2\.weight")
_GLOBAL = "global_adaLN_modulation.1"


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    return dit.matches(keys) and (f"{_GLOBAL}.weight" in keys or any(_GATE.fullmatch(key) for key in keys))


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "fit")
    p, channels = model.patch_size, model.in_channels
    kernel = draft.left["x_embedder.proj.weight"]
    if kernel.ndim != 2 or kernel.shape[1] != channels * p * p:
        raise ValueError(
            f"convert: FiT embeds patches by a matrix (C, {channels} · {p} · {p}), got {tuple(kernel.shape)}; create the model "
            f"with the source's in_channels and patch_size."
        )
    draft.put("x_embedder.proj.weight", kernel.unflatten(1, (channels, p, p)), "x_embedder.proj.weight")
    for kind in ("weight", "bias"):
        key = f"final_layer.linear.{kind}"
        rows = draft.left[key].unflatten(0, (-1, p, p))  # channels first; ours are last
        draft.put(key, rows.movedim(0, 2).flatten(0, 2), key)
    for key in list(draft.left):
        if (found := _GATE.fullmatch(key)) and key in draft.left:
            root = f"blocks.{found[1]}.mlp"
            names = [f"{root}.{half}.{found[2]}" for half in ("fc1_g", "fc1_x")]
            if all(name in draft.left for name in names):
                draft.put(f"{root}.fc1.{found[2]}", torch.cat([draft.left[name] for name in names]), *names)
    _modulation(draft)
    dit.finish(draft, model, source_grid)
    return draft


def _modulation(draft: Draft) -> None:
    """W = W₂ W₁ + W_all, b = W₂ b₁ + b₂ + b_all of every block, in float64."""
    left = draft.left
    blocks = sorted(int(found[1]) for key in left if (found := _LOW_RANK.fullmatch(key)))
    if not blocks or f"{_GLOBAL}.weight" not in left:
        return
    shared = {f"{_GLOBAL}.{kind}": left[f"{_GLOBAL}.{kind}"] for kind in ("weight", "bias") if f"{_GLOBAL}.{kind}" in left}
    everywhere, shift = (shared.get(f"{_GLOBAL}.{kind}") for kind in ("weight", "bias"))
    for i in blocks:
        root = f"blocks.{i}.adaLN_modulation"
        own = {f"{n}.{kind}": left.get(f"{root}.{n}.{kind}") for n in (1, 2) for kind in ("weight", "bias")}
        down, up = own["1.weight"].double(), own["2.weight"].double()
        weight = up @ down + everywhere.double()
        biases = [own["2.bias"], shift, None if own["1.bias"] is None else up @ own["1.bias"].double()]
        bias = sum((b.double() for b in biases if b is not None), torch.zeros(len(up), dtype=torch.float64, device=up.device))
        names = [f"{root}.{name}" for name, tensor in own.items() if tensor is not None]
        dtype = own["1.weight"].dtype
        draft.put(f"{root}.1.weight", weight.to(dtype), *(n for n in names if n.endswith("weight")), f"{_GLOBAL}.weight")
        sources = [n for n in names if n.endswith("bias")] + [n for n in shared if n.endswith("bias")]
        draft.put(f"{root}.1.bias", bias.to(dtype), *sources)
