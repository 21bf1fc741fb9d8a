"""Embedded and optional data sets; nothing here downloads anything."""

from .atlas import AtlasError
from .fashion import fashion_mnist
from .glyphs import CachedGlyphs, GlyphDataset
from .rig_scenes import RigScenes
from .scenes import Scenes
from .two_shot import TwoShot

__all__ = ["AtlasError", "CachedGlyphs", "GlyphDataset", "RigScenes", "Scenes", "TwoShot", "fashion_mnist"]
