"""willisma/SiT (and REPA) onto EncodedDiT. Its keys are DiT's: name this source to have the model checked for it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from . import dit
from .report import Draft
from .tables import Grid

ENCODINGS = ("sincos2d",)  # whose weights these are


def matches(keys: Iterable[str]) -> bool:
    """Never by keys alone, unless REPA's projectors give it away."""
    keys = set(keys)
    return dit.matches(keys) and any(key.startswith("projectors.") for key in keys)


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    predicts = getattr(model, "prediction_type", None)
    if predicts != "sit_velocity":
        raise ValueError(
            f"convert: SiT predicts data minus noise at times in [0, 1]; the model has prediction_type={predicts!r}. Create it "
            f"with prediction_type='sit_velocity'."
        )
    draft = Draft(state, "sit")
    dit.finish(draft, model, source_grid)
    return draft
