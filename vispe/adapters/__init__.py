"""Encodings in models from elsewhere: timm's ViTs (`swap`) and vision towers of open_clip."""

from . import vispe_vit
from .timm import swap

__all__ = ["swap", "vispe_vit"]
