"""Swin and SwinV2 (microsoft/Swin-Transformer): what of their weights is an encoding, and why their pyramids go no further.

The hosts here are plain ViTs. A Swin is a pyramid of windows whose stages have other widths, so its weights have no place in
one; timm's Swin loads them. What can be had is the position bias of each attention, for a window attention of one's own
(`attend` with 'swin_bias' or 'swinv2_cpb'): `encoding_tensors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from .report import Draft
from .tables import Grid

ENCODINGS = ("swin_bias", "swinv2_cpb")  # whose weights these are
_STAGE = re.compile(r"layers\.\d+\.blocks\.\d+\.attn\.(?:relative_position_bias_table|cpb_mlp\.0\.weight)")
_NAMES = {
    "relative_position_bias_table": "table", "cpb_mlp.0.weight": "fc1.weight", "cpb_mlp.0.bias": "fc1.bias",
    "cpb_mlp.2.weight": "fc2.weight", "logit_scale": "logit_scale",
}  # fmt: skip


def matches(keys: Iterable[str]) -> bool:
    return any(_STAGE.fullmatch(key) for key in keys)


def encoding_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of our `swin_bias` (its table) or `swinv2_cpb` (fc1, fc2, logit_scale) from those of one attention.

    Args:
        tensors: by the names behind "attn."; projections, index maps and coordinate tables are passed over.
    """
    return {_NAMES[key]: tensor for key, tensor in tensors.items() if key in _NAMES}


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    raise ValueError(
        f"convert: these are the weights of a Swin pyramid; {type(model).__name__} is a plain ViT and has no place for its "
        f"stages. Load them into timm's Swin; the position bias of one attention, for a window attention of your own, comes "
        f"from vispe.convert.swin.encoding_tensors."
    )
