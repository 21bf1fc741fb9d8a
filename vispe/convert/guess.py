"""Which of our models official weights belong to, as far as keys and shapes tell it; what they do not tell is asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..models.vit_zoo import SIZES
from .guess_dit import SOURCES as DIFFUSION
from .guess_dit import guess_dit
from .vjepa2 import guess_vjepa2

_KERNELS = ("patch_embed.proj.weight", "vision_model.embeddings.patch_embedding.weight", "to_patch_embedding.1.weight")
_HEADS = ("head.weight", "classification_head.weight", "mlp_head.1.weight")
_HIDDEN = re.compile(r"(?:blocks\.0\.mlp\.(?:fc1|fc1_g|w1)|vision_model\.encoder\.layers\.0\.mlp\.fc1|"
                     r"transformer\.layers\.0\.1\.fn\.net\.0)\.weight")  # fmt: skip
_BLOCK = re.compile(r"(?:blocks|vision_model\.encoder\.layers|transformer\.layers)\.(\d+)\.")


def guess(state: Mapping[str, Tensor], source: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments (JSON values) of the model for a state dict of a layout (see `recognise`), wrappers taken off.

    Raises:
        ValueError: the weights do not tell which model they are for.
    """
    if source in DIFFUSION:
        return guess_dit(state, source)
    if source == "vjepa2":
        return guess_vjepa2(state)
    if source not in _OF_SOURCE:
        raise _unclear(source, "options of the encoding are not in the weights")
    kernel = _find(state, _KERNELS)
    if kernel is None:
        raise _unclear(source, "there is no patch embedding")
    size = next((name for name, values in SIZES.items() if values["embed_dim"] == kernel.shape[0]), None)
    if size is None:
        raise _unclear(source, f"{kernel.shape[0]} channels are those of none of the sizes {list(SIZES)}")
    patch = kernel.shape[-1] if kernel.ndim == 4 else math.isqrt(kernel.shape[1] // 3)
    variant, own = _OF_SOURCE[source](state, patch)
    return f"vit_{size}_{variant}", _common(state, kernel.shape[0], patch) | own


def _common(state: Mapping[str, Tensor], width: int, patch: int) -> dict[str, Any]:
    """What every ViT is asked: sizes, tokens, biases, norms."""
    head, hidden = _find(state, _HEADS), next((t for key, t in state.items() if _HIDDEN.fullmatch(key)), None)
    kwargs: dict[str, Any] = {
        "patch_size": patch,
        "num_classes": 0 if head is None else head.shape[0],
        "depth": 1 + max((int(m[1]) for m in map(_BLOCK.match, state) if m), default=0),
    }
    if hidden is not None and hidden.shape[0] != 4 * width:
        kwargs["mlp_ratio"] = (hidden.shape[0] + 0.5) / width  # the model takes the whole part of the product
    if any(key.endswith((".gamma_1", ".ls1.gamma")) for key in state):
        kwargs["init_values"] = 1e-5
    if "patch_embed.proj.weight" in state and not any(k.endswith(("qkv.bias", "q_bias", "q_proj.bias")) for k in state):
        kwargs["qkv_bias"] = False
    registers = _find(state, ("reg_token", "storage_tokens", "register_tokens"))
    if registers is not None or "dist_token" in state:
        kwargs["reg_tokens"] = 1 if registers is None else registers.shape[1]
    if "fc_norm.weight" in state:
        kwargs["global_pool"] = "avg"
    if "patch_embed.proj.weight" in state and "cls_token" not in state:
        kwargs |= {"class_token": False, "global_pool": "avg", "fc_norm": "fc_norm.weight" in state}
    return kwargs


def _table(state: Mapping[str, Tensor], patch: int, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The image size that a square table of positions was made for, and the learned encoding's options."""
    cells = state["pos_embed"].shape[1]
    prefix = sum(state[k].shape[1] for k in ("cls_token", "dist_token", "reg_token") if k in state)
    for rows in sorted({0, min(prefix, 1), prefix}):
        side = math.isqrt(cells - rows)
        if side * side == cells - rows:
            return {"img_size": side * patch}, {"prefix_rows": rows > 0}
    raise _unclear(source, f"{cells} rows of pos_embed are no square of patches")


def _plain(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    if "pos_embed" not in state:
        raise _unclear("plain", "there is no table of positions")
    size, options = _table(state, patch, "plain")
    return "learned", size | {"encoding_kwargs": options}


def _irpe(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    sides = "".join(side for side in "qkv" if any(f".rpe_{side}." in key for key in state))
    if sides not in ("k", "qk", "qkv") or "pos_embed" not in state or any(".rp_rows." in key for key in state):
        raise _unclear("irpe", f"the tables on {sides!r} are of no model of the zoo")
    return f"irpe_{sides}", _table(state, patch, "irpe")[0]


def _rope_vit(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    if not {"freqs", "rope.freqs"} & set(state):
        raise _unclear("rope_vit", "without learned frequencies it may be rope_axial, rope_axial_ape or DeiT-III")
    if "pos_embed" in state:
        return "rope_mixed_ape", _table(state, patch, "rope_vit")[0]
    return "rope_mixed", {}


def _cpvt(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    if "pos_block.0.proj.0.weight" in state:
        raise _unclear("cpvt", "a pyramid, which is timm's Twins")
    if "pos_block.1.proj.weight" in state:
        raise _unclear("cpvt", "the blocks that its PEGs follow are not in the weights")
    kernel = state["pos_block.0.proj.weight"].shape[-1]
    return ("cpe" if "cls_token" in state else "cpe_gap"), {"encoding_kwargs": {"kernel_size": kernel}}


def _comrope(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    root = "vision_model.encoder.layers.0.self_attn."
    if f"{root}freqs" not in state:
        raise _unclear("comrope", "there are no angle matrices")
    if state[f"{root}freqs"].shape[1] > 1:
        raise _unclear("comrope", "several matrices a block are its LieRE, liere_comrope")
    variant = "comrope_ld" if f"{root}multiplier" in state else "comrope_ap"
    options = {"block_size": state[f"{root}freqs"].shape[-1]}
    return variant, {"pre_norm": True, "act_layer": "quick_gelu", "encoding_kwargs": options}


def _liere(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    raw = next(t for key, t in state.items() if key.endswith("generator_raw_params"))
    return "liere", {"qkv_bias": False, "encoding_kwargs": {"block_size": raw.shape[-1]}}


def _beit(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    rows = next(t for key, t in state.items() if key.endswith("relative_position_bias_table")).shape[0] - 3
    side = math.isqrt(max(rows, 0))
    if side * side != rows or side % 2 == 0:
        raise _unclear("beit", f"{rows} rows of the tables are no square of patches")
    own: dict[str, Any] = {"img_size": (side + 1) // 2 * patch}
    if "pos_embed" in state:
        own |= {"encoding": "learned+beit_bias", "encoding_kwargs": {"learned": {"prefix_rows": True}}}
    return "beit_bias", own


def _dinov3(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    own = {"mlp_layer": "SwiGLU", "act_layer": "silu"} if "blocks.0.mlp.w1.weight" in state else {}
    return "rope_dinov3", own


def _eva02(state: Mapping[str, Tensor], patch: int) -> tuple[str, dict[str, Any]]:
    own: dict[str, Any] = {}
    fc1, fc2 = (_find(state, (f"blocks.0.mlp.{name}.weight",)) for name in ("fc1", "fc2"))
    if fc1 is not None and fc2 is not None and fc1.shape[0] == 2 * fc2.shape[1]:
        own |= {"mlp_layer": "SwiGLUPacked", "act_layer": "silu"}
    if {"blocks.0.mlp.fc1_g.weight", "blocks.0.mlp.w1.weight"} & set(state):
        own |= {"mlp_layer": "SwiGLU", "act_layer": "silu"}
        own["scale_mlp_norm"] = bool({"blocks.0.mlp.norm.weight", "blocks.0.mlp.ffn_ln.weight"} & set(state))
        own["scale_attn_norm"] = bool({"blocks.0.attn.norm.weight", "blocks.0.attn.inner_attn_ln.weight"} & set(state))
    if "pos_embed" in state:
        size, options = _table(state, patch, "eva02")
        own |= size | {"encoding": "learned+rope_eva02", "encoding_kwargs": {"learned": options}}
    return "rope_eva02", own


_OF_SOURCE: dict[str, Callable[[Mapping[str, Tensor], int], tuple[str, dict[str, Any]]]] = {
    "plain": _plain, "irpe": _irpe, "rope_vit": _rope_vit, "cpvt": _cpvt, "comrope": _comrope, "liere": _liere,
    "beit": _beit, "dinov3": _dinov3, "eva02": _eva02,
}  # fmt: skip


def _find(state: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor | None:
    return next((state[name] for name in names if name in state), None)


def _unclear(source: str, why: str) -> ValueError:
    return ValueError(
        f"convert: the model for these {source} weights is not clear: {why}. Name it, e.g. --model vit_s_{source} "
        f"--model-kwargs '{{\"img_size\": 224}}'."
    )
