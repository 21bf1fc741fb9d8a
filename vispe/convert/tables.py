"""Learned position tables on their way to another grid. The source's grid is never guessed in silence."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..encodings.functional import resample_table
from ..encodings.stack import fit_tables
from .report import Draft

Grid = tuple[int, ...]  # rows and columns, of videos with the frames ahead of them
TABLE = "encoding.learned.pos_embed"


def fit_table(draft: Draft, model: nn.Module, key: str, source_grid: Grid | None) -> None:
    """Put the source's table `key` at `encoding.learned.pos_embed`, resampled to the model's grid when it must be."""
    learned = model.encoding["learned"]
    table = draft.left[key]
    if table.ndim != 3 or table.shape[-1] != learned.dim:
        raise ValueError(
            f"convert: {key} must be (1, rows, {learned.dim}), got {tuple(table.shape)}; create the model with the width of "
            f"the source."
        )
    grid, rows = _source_grid(draft, model, table, source_grid)
    lead, body = table.split((rows, grid[0] * grid[1]), dim=1)
    if rows < learned.prefix_rows:  # a token that had no row had nothing added to it
        lead = torch.cat((lead, lead.new_zeros(1, learned.prefix_rows - rows, learned.dim)), dim=1)
        draft.report.notes.append(f"{key}: {learned.prefix_rows - rows} prefix tokens without a row got a row of zeros")
    body = resample_table(body, grid, learned.grid, antialias=learned.antialias, mode=learned.interpolation)
    draft.put(TABLE, torch.cat((lead, body), dim=1), key)
    if grid != learned.grid:
        kernel = f"{learned.interpolation}, {'with' if learned.antialias else 'without'} antialiasing"
        draft.report.resampled[TABLE] = f"{grid[0]}x{grid[1]} to {learned.grid[0]}x{learned.grid[1]} ({kernel})"


def fit_own_tables(draft: Draft, model: nn.Module, source_grid: Grid) -> None:
    """Put the tables of other encodings (biases over offsets and the like) under our own names, made for `source_grid`.

    Of a video's (T, H, W), encodings of frames alone have (H, W), those along time (T,).
    """
    for name, encoding in model.encoding.encodings() if hasattr(model, "encoding") else ():
        keys = {key: f"encoding.{name}.{key}" for key in encoding.state_dict()}
        if name == "learned" or not hasattr(encoding, "set_grid") or any(k not in draft.left for k in keys.values()):
            continue
        cells = {len(source_grid): source_grid}
        cells |= {2: source_grid[1:], 1: source_grid[:1]} if len(source_grid) == 3 else {}
        if len(encoding.grid) not in cells:
            continue
        source = cells[len(encoding.grid)]
        given = {key: draft.left[full] for key, full in keys.items()}
        fitted = fit_tables(encoding, given, source, name=name)
        for key, full in keys.items():
            draft.put(full, fitted[key], full)
            if fitted is not given:
                sizes = ("x".join(map(str, grid)) for grid in (source, encoding.grid))
                draft.report.resampled[full] = " to ".join(sizes)


def _source_grid(draft: Draft, model: nn.Module, table: Tensor, given: Grid | None) -> tuple[Grid, int]:
    """The table's grid and the number of its prefix rows."""
    learned = model.encoding["learned"]
    total, rows = table.shape[1], learned.prefix_rows
    if given is not None:
        grid = (int(given[0]), int(given[1]))
        found = total - grid[0] * grid[1]
        if 0 <= found <= rows:
            return grid, found
        raise ValueError(
            f"convert: pos_embed has {total} rows; source_grid={grid} leaves {found} for prefix tokens, the model's table "
            f"has {rows}; give the grid the table was trained on, and prefix_rows={found > 0} for the learned table."
        )
    for found in sorted({rows, min(rows, 1)}, reverse=True):  # DINOv2 has a row for the class token and none for registers
        cells = total - found
        for grid in (learned.grid, model.train_grid):
            if grid[0] * grid[1] == cells:
                draft.report.notes.append(f"pos_embed: {cells} cells taken for the model's own {grid[0]}x{grid[1]} grid")
                return grid, found
        side = math.isqrt(max(cells, 0))
        if side > 0 and side * side == cells:
            draft.report.notes.append(f"pos_embed: {cells} cells taken for a square of {side}x{side}; pass source_grid if not")
            return (side, side), found
    cells = total - rows
    raise ValueError(
        f"convert: pos_embed has {total} rows, {rows} of them for prefix tokens; the other {cells} are neither the model's "
        f"{learned.grid[0]}x{learned.grid[1]} grid nor a square. Pass source_grid=(rows, columns) of the source, or create the "
        f"model with prefix_rows={rows == 0} if the table counts its prefix tokens otherwise."
    )
