"""Hosts: models that take any encoding of the table."""

from . import vit_zoo
from .vit import EncodedVisionTransformer

__all__ = ["EncodedVisionTransformer", "vit_zoo"]
