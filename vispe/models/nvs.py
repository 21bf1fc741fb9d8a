"""Novel view synthesis: pictures of a scene from cameras that took none, out of any number of views, with any encoding.

    model = ViewTransformer("prope", image_size=64)
    rendered = model(images, world_to_camera, intrinsics)   # images of the first cameras in, those of the others out

`ViewTransformer` attends over the patches of input and target views at once (as LVSM's decoder-only form, Jin et al. 2024,
arXiv 2410.17242). `SceneTransformer` encodes the input views once and asks for any pixels by cross-attention (as SRT, Sajjadi
et al. 2022, arXiv 2111.13152, with one learned query for every ray as in GTA, Miyato et al. 2024, arXiv 2310.10375). Both know
where tokens are only through their encoding: compose one of the place in the image with one of the camera ("learned+plucker"),
or use one that does both ("gta", "prope").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from timm.layers import to_2tuple
from timm.models import checkpoint
from torch import Tensor, nn

from ..encodings import EncodingStack
from ..layers import Attention, Block
from ..positions import CameraPositions, camera_grid
from .nvs_parts import ConvStem, CrossBlock, patchify, unpatchify
from .saved import SavedModel, arguments


class _NvsModel(SavedModel):
    """What both hosts share: the encoding, checked inputs, positions of views."""

    cell: int  # pixels of a token's side
    encoding: EncodingStack

    def __init__(
        self, encoding: str, encoding_kwargs: dict[str, Any] | None, image_size: int | tuple[int, int], cell: int, dim: int,
        num_heads: int, depth: int, mlp_ratio: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cell, self.grad_checkpointing = cell, False
        grid = self._grid(to_2tuple(image_size))
        self.encoding = EncodingStack(
            encoding, dim=dim, num_heads=num_heads, depth=depth, options=encoding_kwargs,
            facts={
                "grid": grid, "train_grid": grid, "prefix": 0, "patch_size": to_2tuple(cell), "mlp_dim": int(dim * mlp_ratio),
            },
        )  # fmt: skip
        if self.encoding.wants_image:
            raise ValueError(
                f"{type(self).__name__}: {encoding!r} reads one image and there are several views; take another encoding."
            )
        self.train_grid = grid

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute every block in the backward pass."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that must not be decayed."""
        return {f"encoding.{name}" for name in self.encoding.no_weight_decay()}

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        if any(n % self.cell or n < self.cell for n in size):
            raise ValueError(f"{type(self).__name__}: image sides must be multiples of {self.cell} px, got {tuple(size)}.")
        return size[0] // self.cell, size[1] // self.cell

    def _positions(self, cameras: Tensor, intrinsics: Tensor | None, size: tuple[int, int]) -> CameraPositions:
        return camera_grid(
            *self._grid(size), cameras, intrinsics, None if intrinsics is None else size, train=self.train_grid
        )

    def _checked(self, images: Tensor, cameras: Tensor, intrinsics: Tensor | None) -> tuple[int, tuple[int, int]]:
        """How many views are given, and their size."""
        name = type(self).__name__
        if images.ndim != 5 or images.shape[1] < 1:
            raise ValueError(f"{name}: images must be (B, views, channels, H, W), views at least 1, got {tuple(images.shape)}.")
        batch, given = images.shape[:2]
        if cameras.ndim != 4 or cameras.shape[0] != batch or cameras.shape[1] <= given:
            raise ValueError(
                f"{name}: world_to_camera must be ({batch}, views, 4, 4), the {given} input views and then at least 1 target, "
                f"got {tuple(cameras.shape)}."
            )
        if intrinsics is not None and intrinsics.shape[:2] != cameras.shape[:2]:
            raise ValueError(
                f"{name}: intrinsics must be ({batch}, {cameras.shape[1]}, 3, 3), one a camera, got {tuple(intrinsics.shape)}."
            )
        return given, tuple(images.shape[-2:])

    def _run(self, block: nn.Module, *args: Any) -> Tensor:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, *args)
        return block(*args)

    def _encode(self, x: Tensor, ctx: list[Any], blocks: nn.ModuleList) -> Tensor:
        """Self-attention blocks over tokens that carry their positions."""
        x = self.encoding.between(self.encoding.tokens(x, ctx), ctx, -1)
        for i, block in enumerate(blocks):
            encoding, layer_ctx = self.encoding.layer(ctx, i)
            x = self.encoding.between(self._run(block, x, encoding, layer_ctx), ctx, i)
        return x


