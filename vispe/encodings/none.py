"""No positional encoding: the baseline that every cost and every gain is measured against."""

from __future__ import annotations

from .base import Card, Encoding


class NoEncoding(Encoding):
    """Leaves tokens, queries, keys and values as they are."""

    card = Card(
        title="No positional encoding",
        family="none",
        axes=(1, 2, 3),
        injection=(),
        formula="x",
        needs=(),
        relative=True,
    )

    def set_identity(self) -> bool:
        return True
