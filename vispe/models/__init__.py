"""Hosts: models that take any encoding of the table."""

from . import video_zoo, vit_zoo
from .nvs import SceneTransformer, ViewTransformer
from .video_vit import EncodedVideoTransformer
from .vit import EncodedVisionTransformer

__all__ = [
    "EncodedVideoTransformer", "EncodedVisionTransformer", "SceneTransformer", "ViewTransformer", "video_zoo", "vit_zoo",
]  # fmt: skip
