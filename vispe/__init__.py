"""vispe: the zoo of positional encodings for vision and multimodal transformers."""

from . import models
from .adapters import open_clip, swap
from .convert import load
from .encodings import create_encoding, list_encodings
from .models.create import create_model
from .positions import patch_grid, video_grid

__version__ = "0.1.0"
__all__ = [
    "create_encoding", "create_model", "list_encodings", "load", "models", "open_clip", "patch_grid", "swap", "video_grid",
]  # fmt: skip
