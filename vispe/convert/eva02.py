"""timm's Eva layouts (EVA-02, the SBB models with RoPE, DINOv3 and rope-vit as timm holds them), and EVA-02's own names.

Three things differ from a plain ViT: projections apart or fused with a bias for queries and values only
(`q_proj.weight`, `q_bias`, ...; keys have none), LayerScale as `gamma_1`, and rotary tables that the original saves under
every block. Angles are computed here, so tables are left behind, after a comparison with the model's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..positions import patch_grid
from . import plain, rope_vit
from .report import Draft
from .tables import Grid

ENCODINGS = ("rope_eva02", "rope_timm")  # whose weights these are
_GAMMA = re.compile(r"(blocks\.\d+)\.gamma_([12])")
_SIDES = re.compile(r"(blocks\.\d+\.attn)\.(?:q_bias|q_proj\.(?:weight|bias))")
_ROPE = re.compile(r"(?:^|\.)rope\w*\.")
_ORIGINAL = (
    ("mlp.w12.", "mlp.fc1."), ("mlp.ffn_ln.", "mlp.norm."), ("attn.inner_attn_ln.", "attn.norm."), ("mlp.w1.", "mlp.fc1_g."),
    ("mlp.w2.", "mlp.fc1_x."), ("mlp.w3.", "mlp.fc2."),
)  # fmt: skip


def matches(keys: Iterable[str]) -> bool:
    marks = (".attn.q_bias", ".attn.q_proj.weight", ".mlp.fc1_g.weight", ".mlp.w1.weight", ".rope.freqs_cos")
    return any(key.endswith(marks) for key in keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "eva02")
    for key in list(draft.left):
        if _ROPE.search(key) and key != "rope.freqs" and key not in model.state_dict():
            _angles(draft, model, key)
        elif key.startswith("lm_head."):
            draft.drop(key, "the head of masked pre-training, not part of the encoder")
    _say_when_unrotated(draft, model)
    finish(draft, model, source_grid)
    return draft


def finish(draft: Draft, model: nn.Module, source_grid: Grid | None) -> None:
    """Projections, LayerScale and names that Eva, BEiT and DINOv3 share; then everything that has timm's names."""
    ours = set(model.state_dict())
    for stem in sorted({m[1] for m in map(_SIDES.fullmatch, set(draft.left) - ours) if m}):
        _projections(draft, ours, stem)
    for key in list(draft.left):
        if key in ours:  # of timm's own models, which have all of this themselves
            continue
        if key == "rope.freqs":
            rope_vit.place_frequencies(draft, model, key)
        elif found := _GAMMA.fullmatch(key):
            new = f"{found[1]}.ls{found[2]}.gamma"
            if new in ours:
                draft.move(key, new)
            else:
                draft.refuse(key, "the model has no LayerScale; create it with init_values=1e-5")
        elif (new := _timm_name(key)) in ours:
            draft.move(key, new)
    plain.finish(draft, model, source_grid)


def _timm_name(key: str) -> str:
    for old, new in _ORIGINAL:
        key = key.replace(old, new)
    return key


def _projections(draft: Draft, ours: set[str], stem: str) -> None:
    """Separate projections into one, and biases of queries and values into one with zeros for the keys."""
    for kind in ("weight", "bias"):
        new = f"{stem}.qkv.{kind}"
        names = [_first(draft, f"{stem}.{side}_proj.{kind}", f"{stem}.{side}_bias" if kind == "bias" else "") for side in "qkv"]
        found = [name for name in names if name]
        if kind == "weight" and len(found) == 3 or kind == "bias" and names[0] and names[2]:
            if new in ours:
                parts = [draft.left[name] if name else torch.zeros_like(draft.left[names[0]]) for name in names]
                draft.put(new, torch.cat(parts), *found)
                continue
            for name in found:
                if draft.left[name].any():
                    draft.refuse(name, f"the model has no {new}; create it with qkv_bias=True")
                else:
                    draft.drop(name, "a bias of zeros, which adds nothing")


def _first(draft: Draft, *names: str) -> str | None:
    return next((name for name in names if name in draft.left), None)


def rotary_member(model: nn.Module) -> str | None:
    """The rotary encoding of the model's stack, if it has one."""
    stack = getattr(model, "encoding", {})
    return next((name for name in stack if hasattr(stack.first(name), "frequencies")), None)


def _say_when_unrotated(draft: Draft, model: nn.Module) -> None:
    if hasattr(model, "encoding") and rotary_member(model) is None:
        draft.report.notes.append("models of this layout turn queries and keys, and this one has no rotary encoding")


def _angles(draft: Draft, model: nn.Module, key: str) -> None:
    """Leave a table of angles behind if the model computes the same: (N, head_dim), each angle twice, for N = n · n."""
    table, name, kind = draft.left[key].float(), rotary_member(model), key.rpartition("_")[2]
    side = math.isqrt(table.shape[0])
    if name is None or kind not in ("cos", "sin") or table.ndim != 2 or side * side != table.shape[0]:
        draft.drop(key, "a table of angles, which are computed here")
        return
    member = model.encoding.first(name)
    with torch.no_grad():
        own = getattr(member.prepare(patch_grid(side, side, train=(side, side))), kind)[0, 0]
    own = own.repeat_interleave(2, -1) if member.layout == "interleaved" else own.repeat(1, 2)
    if own.shape != table.shape:
        draft.refuse(key, f"angles of shape {tuple(table.shape)}, {name} has {tuple(own.shape)}; use the source's head width")
        return
    gap, where = (own.to(table.device) - table).abs().flatten().max(0)
    if gap < 1e-2:  # tables may have been saved in bfloat16
        draft.drop(key, f"a table of angles; those that {name} computes agree to {gap.item():.0e}")
    else:
        token, channel = divmod(int(where), table.shape[1])
        draft.refuse(
            key,
            f"the source has {kind} {table[token, channel].item():.4f} at token {token}, channel {channel}, the model's {name} "
            f"{own[token, channel].item():.4f}; give {name} the source's theta and pretrain_grid",
        )