class ViewTransformer(_NvsModel):
    """One transformer over the patches of all views; a target's patches start from one learned vector.

    Every target sees every other one, so ask for one target at a time where they should not depend on each other.

    Args:
        encoding, encoding_kwargs: a name of the table or several joined by "+", and options, as in a ViT.
        image_size: px, (H, W) or one number, that learned tables are made for; other sizes are accepted.
        patch_size: px.
        embed_dim, depth, num_heads, mlp_ratio: of the blocks.
        in_channels: of the images, in [0, 1].
    """

    def __init__(
        self,
        encoding: str = "gta",
        encoding_kwargs: dict[str, Any] | None = None,
        *,
        image_size: int | tuple[int, int] = 32,
        patch_size: int = 4,
        embed_dim: int = 64,
        depth: int = 3,
        num_heads: int = 2,
        mlp_ratio: float = 3.0,
        in_channels: int = 3,
    ) -> None:
        config = arguments(locals())
        super().__init__(encoding, encoding_kwargs, image_size, patch_size, embed_dim, num_heads, depth, mlp_ratio)
        self.config = config
        self.patch_embed = nn.Linear(in_channels * patch_size**2, embed_dim)
        self.kind = nn.Parameter(torch.empty(2, embed_dim))  # of input patches and of target patches
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, mlp_ratio=mlp_ratio, qkv_bias=True, attn_layer=Attention) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, in_channels * patch_size**2)
        nn.init.normal_(self.kind, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"kind"}

    def forward(self, images: Tensor, world_to_camera: Tensor, intrinsics: Tensor | None = None) -> Tensor:
        """Render the target views.

        Args:
            images: (B, Vin, C, H, W) in [0, 1].
            world_to_camera: (B, Vin + Vout, 4, 4): cameras of the input views, then of the targets.
            intrinsics: (B, Vin + Vout, 3, 3) in pixels; None where the encoding does without.

        Returns:
            (B, Vout, C, H, W) in [0, 1].
        """
        given, size = self._checked(images, world_to_camera, intrinsics)
        ctx = self.encoding.prepare(self._positions(world_to_camera, intrinsics, size))
        seen = self.patch_embed(patchify(images, self.cell)).flatten(1, 2) + self.kind[0]
        grid = self._grid(size)
        asked = (world_to_camera.shape[1] - given) * grid[0] * grid[1]
        x = torch.cat((seen, self.kind[1].to(seen.dtype).expand(images.shape[0], asked, -1)), dim=1)
        x = self._encode(x, ctx, self.blocks)[:, -asked:]
        x = self.head(self.norm(x)).unflatten(1, (-1, grid[0] * grid[1]))
        return unpatchify(x, grid, self.cell).sigmoid()


