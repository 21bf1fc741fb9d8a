"""Video transformer: tubelets, attention over all of them at once or by turns in space and time, any encoding with three axes.

    model = timm.create_model("vid_s_rope_mixed", num_frames=16, img_size=224, attention="factorised")
    logits = model(video)  # (B, 3, frames, height, width), of any size that tubelets divide

It is the package's Vision Transformer with another embedding and another block, so features, parameter groups,
checkpointing, saving and coordinates are those of images.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from timm.layers import to_2tuple

from ..encodings import EncodingStack
from ..encodings.factorised import FactorisedStack
from ..layers import Block
from ..layers.space_time import SpaceTimeBlock
from ..layers.tubelet import TubeletEmbed
from ..positions import Positions, video_grid
from .timm_private import update_model_args, update_model_input_size
from .vit import EncodedVisionTransformer

AttentionKind = Literal["joint", "factorised"]
BLOCKS: dict[str, type[Block]] = {"joint": Block, "factorised": SpaceTimeBlock}


class EncodedVideoTransformer(EncodedVisionTransformer):
    """Vision Transformer of videos (B, channels, frames, height, width) whose positions come from the hooks of an encoding.

    Args:
        encoding, encoding_kwargs: as for images; positions are (frame, row, column).
        img_size, num_frames: pixels and frames of the videos the model is made for; others are accepted at run time.
        patch_size, tubelet_size: pixels and frames of one token.
        train_size, train_frames: what positions were trained with, the reference of "extend" and "rescale"; None takes
            img_size and num_frames.
        attention: "joint" over all tokens, or "factorised": in every frame, then along time at every place (ViViT's model
            3), where the encoding serves the one with two axes and the other with one. That needs every token in its
            place, hence class_token=False, reg_tokens=0, patch_drop_rate=0.
        timm_kwargs: every other argument of the image model and of timm's VisionTransformer.

    `forward_intermediates` gives (B, C, T, H, W) for its "NCHW".
    """

    def __init__(
        self,
        encoding: str = "none",
        encoding_kwargs: dict[str, Any] | None = None,
        img_size: int | tuple[int, int] = 224,
        num_frames: int = 16,
        patch_size: int | tuple[int, int] = 16,
        tubelet_size: int = 2,
        train_size: int | tuple[int, int] | None = None,
        train_frames: int | None = None,
        attention: AttentionKind = "joint",
        class_token: bool = False,
        reg_tokens: int = 0,
        global_pool: str = "avg",
        patch_drop_rate: float = 0.0,
        **timm_kwargs: Any,
    ) -> None:
        if attention not in BLOCKS:
            raise ValueError(f"{type(self).__name__}: attention must be one of {tuple(BLOCKS)}, got {attention!r}.")
        if attention == "factorised" and (class_token or reg_tokens or patch_drop_rate):
            raise ValueError(
                f"{type(self).__name__}: factorised attention needs every token in its place, got {class_token=}, "
                f"{reg_tokens=}, {patch_drop_rate=}; set them to False, 0 and 0, or use attention='joint'."
            )
        reference = to_2tuple(img_size if train_size is None else train_size)
        super().__init__(
            encoding, encoding_kwargs, img_size=img_size, patch_size=patch_size, class_token=class_token,
            reg_tokens=reg_tokens, global_pool=global_pool, patch_drop_rate=patch_drop_rate,
            train_size=(num_frames if train_frames is None else train_frames, *reference),
            embed_layer=partial(TubeletEmbed, num_frames=num_frames, tubelet_size=tubelet_size),
            block_fn=BLOCKS[attention], **timm_kwargs,
        )  # fmt: skip

    @property
    def attention(self) -> AttentionKind:
        """Over what the tokens attend."""
        return "factorised" if isinstance(self.blocks[0], SpaceTimeBlock) else "joint"

    @property
    def stack_class(self) -> type[EncodingStack] | type[FactorisedStack]:
        return FactorisedStack if self.attention == "factorised" else EncodingStack

    def attentions(self) -> list[tuple[EncodingStack, list[torch.nn.Module]]]:
        if self.attention == "joint":
            return super().attentions()
        stacks = self.encoding.stacks()
        return [(stacks.space, [b.attn for b in self.blocks]), (stacks.time, [b.attn_time for b in self.blocks])]

    def _grid_of(self, size: tuple[int, ...]) -> tuple[int, int, int]:
        """(T, H, W) of (height, width), at the model's own number of frames, or of (frames, height, width)."""
        size = tuple(size) if isinstance(size, (tuple, list)) and len(size) == 3 else (
            self.patch_embed.num_frames, *to_2tuple(size)
        )  # fmt: skip
        self.patch_embed.check(size)
        return self.patch_embed.dynamic_feat_size(size)

    def _record_train_size(self) -> None:
        frames, *pixels = (n * c for n, c in zip(self.train_grid, self.patch_embed.cell))
        update_model_args(self, train_frames=frames, train_size=tuple(pixels))

    def positions(
        self, frames: int, height: int, width: int, device: torch.device | None = None
    ) -> Positions:
        """Positions of `frames` x `height` x `width` tubelets as this model sees them."""
        return video_grid(
            frames, height, width, prefix=self.num_prefix_tokens, train=self.train_grid, device=device
        )

    def set_input_size(
        self,
        img_size: int | tuple[int, int] | None = None,
        patch_size: int | tuple[int, int] | None = None,
        num_frames: int | None = None,
    ) -> list[str]:
        """See the image model; `num_frames` is the number of frames that becomes the model's own.

        A size that tubelets do not divide is refused, and the model stays as it was.
        """
        embed = self.patch_embed
        old, pixels = embed.patch_size, to_2tuple(embed.img_size if img_size is None else img_size)
        frames = embed.num_frames if num_frames is None else num_frames
        cell = (embed.tubelet_size, *to_2tuple(old if patch_size is None else patch_size))
        if not embed.dynamic_img_pad and any(n % c or n < c for n, c in zip((frames, *pixels), cell)):
            raise ValueError(
                f"{type(self).__name__}: {frames} frames of {pixels} pixels are no multiple of the tubelet {cell}."
            )
        embed.set_input_size(pixels, patch_size, frames)
        done = self.encoding.set_grid(self._grid_of(pixels))
        if old != embed.patch_size:
            done.append(f"patch_embed.proj resampled from {old} to {embed.patch_size}")
        update_model_input_size(self, embed.img_size, patch_size=patch_size, num_frames=frames)
        self._record_train_size()
        return done
