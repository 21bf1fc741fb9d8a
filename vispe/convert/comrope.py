"""Longin-Yu/ComRoPE: a CLIP-shaped ViT with angle matrices in every attention (AP, LD, and its own LieRE).

Official weights were never published; this is for parity and for models trained with that code. The model must be
created with pre_norm=True, act_layer="quick_gelu" and LayerNorm's eps 1e-5. Of each angle matrix P only P − Pᵀ acts:
ours holds its strict upper triangle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .report import Draft
from .tables import Grid

ENCODINGS = ("comrope", "comrope_ap", "comrope_ld", "liere_comrope")  # whose weights these are
_ROOT = "vision_model."
_LAYER = re.compile(r"vision_model\.encoder\.layers\.(\d+)\.(.+)")
_PARTS = {
    "layer_norm1": "norm1", "layer_norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
    "self_attn.out_proj": "attn.proj",
}  # fmt: skip
_STEM = {
    "vision_model.pre_layrnorm": "norm_pre", "vision_model.post_layernorm": "norm", "classification_head": "head",
}  # fmt: skip
_APE = (
    "the official code samples its absolute table with swapped axes, so that columns never enter; no encoding here does that. "
    "Load without it (strict=False), or train with 'learned+comrope'"
)


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    return "vision_model.pre_layrnorm.weight" in keys and any(k.startswith("classification_head.") for k in keys)


def upper_triangle(freqs: Tensor) -> Tensor:
    """Official matrices P (..., b, b) to the strict upper triangles of P − Pᵀ, (..., b (b − 1) / 2) row-major."""
    row, col = torch.triu_indices(freqs.shape[-1], freqs.shape[-1], offset=1, device=freqs.device)
    return freqs[..., row, col] - freqs[..., col, row]


def encoding_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Official `freqs` (H, 1 or axes, m, b, b) and `multiplier` (1 or H, axes, m, 1, 1) to the parameters of our
    encoding."""
    out = {}
    if "freqs" in tensors:
        skew = upper_triangle(tensors["freqs"])
        out["skew"] = skew.squeeze(1) if skew.shape[1] == 1 and skew.ndim == 4 else skew
    if "multiplier" in tensors:
        out["multiplier"] = tensors["multiplier"][..., 0, 0]
    return out


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "comrope")
    ours = model.state_dict()
    for key in list(draft.left):
        if key == "vision_model.embeddings.class_embedding":
            draft.put("cls_token", draft.left[key][None, None], key)
        elif key == "vision_model.embeddings.patch_embedding.weight":
            draft.move(key, "patch_embed.proj.weight")
            if "patch_embed.proj.bias" in ours:
                draft.put("patch_embed.proj.bias", torch.zeros_like(ours["patch_embed.proj.bias"]))
                draft.report.notes.append("patch_embed.proj.bias set to zero: the source has none")
        elif key == "vision_model.embeddings.position_embedding":
            draft.refuse(key, _APE)
        else:
            stem = next((s for s in _STEM if key.startswith(s + ".")), None)
            if stem is not None:
                draft.move(key, _STEM[stem] + key[len(stem) :])
    layers = sorted({int(m[1]) for m in map(_LAYER.fullmatch, draft.left) if m})
    for i in layers:
        _layer(draft, i, ours)
    return draft


def _layer(draft: Draft, i: int, ours: dict[str, Tensor]) -> None:
    root = f"{_ROOT}encoder.layers.{i}."
    for old, new in _PARTS.items():
        for kind in ("weight", "bias"):
            if f"{root}{old}.{kind}" in draft.left:
                draft.move(f"{root}{old}.{kind}", f"blocks.{i}.{new}.{kind}")
    for kind in ("weight", "bias"):
        names = [f"{root}self_attn.{side}_proj.{kind}" for side in "qkv"]
        if all(name in draft.left for name in names):
            draft.put(f"blocks.{i}.attn.qkv.{kind}", torch.cat([draft.left[name] for name in names]), *names)
    names = {n: f"{root}self_attn.{n}" for n in ("freqs", "multiplier") if f"{root}self_attn.{n}" in draft.left}
    if not names:
        return
    own = next((k.split(".")[1] for k in ours if k.endswith(f".{i}.skew") and k.startswith("encoding.")), None)
    if own is None:
        for name in names.values():
            draft.refuse(name, "the model has no angle matrices; create it with comrope_ap, comrope_ld or liere_comrope")
        return
    for name, tensor in encoding_tensors({n: draft.left[key] for n, key in names.items()}).items():
        old = names["freqs" if name == "skew" else name]
        if f"encoding.{own}.{i}.{name}" in ours:
            draft.put(f"encoding.{own}.{i}.{name}", tensor, old)
        else:
            draft.refuse(old, f"the model's {own} has no {name}; the source was trained with comrope_ld")
