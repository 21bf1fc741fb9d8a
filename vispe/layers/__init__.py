"""Where the signal enters: attention, blocks and patch embedding that know hooks, and no encoding by name."""

from .attention import Attention, CrossAttention, attend
from .block import Block, feed
from .mix_ffn import MixFfnMlp
from .patch import PatchEmbed

__all__ = ["Attention", "Block", "CrossAttention", "MixFfnMlp", "PatchEmbed", "attend", "feed"]
