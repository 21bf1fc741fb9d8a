"""Hosts: models that take any encoding of the table."""

from . import video_zoo, vit_zoo
from .video_vit import EncodedVideoTransformer
from .vit import EncodedVisionTransformer

__all__ = ["EncodedVideoTransformer", "EncodedVisionTransformer", "video_zoo", "vit_zoo"]
