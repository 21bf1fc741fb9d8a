"""Encodings in models from elsewhere: timm's ViTs, diffusers' transformers and transformers' vision-language models (`swap`),
vision towers of open_clip."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from torch import nn

from . import open_clip, timm, vispe_vit

__all__ = ["open_clip", "swap", "vispe_vit"]


def swap(model: nn.Module, encoding: str, **options: Any) -> nn.Module:
    """Another encoding in a model from timm (`vispe.adapters.timm.swap`), diffusers (`vispe.adapters.diffusers.swap`) or
    transformers (`vispe.adapters.transformers.swap`).

    Args:
        model: goes to the adapter of the library that its class comes from.
        encoding: a name of the table, or several joined by "+"; of transformers' models a scheme of `vispe.positions.schemes`.
        options: of that adapter, which refuses unknown ones; all take encoding_kwargs, the first two old and start.
    """
    libraries = {cls.__module__.split(".")[0] for cls in type(model).__mro__}
    if "transformers" in libraries:
        from .transformers import swap as swap_transformers

        return swap_transformers(model, encoding, **options)
    if "diffusers" in libraries:
        from .diffusers import swap as swap_diffusers

        return swap_diffusers(model, encoding, **options)
    return timm.swap(model, encoding, **options)


def __getattr__(name: str) -> ModuleType:
    """`vispe.adapters.diffusers` and `.transformers`, imported when they are asked for: they are extras."""
    if name in ("diffusers", "transformers"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
