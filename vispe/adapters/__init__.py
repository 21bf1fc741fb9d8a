"""Encodings in models from elsewhere: timm's ViTs and diffusers' transformers (`swap`), vision towers of open_clip."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from torch import nn

from . import open_clip, timm, vispe_vit

__all__ = ["open_clip", "swap", "vispe_vit"]


def swap(model: nn.Module, encoding: str, **options: Any) -> nn.Module:
    """Another encoding in a model from timm (`vispe.adapters.timm.swap`) or diffusers (`vispe.adapters.diffusers.swap`).

    Args:
        model: goes to the adapter of the library that its class comes from.
        encoding: a name of the table, or several joined by "+".
        options: of that adapter, which refuses unknown ones; both take encoding_kwargs, old and start.
    """
    if any(cls.__module__.split(".")[0] == "diffusers" for cls in type(model).__mro__):
        from .diffusers import swap as swap_diffusers

        return swap_diffusers(model, encoding, **options)
    return timm.swap(model, encoding, **options)


def __getattr__(name: str) -> ModuleType:
    """`vispe.adapters.diffusers`, imported when it is asked for: diffusers is an extra."""
    if name == "diffusers":
        return importlib.import_module(".diffusers", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
