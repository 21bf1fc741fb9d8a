"""Embedded and optional data sets; nothing here downloads anything."""

from .atlas import AtlasError
from .fashion import fashion_mnist
from .glyphs import CachedGlyphs, GlyphDataset
from .two_shot import TwoShot

__all__ = ["AtlasError", "CachedGlyphs", "GlyphDataset", "TwoShot", "fashion_mnist"]
