"""V-JEPA 2 (facebookresearch/vjepa2 at c2963a4, and transformers' VJEPA2Model): the encoder of videos.

The original has timm's names with a 5-D patch kernel and no table, under "target_encoder" (what its hub functions load),
"ema_encoder" or "encoder"; transformers has names of its own and projections apart. The function is that of rope3d with
preset="vjepa2", so any other encoding is refused even where every shape fits. The last norm is one of tokens: the model has
fc_norm=False. Predictor, pooler and classifier are dropped: they are no part of the encoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid

ENCODINGS = ("rope3d",)  # whose weights these are
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 22, 1664: 26}  # of the released sizes, by width
KERNEL = "patch_embed.proj.weight"
_PREFIXES = ("backbone.", "vjepa2.")
_HUB = {"embeddings.patch_embeddings.proj.": "patch_embed.proj.", "layernorm.": "norm."}
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.*)")
_SIDES = re.compile(r"blocks\.\d+\.attn\.query\.(?:weight|bias)")
_OTHERS = {
    "predictor.": "the predictor of masked pre-training, not part of the encoder",
    "pooler.": "the probe's attentive pooler, not part of the encoder",
    "classifier.": "the probe's classifier, not part of the encoder",
}


def short(key: str) -> str:
    """Name of an entry in the original's encoder; transformers' query, key and value stay apart."""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    if found := _LAYER.fullmatch(key):
        return f"blocks.{found[1]}.{found[2].replace('attention.', 'attn.')}"
    for old, new in _HUB.items():
        if key.startswith(f"encoder.{old}"):
            return new + key.removeprefix(f"encoder.{old}")
    return key


def matches(state: Mapping[str, Any]) -> bool:
    """Tubelets, the last norm, and neither a table, a token nor a classifier of an image model."""
    names = {short(key): key for key in state}
    kernel = state[names[KERNEL]] if KERNEL in names else None
    others = {"pos_embed", "cls_token", "head.weight", "blocks.0.attn.q_bias", "blocks.0.attn_time.qkv.weight"}
    return getattr(kernel, "ndim", 0) == 5 and "norm.weight" in names and not others & set(names)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "vjepa2")
    draft.rename({key: short(key) for key in state if short(key) != key})
    for key in list(draft.left):
        if reason := next((why for start, why in _OTHERS.items() if key.startswith(start)), None):
            draft.drop(key, reason)
    for stem in sorted({key.rpartition(".query.")[0] for key in draft.left if _SIDES.fullmatch(key)}):
        for kind in ("weight", "bias"):
            names = [f"{stem}.{side}.{kind}" for side in ("query", "key", "value")]
            if all(name in draft.left for name in names):
                draft.put(f"{stem}.qkv.{kind}", torch.cat([draft.left[name] for name in names]), *names)
    if _preset(model) != "vjepa2":
        draft.refuse(
            KERNEL,
            "V-JEPA 2 turns queries and keys as encoding='rope3d' with encoding_kwargs={'preset': 'vjepa2'} does, and this "
            "model does not; create it so (for a checkpoint of this package, pass source='vispe')",
        )
    if "norm.weight" in draft.left and "norm.weight" not in model.state_dict():
        for kind in ("weight", "bias"):
            draft.refuse(f"norm.{kind}", "normalises tokens, the model only their mean; create it with fc_norm=False")
    plain.finish(draft, model, source_grid)
    return draft


def _preset(model: nn.Module) -> str | None:
    stack = getattr(model, "encoding", {})
    return stack["rope3d"].preset if "rope3d" in stack and len(stack) == 1 else None


def guess_vjepa2(state: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the model. Its 256 pixels and 64 frames are not in the weights, and nothing depends on them."""
    named = {short(key): tensor for key, tensor in state.items()}
    width, _, tubelet, patch, _ = named[KERNEL].shape
    if width not in HEADS:
        raise ValueError(
            f"convert: {width} channels are of none of the released V-JEPA 2 encoders {sorted(HEADS)}; name the model, e.g. "
            f"--model vid_b_rope3d --model-kwargs '{{\"embed_dim\": {width}, \"num_heads\": 16}}'."
        )
    blocks = [int(key.split(".")[1]) for key in named if key.startswith("blocks.")]
    return "vid_b_rope3d", {
        "embed_dim": width, "depth": max(blocks) + 1, "num_heads": HEADS[width], "patch_size": patch, "tubelet_size": tubelet,
        "mlp_ratio": (named["blocks.0.mlp.fc1.weight"].shape[0] + 0.5) / width, "img_size": 256, "num_frames": 64,
        "num_classes": 0, "fc_norm": False, "encoding_kwargs": {"preset": "vjepa2"},
    }  # fmt: skip
