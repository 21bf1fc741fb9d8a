"""facebookresearch/DiT, SiT, REPA, HARoPE and LightningDiT onto our EncodedDiT; the first three share their keys.

Our keys are theirs; what is left is the place of positions. A saved sin-cos table, or saved tables of a fixed rotation, are
compared with those that the model computes: equal ones are not needed, others are refused, for the model would be another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..encodings.rotary import Rotation
from ..positions import patch_grid
from .report import Draft
from .tables import Grid, fit_own_tables, fit_table

ENCODINGS = ("sincos2d",)  # whose weights these are
_CLOSE = 1e-4  # float32 tables from another arithmetic; another layout is off by 1
_PROJECTOR = "REPA's projection to the features it is aligned with, not part of the model"


def matches(keys: Iterable[str]) -> bool:
    """Plain DiT, SiT and REPA; what LightningDiT and HARoPE add is told by their own files, which come first."""
    return {"x_embedder.proj.weight", "t_embedder.mlp.0.weight", "final_layer.linear.weight"} <= set(keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "dit")
    draft.report.notes.append(
        "the keys of DiT, SiT and REPA are the same: whether the output is a noise or a velocity, and the unit of time, are "
        "the model's prediction_type"
    )
    finish(draft, model, source_grid)
    return draft


def finish(draft: Draft, model: nn.Module, source_grid: Grid | None) -> None:
    """Place everything that has DiT's names; what stays left over is unexpected."""
    ours = set(model.state_dict())
    if source_grid is not None:
        fit_own_tables(draft, model, source_grid)
    for key in list(draft.left):
        if key == "pos_embed":
            place_table(draft, model, key, source_grid)
        elif key.startswith("projectors."):
            draft.drop(key, _PROJECTOR)
        elif key in ours:
            draft.move(key, key)


def place_table(draft: Draft, model: nn.Module, key: str, source_grid: Grid | None) -> None:
    """A frozen table (1, N, C): dropped when the model computes the same, learned when it has a learned one."""
    encoding = getattr(model, "encoding", {})
    if "learned" in encoding:
        fit_table(draft, model, key, source_grid)
        return
    grid = table_grid(draft.left[key].shape[1], model, source_grid)
    fixed = next((name for name in encoding if name.startswith("sincos")), None)
    if fixed is None:
        draft.refuse(key, "the model adds no table; create it with encoding='sincos2d', encoding_kwargs={'preset': 'dit'}")
        return
    own = encoding[fixed].prepare(patch_grid(*grid, train=model.train_grid))
    if same(own, draft.left[key]):
        draft.drop(key, f"the fixed table that {fixed} computes")
    else:
        place = f"a grid of {grid[0]}x{grid[1]}"
        draft.refuse(key, f"not the table that {fixed} computes on {place}; see its presets, or use 'learned'")


def drop_rotation(draft: Draft, model: nn.Module, names: dict[str, str], count: int, source_grid: Grid | None) -> None:
    """Drop saved cosines and sines ({key: "cos" or "sin"}, (N, D) with every number twice) that the model computes itself."""
    grid = table_grid(count, model, source_grid)
    contexts = model.encoding.prepare(patch_grid(*grid, train=model.train_grid))
    turns = [ctx[0] if isinstance(ctx, list) else ctx for ctx in contexts]
    turns = [turn for turn in turns if isinstance(turn, Rotation)]
    for key, kind in names.items():
        if key not in draft.left:
            continue
        if any(same(getattr(t, kind).flatten(0, -3)[0].repeat_interleave(2, dim=-1), draft.left[key]) for t in turns):
            draft.drop(key, "tables of a fixed rotation that the model computes")
        else:
            draft.refuse(key, "not the rotation of this model; create it with the source's encoding, base and train grid")


def table_grid(count: int, model: nn.Module, source_grid: Grid | None) -> Grid:
    """The grid of `count` cells: as given, the model's own, or a square."""
    side = math.isqrt(count)
    for grid in (source_grid, model.train_grid, (side, side)):
        if grid is not None and grid[0] * grid[1] == count:
            return int(grid[0]), int(grid[1])
    raise ValueError(
        f"convert: a table of {count} cells is neither the model's grid {model.train_grid} nor a square; pass "
        f"source_grid=(rows, columns) of the source."
    )


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.double().cpu(), b.detach().double().cpu(), atol=_CLOSE, rtol=0))
