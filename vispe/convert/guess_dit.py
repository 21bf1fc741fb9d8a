"""Which diffusion transformer official weights belong to, as far as keys and shapes tell it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..models.dit_zoo import PATCHES, SIZES

SOURCES = ("dit", "sit", "lightningdit", "harope", "fit", "diffusers_dit")
_BLOCK = re.compile(r"blocks\.(\d+)\.")


def guess_dit(state: Mapping[str, Tensor], source: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments (JSON values) of the model; heads are those of the size with that width.

    Raises:
        ValueError: the weights do not tell which model they are for.
    """
    if source == "diffusers_dit":
        raise unclear(source, "a DiT from diffusers may have been trained with either time frequencies", "dit_xl_2_sincos2d")
    kernel = state["x_embedder.proj.weight"]
    channels = 4 if kernel.ndim == 2 else kernel.shape[1]
    patch = math.isqrt(kernel.shape[1] // 4) if kernel.ndim == 2 else kernel.shape[-1]
    width = kernel.shape[0]
    size = next((name for name, values in SIZES.items() if values["hidden_size"] == width), None)
    if size is None:
        raise unclear(source, f"{width} channels are those of none of the sizes {list(SIZES)}", "dit_s_2_sincos2d")
    if source == "dit":
        name = f"dit_{size}_{patch}"
        raise unclear(source, f"DiT ({name}_sincos2d) and SiT ({name}_sit) have the same keys and shapes", f"{name}_sincos2d")
    variant = {"sit": "sit", "lightningdit": "lightning", "harope": "harope"}.get(source)
    if variant is None:
        variant = "fitv2" if "global_adaLN_modulation.1.weight" in state else "fit"
    kwargs: dict[str, Any] = {
        "depth": 1 + max((int(m[1]) for m in map(_BLOCK.match, state) if m), default=0), "in_channels": channels,
        "num_classes": state["y_embedder.embedding_table.weight"].shape[0] - 1,
    }  # fmt: skip
    if patch not in PATCHES:
        kwargs["patch_size"], patch = patch, PATCHES[0]
    if source == "lightningdit":
        kwargs |= _lightning(state)
    if "pos_embed" in state:
        side = math.isqrt(state["pos_embed"].shape[1])
        kwargs["input_size"] = side * kwargs.get("patch_size", patch)
    return f"dit_{size}_{patch}_{variant}", kwargs


def _lightning(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """LightningDiT's switches, each of which leaves a trace in keys or shapes."""
    own: dict[str, Any] = {}
    if "blocks.0.norm1.weight" not in state:
        own["norm"] = "layer"
    if "blocks.0.mlp.w12.weight" not in state:
        own["mlp"] = "gelu"
    if "blocks.0.attn.q_norm.weight" in state:
        own["qk_norm"] = True
    if state["blocks.0.adaLN_modulation.1.weight"].shape[0] == 4 * state["x_embedder.proj.weight"].shape[0]:
        own["shift"] = False
    if "feat_rope.freqs_cos" not in state:
        own |= {"encoding": "sincos2d", "encoding_kwargs": {"preset": "dit"}}
    return own


def unclear(source: str, why: str, example: str) -> ValueError:
    return ValueError(f"convert: the model for these {source} weights is not clear: {why}. Name it, e.g. --model {example}.")
