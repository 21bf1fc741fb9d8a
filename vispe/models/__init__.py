"""Hosts: models that take any encoding of the table."""

from .vit import EncodedVisionTransformer
from . import vit_zoo

__all__ = ["EncodedVisionTransformer", "vit_zoo"]
