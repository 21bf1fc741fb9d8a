"""Encodings in models from elsewhere: timm's ViTs (`swap`) and vision towers of open_clip."""

from . import open_clip, vispe_vit
from .timm import swap

__all__ = ["open_clip", "swap", "vispe_vit"]
