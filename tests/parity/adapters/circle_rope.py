"""lose4578/CircleRoPE, and JJJYmmm/Multimodal-RoPEs' version for frames between timestamps."""

from __future__ import annotations

from vispe.positions.schemes import create_scheme

from ..cases import Case
from ..sequence_layout import rotated, sequence, sequence_rotary
from .common import Results


def run(case: Case) -> Results:
    c = case.config
    assert c.get("method", "circle") == "circle", c["method"]
    scheme = create_scheme(
        "circle_rope", alpha=c["alpha"], radius=c["radius"], move_to_origin=c.get("move_to_origin", False),
        blend=c.get("dff_rate") or None, move_to_positive=c.get("move_to_positive") or None,
    )  # fmt: skip
    circle, grid = sequence(case, scheme), sequence(case, scheme.for_layer(1, 36))
    between = {f"{key}_grid_layers": ids for key, ids in grid.results().items()}
    return circle.results() | between | rotated(case, sequence_rotary(case, scheme), circle.ids)


def tolerance(case: Case, key: str) -> float | None:
    """Official starts are rounded to float32 image by image, ours once: a unit in the last place of ids past 64, on the
    fastest pair."""
    return 4e-5 if key in ("out.q_rot", "out.k_rot") else None
