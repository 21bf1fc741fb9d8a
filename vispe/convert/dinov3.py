"""facebookresearch/dinov3, and the same weights as timm's hub holds them.

Official names: `storage_tokens`, `rope_embed.periods` (rounded to bfloat16 in released files), `ls1.gamma`, and `qkv.bias`
with `qkv.bias_mask`, which zeroes the keys' part. timm: `reg_token`, no periods, `gamma_1`, `q_bias` and `v_bias`, or no
bias at all where the distilled models' are zero. Periods are numbers of the configuration here; those of the file must be
the same up to the rounding. The model is a `rope_dinov3` with reg_tokens=4, init_values=1e-5 and LayerNorm's eps 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from . import eva02
from .report import Draft
from .tables import Grid

ENCODINGS = ("rope_dinov3",)  # whose weights these are
_BFLOAT16 = 2.0**-8  # largest relative error of rounding to bfloat16
_DROPPED = {
    "mask_token": "a token of masked pre-training, not part of the encoder",
    "local_cls_norm.": "a norm of the small crops of pre-training",
    "projectors.": "heads of distillation",
}


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    if "storage_tokens" in keys or any(key.endswith("rope_embed.periods") for key in keys):
        return True
    return {"blocks.0.gamma_1", "reg_token", "cls_token", "blocks.0.attn.qkv.weight"} <= keys and not (
        {"pos_embed", "blocks.0.attn.qkv.bias"} & keys
    )


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "dinov3")
    ours = set(model.state_dict())
    for key in list(draft.left):
        why = next((text for start, text in _DROPPED.items() if key.startswith(start)), None)
        if key.endswith("rope_embed.periods"):
            _periods(draft, model, key)
        elif key == "storage_tokens" and "reg_token" in ours:
            draft.move(key, "reg_token")
        elif key == "storage_tokens":
            draft.refuse(key, f"the model has no register tokens; create it with reg_tokens={draft.left[key].shape[1]}")
        elif key.endswith("attn.qkv.bias"):
            _bias(draft, ours, key)
        elif why is not None:
            draft.drop(key, why)
    if not any(key.endswith("rope_embed.periods") for key in state):
        unrotated = hasattr(model, "encoding") and _member(model) is None
        draft.report.notes.append(
            "models of this layout turn queries and keys, and this one has no DINOv3 RoPE" if unrotated
            else "the weights hold no periods: those of the model's configuration are taken"
        )  # fmt: skip
    eva02.finish(draft, model, source_grid)
    return draft


def _bias(draft: Draft, ours: set[str], key: str) -> None:
    """The bias with the keys' part masked, as the official layer uses it."""
    bias, mask = draft.left[key], f"{key}_mask"
    origin = (key, mask) if mask in draft.left else (key,)
    if mask in draft.left:
        bias = torch.where(draft.left[mask] == 0, torch.zeros_like(bias), bias)
    if key in ours:
        draft.put(key, bias, *origin)
        return
    for name in origin:
        if bias.any():
            draft.refuse(name, f"the model has no {key}; create it with qkv_bias=True")
        else:
            draft.drop(name, "a bias of zeros, which adds nothing")


def _member(model: nn.Module) -> str | None:
    stack = getattr(model, "encoding", {})
    kinds = {name: getattr(getattr(stack.first(name), "settings", None), "kind", None) for name in stack}
    return next((name for name in stack if name == "rope_dinov3" or kinds[name] == "dinov3"), None)


def _periods(draft: Draft, model: nn.Module, key: str) -> None:
    name, periods = _member(model), draft.left[key].float()
    if name is None:
        draft.refuse(key, "the model has no DINOv3 RoPE; create it with encoding='rope_dinov3'")
        return
    member = model.encoding.first(name)
    freqs = member.frequencies().amax(dim=(0, 1))  # each pair turns with one axis
    own = (2 * math.pi / freqs)[: freqs.numel() // member.axes].to(periods.device)
    if own.shape != periods.shape:
        draft.refuse(
            key,
            f"{periods.numel()} periods, the model's {name} has {own.numel()}; create the model with the source's head width",
        )
        return
    gap = (own - periods).abs() / periods
    if gap.max() <= 1.01 * _BFLOAT16:
        draft.drop(key, f"the model's {name} has the same periods, to {gap.max().item():.1e}")
        return
    where = int(gap.argmax())
    draft.refuse(
        key,
        f"period {where} is {periods[where].item():.4g} in the source and {own[where].item():.4g} in the model's {name} (all: "
        f"{_row(periods)} against {_row(own)}); give {name} the base or the periods of the source",
    )


def _row(values: Tensor) -> str:
    return "[" + ", ".join(f"{v:.4g}" for v in values.tolist()) + "]"