class SceneTransformer(_NvsModel):
    """Encoder of the input views and decoder of rays.

    Targets do not see each other. The encoding has one set of layers for both: blocks of the encoder, then of the decoder.

    Args:
        encoding, encoding_kwargs, image_size, in_channels: see ViewTransformer.
        stride: px of a token's side: the stem's stride, a power of 2.
        stem_width: channels of the stem's first convolution.
        query_size: px of the square that one query renders; 1 asks ray by ray. Encodings with a table of cells need `stride`.
        embed_dim, num_heads, mlp_ratio, depth, decoder_depth: of the blocks.
        head_dim: channels of the hidden layer that turns a query into colours.
    """

    def __init__(
        self,
        encoding: str = "gta",
        encoding_kwargs: dict[str, Any] | None = None,
        *,
        image_size: int | tuple[int, int] = 32,
        stride: int = 4,
        stem_width: int = 24,
        query_size: int = 1,
        embed_dim: int = 64,
        depth: int = 3,
        decoder_depth: int = 2,
        num_heads: int = 2,
        mlp_ratio: float = 2.0,
        head_dim: int = 128,
        in_channels: int = 3,
    ) -> None:
        config, layers = arguments(locals()), depth + decoder_depth
        super().__init__(encoding, encoding_kwargs, image_size, stride, embed_dim, num_heads, layers, mlp_ratio)
        self.config = config
        if query_size < 1 or stride % query_size or decoder_depth < 1:
            raise ValueError(
                f"SceneTransformer: query_size must divide stride={stride} and decoder_depth be at least 1, got {query_size} "
                f"and {decoder_depth}."
            )
        self.query_size = query_size
        self.stem = ConvStem(in_channels, embed_dim, stride=stride, width=stem_width)
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, mlp_ratio=mlp_ratio, qkv_bias=True, attn_layer=Attention) for _ in range(depth)
        )
        self.scene_norm = nn.LayerNorm(embed_dim)
        self.query = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.decoder = nn.ModuleList(CrossBlock(embed_dim, num_heads, mlp_ratio=mlp_ratio) for _ in range(decoder_depth))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Sequential(
            nn.Linear(embed_dim, head_dim), nn.ReLU(), nn.Linear(head_dim, in_channels * query_size**2)
        )
        nn.init.normal_(self.query, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"query"}

    def forward(
        self, images: Tensor, world_to_camera: Tensor, intrinsics: Tensor | None = None, *, rays: Tensor | None = None
    ) -> Tensor:
        """Render the target views, or some of their rays.

        Args:
            images, world_to_camera, intrinsics: see ViewTransformer.
            rays: (B, K) or (K,) int64 numbers of queries, which count all squares of `query_size` px of all targets, view-major
                and row-major; what a long training draws at random to save time.

        Returns:
            (B, Vout, C, H, W) in [0, 1], or (B, K, C, query_size, query_size) for `rays`.
        """
        given, size = self._checked(images, world_to_camera, intrinsics)
        k_in, k_out = (None, None) if intrinsics is None else (intrinsics[:, :given], intrinsics[:, given:])
        pos = self._positions(world_to_camera[:, :given], k_in, size)
        ctx_k = self.encoding.prepare(pos)
        features = self.stem(images.flatten(0, 1)).flatten(2).transpose(1, 2)  # (B·V, h·w, C)
        scene = self.scene_norm(self._encode(features.unflatten(0, images.shape[:2]).flatten(1, 2), ctx_k, self.blocks))
        asked = self._queries(world_to_camera[:, given:], k_out, size)
        ctx_q = self.encoding.prepare(asked if rays is None else asked.take(rays))
        count = asked.coords.shape[1] if rays is None else rays.shape[-1]
        x = self.encoding.tokens(self.query.expand(images.shape[0], count, -1), ctx_q)
        for i, block in enumerate(self.decoder, start=len(self.blocks)):
            encoding, layer_q = self.encoding.layer(ctx_q, i)
            x = self._run(block, x, scene, encoding, layer_q, self.encoding.layer(ctx_k, i)[1])
        x = self.head(self.norm(x)).sigmoid()
        if rays is not None:
            return x.unflatten(-1, (-1, self.query_size, self.query_size))
        grid = (size[0] // self.query_size, size[1] // self.query_size)
        return unpatchify(x.unflatten(1, (-1, grid[0] * grid[1])), grid, self.query_size)

    def _queries(self, cameras: Tensor, intrinsics: Tensor | None, size: tuple[int, int]) -> CameraPositions:
        """Positions of the queries, in cells of the encoder's grid: (i + ½)·query/stride − ½ lies between cells."""
        q, grid = self.query_size, self._grid(size)
        if q == self.cell:
            return self._positions(cameras, intrinsics, size)
        pos = camera_grid(
            size[0] // q, size[1] // q, cameras, intrinsics, None if intrinsics is None else size, train=self.train_grid
        )
        coords = (pos.coords + 0.5) * (q / self.cell) - 0.5
        return replace(pos, coords=coords, grid=None, extent=grid, indices=None)
