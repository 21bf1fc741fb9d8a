"""Embedded and optional data sets; nothing here downloads anything."""

from .atlas import AtlasError
from .emoji import EmojiPairs
from .emoji_scenes import EmojiScenes
from .fashion import fashion_mnist
from .glyphs import CachedGlyphs, GlyphDataset
from .rig_scenes import RigScenes
from .scenes import Scenes
from .two_shot import TwoShot

__all__ = [
    "AtlasError", "CachedGlyphs", "EmojiPairs", "EmojiScenes", "GlyphDataset", "RigScenes", "Scenes", "TwoShot",
    "fashion_mnist",
]  # fmt: skip
