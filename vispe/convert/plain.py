"""Plain ViT weights in timm's layout: timm, DeiT, DeiT distilled, MAE, DINO, DINOv2, and our own checkpoints.

Keys are ours already; what is left to do is the learned table and the parts that only pre-training needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from .report import Draft
from .tables import Grid, fit_own_tables, fit_table

ENCODINGS = ("learned", "sincos2d")  # whose weights these are
_TRAINING_ONLY = {
    "mask_token": "a token of masked pre-training, not part of the encoder",
    "decoder_": "MAE's decoder, not part of the encoder",
    "pre_logits.": "a representation layer that no released classifier uses",
}


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    return "patch_embed.proj.weight" in keys and any(k.endswith("attn.qkv.weight") for k in keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "plain")
    finish(draft, model, source_grid)
    return draft


def finish(draft: Draft, model: nn.Module, source_grid: Grid | None) -> None:
    """Place everything that has timm's names; what stays left over is unexpected."""
    ours = set(model.state_dict())
    if source_grid is not None:
        fit_own_tables(draft, model, source_grid)
    for key in list(draft.left):
        reason = next((why for start, why in _TRAINING_ONLY.items() if key.startswith(start)), None)
        if key == "pos_embed":
            _table(draft, model, key, ours, source_grid)
        elif key == "encoding.learned.pos_embed" and key in ours:
            fit_table(draft, model, key, source_grid)
        elif key in ours:
            draft.move(key, key)
        elif key == "dist_token" and "reg_token" in ours:
            draft.move(key, "reg_token")
            draft.report.notes.append("dist_token became the register token")
        elif key == "register_tokens" and "reg_token" in ours:  # DINOv2, with its registers behind the class token as here
            draft.move(key, "reg_token")
        elif reason is not None:
            draft.drop(key, reason)
        elif key.startswith("head.") and not any(k.startswith("head.") for k in ours):
            draft.drop(key, "the model has no classifier")


def _table(draft: Draft, model: nn.Module, key: str, ours: set[str], source_grid: Grid | None) -> None:
    if "encoding.learned.pos_embed" in ours:
        fit_table(draft, model, key, source_grid)
    elif key in ours:
        draft.move(key, key)
    else:
        draft.refuse(key, "the model has no learned table; create it with encoding='learned' or 'learned+...'")
