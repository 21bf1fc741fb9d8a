"""vispe: the zoo of positional encodings for vision and multimodal transformers."""

from importlib import import_module

from . import models
from .adapters import open_clip, swap
from .convert import load
from .encodings import create_encoding, list_encodings
from .models.create import create_model
from .positions import patch_grid, video_grid
from .shipped import shipped

__version__ = "0.1.0"
__all__ = [
    "create_encoding", "create_model", "list_encodings", "load", "models", "open_clip", "patch_grid", "shipped", "swap",
    "video_grid",
]  # fmt: skip

_LAZY = {"Diagnosis": "diagnostics", "diagnose": "diagnostics", "resolution_curves": "curves"}
__all__ += _LAZY


def __getattr__(name: str):
    """Names whose modules draw pictures, imported when they are first asked for."""
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
