"""ErikZ719/MCA-LLaVA: rings by Manhattan distance from the borders."""

from __future__ import annotations

from ..cases import Case
from .cca import rings
from .common import Results


def run(case: Case) -> Results:
    return rings(case, side=case.config["levels"] + 1)
