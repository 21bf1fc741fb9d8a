"""How near is near enough: the tolerances at the end of the specification pages of rotary and of additive encodings."""

from __future__ import annotations

import torch
from torch import Tensor

ROTARY = {"comrope", "liere", "string", "gta2d"}  # and everything that begins with "rope"
TABLES = ("cos", "sin", "positions", "angle_matrices", "rotation_blocks", "so2_matrices", "freqs")


def tolerances(folder: str, key: str, expected: Tensor) -> float:
    """One number for absolute and relative error together (see `check`)."""
    rotary = folder in ROTARY or folder.startswith("rope")
    kind, _, name = key.partition(".")
    if expected.dtype == torch.float64:
        return 1e-9
    if kind == "grad":
        return 1e-5 if rotary else 5e-4
    if rotary:
        return 2e-6 if name.startswith(TABLES) else 1e-5 if name.startswith("logits") and "unscaled" not in name else 2e-5
    return 1e-4 if name.startswith(("logits", "features")) else 2e-5


def check(key: str, actual: Tensor, expected: Tensor, tolerance: float, largest: float = 0.0) -> None:
    """Integers must be equal. Outputs: |a − e| <= t + t|e|. Gradients: |a − e| <= t · max|e|, each against its tensor's
    largest.

    Gradients that are zero in theory (a table on keys in the last block, where every offset of the class token falls in
    one bucket) are rounding noise of the others; two units in the last place of the case's `largest` gradient are
    allowed on top.
    """
    assert actual.shape == expected.shape, f"{key}: shape {tuple(actual.shape)}, official {tuple(expected.shape)}"
    if not expected.is_floating_point():
        assert torch.equal(actual.to(expected.dtype), expected), f"{key}: {int((actual != expected).sum())} ids differ"
        return
    noise = 2 * torch.finfo(expected.dtype).eps * largest
    actual, expected = actual.detach().double(), expected.double()
    assert actual.isfinite().all(), f"{key}: not finite"
    error = (actual - expected).abs()
    size = expected.abs()
    allowed = (tolerance * size.max() + noise).expand_as(size) if key.startswith("grad.") else tolerance * (1 + size)
    worst = (error / allowed.clamp(min=1e-300)).argmax()
    assert (error <= allowed).all(), (
        f"{key}: error {error.flatten()[worst]:.2e}, {allowed.flatten()[worst]:.2e} allowed, largest number {size.max():.2e}"
    )
