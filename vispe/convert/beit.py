"""microsoft/unilm BEiT and BEiT v2 (data2vec-vision has the same layout), and the same weights in timm.

Tables of relative positions in every attention (`blocks.i.attn.relative_position_bias_table`) or, from pre-training, one
for all (`rel_pos_bias.relative_position_bias_table`), which a model with a table a layer gets as copies, as in the official
fine-tuning. Rows and signs are ours; another grid is reached by the resampling of the model's `beit_bias`. The model is a
'beit_bias' with init_values=0.1 and global_pool="avg".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from torch import Tensor, nn

from ..encodings.stack import fit_tables
from . import eva02
from .report import Draft
from .tables import Grid

ENCODINGS = ("beit_bias",)  # whose weights these are
_TABLE = re.compile(r"(?:blocks\.(\d+)\.attn|rel_pos_bias)\.relative_position_bias_table")


def matches(keys: Iterable[str]) -> bool:
    return any(_TABLE.fullmatch(key) for key in keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "beit")
    ours = set(model.state_dict())
    for key in list(draft.left):
        if key in ours:  # timm's own BEiT
            continue
        if found := _TABLE.fullmatch(key):
            _table(draft, model, key, found[1], source_grid)
        elif key.endswith("relative_position_index"):
            draft.drop(key, "rows of the table for every pair, computed here")
        elif key.startswith("lm_head."):
            draft.drop(key, "the head of masked pre-training, not part of the encoder")
    eva02.finish(draft, model, source_grid)
    return draft


def _table(draft: Draft, model: nn.Module, key: str, block: str | None, source_grid: Grid | None) -> None:
    stack = getattr(model, "encoding", {})
    if "beit_bias" not in stack:
        draft.refuse(key, "the model has no such table; create it with encoding='beit_bias'")
        return
    layered = isinstance(stack["beit_bias"], nn.ModuleList)
    if block is not None and not layered:
        draft.refuse(key, "a table of one block, the model has one for all; create it with per_layer=True")
        return
    table = draft.left[key]
    if block is not None:
        names = [f"beit_bias.{block}"]
    else:
        names = [f"beit_bias.{i}" for i in range(len(stack["beit_bias"]))] if layered else ["beit_bias"]
    for name in names:
        encoding = dict(stack.encodings()).get(name)
        if encoding is None:
            draft.refuse(key, f"the model has {len(stack['beit_bias'])} blocks")
            return
        grid = table_grid(table, encoding.grid, encoding.extra_rows, source_grid)
        fitted = fit_tables(encoding, {"table": table}, grid)["table"]
        # Copies must not share memory: training would move all layers together.
        draft.put(f"encoding.{name}.table", fitted.clone() if len(names) > 1 else fitted, key)
        if grid != encoding.grid:
            draft.report.resampled[f"encoding.{name}.table"] = (
                f"{grid[0]}x{grid[1]} to {encoding.grid[0]}x{encoding.grid[1]} ({encoding.resample})"
            )


def table_grid(table: Tensor, own: Grid, extra_rows: int, given: Grid | None) -> Grid:
    """The grid that a table of (2H − 1)(2W − 1) + extra rows was made for: as given, else the model's own, else a square.

    Raises:
        ValueError: the rows fit none of them.
    """
    rows = table.shape[0] - extra_rows
    candidates = [(int(given[0]), int(given[1]))] if given is not None else [tuple(own)]
    for grid in candidates:
        if (2 * grid[0] - 1) * (2 * grid[1] - 1) == rows:
            return grid
    side = math.isqrt(max(rows, 0))
    if given is None and side % 2 and side * side == rows:
        return (side + 1) // 2, (side + 1) // 2
    raise ValueError(
        f"convert: a relative position table of {table.shape[0]} rows belongs to no grid of {candidates[0][0]}x"
        f"{candidates[0][1]} with {extra_rows} rows for prefix tokens; pass source_grid=(rows, columns) of the source."
    )
