"""What both hosts of a rig of cameras share: features of all views as one set of tokens, with any encoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..layers import Attention, Block
from ..positions import CameraPositions, camera_grid
from .nvs import _NvsModel
from .nvs_parts import ConvStem


class RigEncoder(_NvsModel):
    """Images of V cameras to tokens of all views.

    Args:
        encoding, encoding_kwargs: a name of the table or several joined by "+", and options.
        views: cameras of a rig; each number gets a learned vector. None: cameras have no numbers.
        image_size: px, (H, W); stride: px of a token's side; stem_width: channels of the stem's first convolution.
        embed_dim, depth, num_heads, mlp_ratio: of the blocks of self-attention over the tokens of all views; depth may be 0.
    """

    def __init__(
        self,
        encoding: str,
        encoding_kwargs: dict[str, Any] | None,
        *,
        views: int | None,
        image_size: int | tuple[int, int],
        stride: int,
        stem_width: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float,
        in_channels: int,
    ) -> None:
        super().__init__(
            encoding, encoding_kwargs, image_size, stride, embed_dim, num_heads, max(depth, 1), mlp_ratio
        )
        self.stem = ConvStem(in_channels, embed_dim, stride=stride, width=stem_width)
        self.camera = None if views is None else nn.Parameter(torch.empty(views, 1, embed_dim))
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, mlp_ratio=mlp_ratio, qkv_bias=True, attn_layer=Attention) for _ in range(depth)
        )
        if self.camera is not None:
            nn.init.normal_(self.camera, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | ({"camera"} if self.camera is not None else set())

    def encode(
        self, images: Tensor, world_to_camera: Tensor, intrinsics: Tensor | None, depth: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features (B, N, C) as the stem made them, tokens (B, N, C) with positions, and a mask (B, N) of those to look at."""
        self._check(images, world_to_camera, depth, valid)
        size = tuple(images.shape[-2:])
        pos = self.places(size, world_to_camera, intrinsics, depth)
        features = self.features(images)
        mask = None if valid is None else pos.of_tokens(valid[..., None])[..., 0]
        ctx = self.encoding.prepare(pos)
        x = self.encoding.between(self.encoding.tokens(features, ctx), ctx, -1)
        for i, block in enumerate(self.blocks):
            encoding, layer_ctx = self.encoding.layer(ctx, i)
            x = self._run(block, x, encoding, layer_ctx, None if mask is None else mask[:, None, None])
            x = self.encoding.between(x, ctx, i)
        return features, x, mask

    def features(self, images: Tensor) -> Tensor:
        """What the stem makes of images (B, V, C, H, W), and the numbers of cameras: (B, N, C)."""
        x = self.stem(images.flatten(0, 1)).flatten(2).mT.unflatten(0, images.shape[:2])  # (B, V, h·w, C)
        return (x if self.camera is None else x + self.camera).flatten(1, 2)

    def predicted_depth(self, images: Tensor) -> Tensor:
        """Depth (B, V, h, w) in metres that the encoding's first member predicts from the features, to be supervised.

        Raises:
            ValueError: the first member predicts none, or a member ahead of it would have changed what it sees.
        """
        name, first = next(iter(self.encoding.encodings()))
        if getattr(first, "depth_head", None) is None:
            raise ValueError(f"{type(self).__name__}: {name!r} predicts no depth; put an encoding that does so ahead of it.")
        return first.predict(self.features(images)).unflatten(1, (images.shape[1], *self._grid(tuple(images.shape[-2:]))))

    def places(
        self, size: tuple[int, int], world_to_camera: Tensor, intrinsics: Tensor | None, depth: Tensor | None
    ) -> CameraPositions:
        return camera_grid(
            *self._grid(size), world_to_camera, intrinsics, None if intrinsics is None else size, train=self.train_grid,
            depth=None if depth is None else depth.flatten(1),
        )  # fmt: skip

    def _check(self, images: Tensor, cameras: Tensor, depth: Tensor | None, valid: Tensor | None) -> None:
        name = type(self).__name__
        if images.ndim != 5:
            raise ValueError(f"{name}: images must be (B, V, C, H, W), got {tuple(images.shape)}.")
        batch, views = images.shape[:2]
        if self.camera is not None and views != len(self.camera):
            raise ValueError(f"{name}: made for {len(self.camera)} cameras, got {views}; mark missing ones by `valid`.")
        if cameras.shape != (batch, views, 4, 4):
            raise ValueError(f"{name}: world_to_camera must be ({batch}, {views}, 4, 4), got {tuple(cameras.shape)}.")
        grid = self._grid(tuple(images.shape[-2:]))
        if depth is not None and tuple(depth.shape) != (batch, views, *grid):
            raise ValueError(
                f"{name}: depth is that of the cells, {(batch, views, *grid)} metres, got {tuple(depth.shape)}; see at_cells."
            )
        if valid is not None and (valid.shape != (batch, views) or valid.dtype != torch.bool):
            raise ValueError(f"{name}: valid must be ({batch}, {views}) bool, got {tuple(valid.shape)} {valid.dtype}.")
        if valid is not None and not torch.compiler.is_compiling() and not valid.any(dim=1).all():
            raise ValueError(f"{name}: a sample has no valid view; leave it out of the batch.")


def at_cells(maps: Tensor, cell: int) -> Tensor:
    """Maps of pixels (..., H, W) at the pixel behind the middle of every cell of `cell` px, (..., H / cell, W / cell)."""
    return maps[..., cell // 2 :: cell, cell // 2 :: cell]
