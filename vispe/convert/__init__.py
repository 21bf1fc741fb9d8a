"""Weights from elsewhere: official state dicts onto our models, every key accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from . import (
    beit,
    comrope,
    cpvt,
    diffusers_dit,
    dinov3,
    dit,
    eva02,
    fit,
    harope,
    irpe,
    irpe_detr,
    kprpe,
    liere,
    lightningdit,
    plain,
    rope_vit,
    seqpe,
    sit,
    swin,
    vjepa2,
)
from .files import grid_of, noted_grid, read, stored_grid, unwrap
from .permute import permute_rope
from .report import Report
from .tables import Grid

# In the order they are tried: every layout is told from the ones below it by a key of its own.
SOURCES: dict[str, ModuleType] = {
    "comrope": comrope, "irpe_detr": irpe_detr, "irpe": irpe, "cpvt": cpvt, "liere": liere, "kprpe": kprpe,
    "seqpe": seqpe, "swin": swin,
    "harope": harope, "lightningdit": lightningdit, "diffusers_dit": diffusers_dit, "fit": fit,
    "sit": sit, "dit": dit,
    "vjepa2": vjepa2, "beit": beit, "dinov3": dinov3, "eva02": eva02, "rope_vit": rope_vit, "plain": plain,
}  # fmt: skip

__all__ = ["Report", "SOURCES", "adapt", "convert", "load", "permute_rope", "recognise"]


def recognise(state_dict: Mapping[str, Any]) -> str:
    """The name of the layout that these keys belong to ("vispe" for our own).

    Raises:
        ValueError: no known layout.
    """
    if any(key.startswith("encoding.") for key in state_dict):
        return "vispe"
    for name, source in SOURCES.items():
        if source.matches(state_dict):
            return name
    raise ValueError(
        f"convert: {len(state_dict)} keys of no known layout, e.g. {sorted(state_dict)[:4]}; known layouts are "
        f"{['vispe', *SOURCES]}. If they are timm's names behind a prefix, take the prefix off."
    )


def convert(
    state_dict: Mapping[str, Any], model: nn.Module, source: str = "auto", *, source_grid: Grid | None = None
) -> tuple[dict[str, Tensor], Report]:
    """An official state dict in our model's keys, and the account of it. Neither the model nor the input changes.

    Args: state_dict: tensors by name; wrappers ("model", "state_dict") and prefixes ("module.") are taken off. model:
        the model they are for; EncodedVisionTransformer, or timm's Twins for its pyramid. source: a name of `SOURCES`,
        "vispe", or "auto" to tell it from the keys. source_grid: (rows, columns) of the grid that learned tables were
        made for; our own training checkpoints say it themselves. Without it, a table with as many rows as the model's is
        taken for the model's grid, and a square number of rows for a square, which the report then says.

    Returns:
        The new state dict (differentiable in the old), and a `Report` of every key.

    Raises:
        ValueError: unknown source or layout, a table whose grid cannot be told.
    """
    source_grid = stored_grid(state_dict) if source_grid is None else source_grid
    state, notes = unwrap(state_dict)
    name = recognise(state) if source == "auto" else source
    if name != "vispe" and name not in SOURCES:
        raise ValueError(f"convert: source must be 'auto', 'vispe' or one of {tuple(SOURCES)}, got {source!r}.")
    draft = (plain if name == "vispe" else SOURCES[name]).translate(state, model, source_grid)
    draft.report.source = name
    draft.report.notes += notes
    for key in list(draft.left):
        draft.refuse(key, "the model has no place for it")
    draft.report.missing = [key for key in model.state_dict() if key not in draft.new]
    return draft.new, draft.report


def load(
    model: nn.Module,
    weights: str | Path | Mapping[str, Any],
    source: str = "auto",
    *,
    strict: bool = True,
    source_grid: Grid | None = None,
) -> Report:
    """Load weights from a file or a state dict into a model: all of them, or none when anything is wrong.

    Args: weights: .safetensors, .pth, .pt, .ckpt or .bin (read without running code in it), or a state dict. source,
        source_grid: see `convert`. strict: refuse weights that leave one of the model's keys without a value or bring
        one that it has no place for. Otherwise those are left out and reported, entries of another shape with them.

    Returns:
        What became of every key.

    Raises:
        FileNotFoundError, ValueError: naming the file or key; the model is as it was before.
    """
    content = weights if isinstance(weights, Mapping) else read(weights)
    if source_grid is None and not isinstance(weights, Mapping):
        source_grid = noted_grid(weights)
    try:
        new, report = convert(content, model, source, source_grid=source_grid)
        _check_shapes(new, model, report, strict)
        if strict and not report.complete:
            raise ValueError(
                f"load: {report.source} weights do not fit this model: {report.problems()}. Create the model with the "
                f"options of the source, or pass strict=False to load the rest."
            )
    except ValueError as error:
        raise error if isinstance(weights, Mapping) else ValueError(f"{weights}: {error}") from error
    with torch.no_grad():
        model.load_state_dict(new, strict=False)
    return report


def adapt(
    state_dict: Mapping[str, Any], model: nn.Module, *, source_grid: Grid | None = None
) -> dict[str, Tensor]:
    """timm's hook for pretrained weights: our own layout at any image size, plain ViTs, and the layouts of `SOURCES`.

    timm itself goes on to check names and shapes and to adapt the classifier and the input channels. The grid of a
    learned table is `source_grid`, else that of the configuration that timm saved with the weights, else found as in
    `convert`.
    """
    state, _ = unwrap(state_dict)
    new, report = convert(state, model, source_grid=source_grid or _saved_grid(state, model))
    return new | {key: state[key] for key in report.unexpected}


def _saved_grid(state: dict[str, Tensor], model: nn.Module) -> Grid | None:
    """The grid of the weights, from the arguments that timm saved beside them; None without such arguments.

    The `input_size` of timm's default configuration would not do: it is the name's, not that of the weights at hand.
    """
    size = getattr(model, "pretrained_model_args", {}).get("img_size")
    kernel = state.get("patch_embed.proj.weight")
    if size is None or kernel is None or not hasattr(model, "encoding"):
        return None
    height, width = grid_of(size, kernel, padded=model.patch_embed.dynamic_img_pad)
    table = state.get("encoding.learned.pos_embed", state.get("pos_embed"))
    if table is None or "learned" not in model.encoding:
        return height, width
    prefix = table.shape[1] - height * width
    return (height, width) if 0 <= prefix <= model.encoding["learned"].prefix_rows else None


def _check_shapes(new: dict[str, Tensor], model: nn.Module, report: Report, strict: bool) -> None:
    wanted = model.state_dict()
    for key, tensor in list(new.items()):
        if key not in wanted:
            why = "the model has no such entry"
        elif tensor.shape != wanted[key].shape:
            why = f"shape {tuple(tensor.shape)}, the model has {tuple(wanted[key].shape)}"
        else:
            continue
        if strict and key in wanted:
            raise ValueError(
                f"load: {key} ({report.source}) has {why}; create the model with the size of the source, or pass "
                f"strict=False to keep the model's own values there."
            )
        origin = report.used.pop(key)
        del new[key]
        report.unexpected |= dict.fromkeys(origin or (key,), f"{key}: {why}")
        if key in wanted:
            report.missing.append(key)
