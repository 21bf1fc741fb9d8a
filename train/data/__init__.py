"""Data modules, by the short names that the command line takes."""

from train.data.captioned import CaptionedFolder
from train.data.clips import TwoShotClips
from train.data.emoji import EmojiCaptions, EmojiSceneCaptions
from train.data.fashion import FashionMNIST
from train.data.folder import ImageFolderData
from train.data.glyph_diffusion import GlyphDiffusion
from train.data.glyphs import Glyphs
from train.data.latents import LatentFolder
from train.data.posed import PosedFolder
from train.data.probes import VlmProbes
from train.data.rig import RigData
from train.data.scenes import NvsScenes
from train.data.shards import WebDatasetData
from train.data.video import VideoFolderData

__all__ = [
    "CaptionedFolder", "EmojiCaptions", "EmojiSceneCaptions", "FashionMNIST", "GlyphDiffusion", "Glyphs", "ImageFolderData",
    "LatentFolder", "NvsScenes", "PosedFolder", "RigData", "TwoShotClips", "VideoFolderData", "VlmProbes", "WebDatasetData",
]  # fmt: skip
