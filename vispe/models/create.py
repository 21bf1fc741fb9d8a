"""Models by name: timm's registry, where our ViTs stand, and the diffusion transformers, which timm does not know."""

from __future__ import annotations

import difflib
from typing import Any

import timm
from torch import nn

from .dit_zoo import create_dit, is_dit


def create_model(model_name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A model by its name: `vit_b_rope_mixed` and everything else of timm's registry, or `dit_b_2_rope_axial`.

    Args:
        model_name: a name of timm's registry ("hf-hub:..." and "local-dir:..." too), or of `dit_zoo`.
        pretrained: timm's; there are no weights behind the names of diffusion transformers.
        kwargs: arguments of the model, which refuses unknown ones.

    Raises:
        ValueError: an unknown name, with the nearest ones.
    """
    if not is_dit(model_name):
        architecture = model_name.split(".")[0]
        if ":" not in model_name and not timm.is_model(architecture):
            near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
            hint = f"did you mean {', '.join(map(repr, near))}?" if near else "`vispe list` shows encodings, MODELS.md names."
            raise ValueError(f"create_model: unknown model {model_name!r}; {hint}")
        return timm.create_model(model_name, pretrained=pretrained, **kwargs)
    if pretrained:
        raise ValueError(
            f"create_model: there are no pretrained weights for {model_name!r}; create it without, and give official weights "
            f"to vispe.load, or use EncodedDiT.from_pretrained for your own."
        )
    return create_dit(model_name, **kwargs)
