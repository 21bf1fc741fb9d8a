"""Hosts: models that take any encoding of the table."""

from . import glyph_zoo, video_zoo, vit_zoo
from .dense_head import DenseHead
from .detector import Detector
from .nvs import SceneTransformer, ViewTransformer
from .video_vit import EncodedVideoTransformer
from .vit import EncodedVisionTransformer

__all__ = [
    "DenseHead", "Detector", "EncodedVideoTransformer", "EncodedVisionTransformer", "SceneTransformer", "ViewTransformer",
    "glyph_zoo", "video_zoo", "vit_zoo",
]  # fmt: skip
