"""Image weights into a video transformer: the kernel grows frames, tables become tables of space, attention along time starts
as nothing.

Papers: Carreira & Zisserman, CVPR 2017, arXiv 1705.07750 (mean inflation); Arnab et al., ViViT, ICCV 2021, arXiv 2103.15691,
section 3.4 (central frame; attention along time whose output is zero). Chosen here: the attention along time otherwise starts
from the weights of the one in space, and learned rates along time (RoPE-Mixed, ComRoPE-LD) start at zero, so that still
videos are seen as their image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from ..encodings.functional import resample_table
from .files import unwrap
from .report import Draft, Report

Kernel = Literal["centre", "mean"]
TABLES = ("pos_embed", "encoding.learned.pos_embed", "encoding.learned_spacetime.space")
PATCH = "patch_embed.proj.weight"


def inflate(
    state_dict: Mapping[str, Any],
    model: nn.Module,
    *,
    kernel: Kernel = "centre",
    source_grid: tuple[int, int] | None = None,
) -> tuple[dict[str, Tensor], Report]:
    """The weights of an image ViT (timm's names or ours) in the keys of a video transformer, and the account of every key.

    Args:
        state_dict: the image model's; wrappers and prefixes are taken off.
        model: an EncodedVideoTransformer, which does not change; load the result with `strict=False`.
        kernel: "centre", the image's kernel at frame t // 2 of a tubelet and zeros elsewhere; "mean", 1/t of it in every
            frame.
        source_grid: (rows, columns) of a learned table; None takes a square, which the report says.

    Raises:
        ValueError: another kernel, a table that is no square, weights that are no image model's.
    """
    if kernel not in ("centre", "mean"):
        raise ValueError(f"inflate: kernel must be 'centre' or 'mean', got {kernel!r}.")
    state, notes = unwrap(state_dict)
    if PATCH not in state or state[PATCH].ndim != 4:
        got = tuple(state[PATCH].shape) if PATCH in state else "nothing"
        raise ValueError(f"inflate: needs an image model's {PATCH} (C, channels, height, width), got {got}.")
    ours = model.state_dict()
    draft = Draft(state, "image")
    draft.report.notes += notes
    _patches(draft, ours, model, kernel)
    for key in TABLES:
        if key in draft.left:
            _table(draft, ours, model, key, source_grid)
    for key in list(draft.left):
        _entry(draft, ours, key)
    _time(draft, ours)
    draft.report.missing = [key for key in ours if key not in draft.new]
    return draft.new, draft.report


def inflate_kernel(weight: Tensor, frames: int, how: Kernel) -> Tensor:
    """(out, in, h, w) to (out, in, frames, h, w)."""
    if how == "mean":
        return weight[:, :, None].expand(-1, -1, frames, -1, -1).contiguous() / frames
    out = weight.new_zeros(*weight.shape[:2], frames, *weight.shape[2:])
    out[:, :, frames // 2] = weight
    return out


def _patches(draft: Draft, ours: dict[str, Tensor], model: nn.Module, kernel: Kernel) -> None:
    weight = draft.left[PATCH]
    patch = tuple(ours[PATCH].shape[-2:])
    if tuple(weight.shape[-2:]) != patch:
        draft.report.resampled[PATCH] = f"{tuple(weight.shape[-2:])} to {patch} pixels"
        weight = resample_patch_embed(weight, list(patch))
    grown = inflate_kernel(weight, ours[PATCH].shape[2], kernel)
    if grown.shape != ours[PATCH].shape:
        draft.refuse(PATCH, f"gives {tuple(grown.shape)}, the model has {tuple(ours[PATCH].shape)}")
        return
    draft.put(PATCH, grown, PATCH)
    draft.report.notes.append(f"{PATCH}: inflated to {ours[PATCH].shape[2]} frames ({kernel})")


def _table(draft: Draft, ours: dict[str, Tensor], model: nn.Module, key: str, source_grid: tuple[int, int] | None) -> None:
    """A table of an image's patches becomes that of space; rows of prefix tokens are added to those tokens."""
    place = next((k for k in ours if k.endswith("learned_spacetime.space")), None)
    table = draft.left[key]
    if place is None:
        draft.refuse(key, "the model has no table of space; create it with encoding='learned_spacetime' (or '...+' it)")
        return
    if source_grid is None:
        side = math.isqrt(table.shape[1])
        source_grid = (side, side)
        draft.report.notes.append(f"{key}: {side * side} cells taken for a square of {side}x{side}; pass source_grid if not")
    rows = table.shape[1] - source_grid[0] * source_grid[1]
    if not 0 <= rows <= 8:
        raise ValueError(
            f"inflate: {key} has {table.shape[1]} rows, which are no grid {source_grid} behind a few prefix tokens; pass "
            f"source_grid=(rows, columns) of the image model."
        )
    lead, body = table.split((rows, table.shape[1] - rows), dim=1)
    grid = tuple(model.patch_embed.grid_size[-2:])
    if grid != source_grid:
        draft.report.resampled[place] = f"{source_grid[0]}x{source_grid[1]} to {grid[0]}x{grid[1]}"
    draft.put(place, resample_table(body, source_grid, grid, antialias=True, mode="bicubic"), key)
    if rows and "cls_token" in ours and "cls_token" in draft.left:
        draft.put("cls_token", draft.left["cls_token"] + lead[:, :1], "cls_token")
        draft.report.notes.append(f"{key}: the class token's row was added to cls_token")
    elif rows:
        draft.report.notes.append(f"{key}: {rows} rows of prefix tokens, which the model does not have, left out")


def _entry(draft: Draft, ours: dict[str, Tensor], key: str) -> None:
    """Any other key: the same name, the part of the encoding that acts in space, or one more axis."""
    tensor = draft.left[key]
    options = [key, key.replace("encoding.", "encoding.space.", 1), key.replace("encoding.", "encoding.joint.", 1)]
    options += [f"fc_{key}"] if key in ("norm.weight", "norm.bias") else []
    place = next((k for k in options if k in ours), None)
    if place is None:
        prefix = key in ("cls_token", "reg_token", "dist_token")
        why = "the model has no such token" if prefix else "the model has no place for it"
        (draft.drop if prefix else draft.refuse)(key, why)
        return
    wanted = tuple(ours[place].shape)
    if tensor.ndim == 4 and len(wanted) == 5:
        tensor = inflate_kernel(tensor, wanted[2], "centre")  # a PEG's: beyond the ends are zeros, which a mean would see
    elif place.startswith("encoding.") and _lacks_time(tuple(tensor.shape), wanted):
        axis = next(i for i, (a, b) in enumerate(zip(tensor.shape, wanted)) if a != b)
        tensor = torch.cat((tensor.new_zeros(tensor.narrow(axis, 0, 1).shape), tensor), dim=axis)
        draft.report.notes.append(f"{place}: zero along time")
    if tuple(tensor.shape) == wanted:
        draft.put(place, tensor, key)
    elif key.startswith("head."):
        draft.drop(key, f"another number of classes: {tuple(tensor.shape)}, the model has {wanted}")
    else:
        draft.refuse(key, f"is {tuple(tensor.shape)}, the model has {wanted}")


def _lacks_time(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether shapes differ in one axis alone, 2 there and 3 here."""
    return len(shape) == len(wanted) and [(a, b) for a, b in zip(shape, wanted) if a != b] == [(2, 3)]


def _time(draft: Draft, ours: dict[str, Tensor]) -> None:
    """What only the video transformer has: the table of time, and attention along time."""
    for key, tensor in ours.items():
        if key.endswith("learned_spacetime.time"):
            draft.put(key, torch.zeros_like(tensor))
        for own, source in (("attn_time.", "attn."), ("norm_time.", "norm1."), ("ls_time.", "ls1.")):
            origin = key.replace(own, source)
            if own in key and origin in draft.new:
                silent = own == "attn_time." and ".proj." in key
                draft.put(key, torch.zeros_like(tensor) if silent else draft.new[origin].clone())
    if any("attn_time." in key for key in ours):
        draft.report.notes.append("attention along time: from the one in space, with an output of zero")
