"""StanfordMIMI/LieRE: vit-pytorch's layout with generators of rotations for every layer.

`position_encoder.generator_raw_params` is (axes, layers, heads · blocks, g, g), of which only the strict upper triangles
act. The official loop overwrites the rotations of every layer with those of layer 0, so released weights hold numbers for
the other layers that nothing ever read: layers="shared" takes layer 0, "per_layer" takes them all and computes something
else. The model must be created with qkv_bias=False and LayerNorm's eps 1e-5. Patches are flattened rows, columns, colours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid, fit_table

ENCODINGS = ("liere",)  # whose weights these are
_RAW = "generator_raw_params"
_NAMES = (
    (r"transformer\.layers\.(\d+)\.0\.norm\.(\w+)", r"blocks.\1.norm1.\2"),
    (r"transformer\.layers\.(\d+)\.0\.fn\.to_qkv\.(\w+)", r"blocks.\1.attn.qkv.\2"),
    (r"transformer\.layers\.(\d+)\.0\.fn\.to_out\.0\.(\w+)", r"blocks.\1.attn.proj.\2"),
    (r"transformer\.layers\.(\d+)\.1\.norm\.(\w+)", r"blocks.\1.norm2.\2"),
    (r"transformer\.layers\.(\d+)\.1\.fn\.net\.0\.(\w+)", r"blocks.\1.mlp.fc1.\2"),
    (r"transformer\.layers\.(\d+)\.1\.fn\.net\.3\.(\w+)", r"blocks.\1.mlp.fc2.\2"),
    (r"mlp_head\.0\.(\w+)", r"norm.\1"),
    (r"mlp_head\.1\.(\w+)", r"head.\1"),
    (r"to_patch_embedding\.1\.(\w+)", r"patch_embed.proj.\1"),
)


def matches(keys: Iterable[str]) -> bool:
    return any(key.rpartition(".")[2] == _RAW for key in keys)


def triangles(raw: Tensor, blocks: int) -> Tensor:
    """Official (axes, heads · blocks, g, g) of one layer to our (axes, heads, blocks, g (g − 1) / 2)."""
    if raw.ndim != 4 or raw.shape[-1] != raw.shape[-2] or raw.shape[1] % blocks:
        raise ValueError(
            f"convert: generators of one layer must be (axes, heads · {blocks} blocks, g, g), got {tuple(raw.shape)}; create "
            f"the model with the source's head width and block_size."
        )
    row, col = torch.triu_indices(raw.shape[-1], raw.shape[-1], 1, device=raw.device)
    return raw[..., row, col].unflatten(1, (-1, blocks))


def patch_kernel(weight: Tensor, channels: int) -> Tensor:
    """A linear layer on patches flattened as rows, columns, colours to the kernel of a convolution, (C, channels, p, p)."""
    side = math.isqrt(weight.shape[1] // channels)
    if channels * side * side != weight.shape[1]:
        raise ValueError(
            f"convert: to_patch_embedding.1.weight has {weight.shape[1]} inputs, which are no square patches of {channels} "
            f"colours; create the model with the source's in_chans."
        )
    return weight.unflatten(1, (side, side, channels)).permute(0, 3, 1, 2)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "liere")
    ours = model.state_dict()
    for key in list(draft.left):
        new = next((re.sub(old, new, key) for old, new in _NAMES if re.fullmatch(old, key)), None)
        if key.rpartition(".")[2] == _RAW:
            _generators(draft, model, key)
        elif key == "pos_embedding":
            _table(draft, ours, model, key, source_grid)
        elif new == "patch_embed.proj.weight" and new in ours:
            draft.put(new, patch_kernel(draft.left[key], ours[new].shape[1]), key)
        elif new == "head.weight" and new not in ours or new == "head.bias" and new not in ours:
            draft.drop(key, "the model has no classifier")
        elif new in ours:
            draft.move(key, new)
    plain.finish(draft, model, source_grid)
    return draft


def _generators(draft: Draft, model: nn.Module, key: str) -> None:
    if "liere" not in getattr(model, "encoding", {}):
        draft.refuse(key, "the model has no generators; create it with encoding='liere'")
        return
    first, raw = model.encoding.first("liere"), draft.left[key]
    if raw.ndim != 5:
        raise ValueError(f"convert: {key} must be (axes, layers, heads · blocks, g, g), got {tuple(raw.shape)}.")
    if not first.per_layer:
        draft.put("encoding.liere.skew", triangles(raw[:, 0], first.blocks), key)
        if raw.shape[1] > 1:
            draft.report.notes.append(f"{key}: layer 0 of {raw.shape[1]} taken; the official code uses it in every layer")
        return
    for i in range(raw.shape[1]):
        draft.put(f"encoding.liere.{i}.skew", triangles(raw[:, i], first.blocks), key)
    draft.report.notes.append(
        f"{key}: a set for each layer taken, as written; the official code computes every layer with layer 0's, and so does "
        f"layers='shared'"
    )


def _table(draft: Draft, ours: dict[str, Tensor], model: nn.Module, key: str, source_grid: Grid | None) -> None:
    if "encoding.learned.pos_embed" in ours:
        fit_table(draft, model, key, source_grid)
    elif not draft.left[key].any():
        draft.drop(key, "a table of zeros, which adds nothing")
    else:
        draft.refuse(key, "the model has no learned table; create it with encoding='learned+liere'")
