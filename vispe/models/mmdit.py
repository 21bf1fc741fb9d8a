"""A multimodal diffusion transformer: text and image in one attention, each with weights of its own (SD3, Flux).

Paper: Esser et al., Scaling Rectified Flow Transformers, ICML 2024, arXiv 2403.03206 (two streams, joint attention,
QK-RMSNorm); Flux adds blocks of one stream for both (`single_depth`). Written small enough to be trained on a CPU
(`configs/dit/glyphs_mmdit.yaml`); it loads no released weights. Text is given as tokens of an encoder of yours, or is learned:
with `num_classes` every class has tokens of its own, and the model is trained and sampled as a class-conditional one.

Positions act on image tokens only: text tokens pass every hook untouched, whatever the encoding. The order of the joint
sequence is explicit, "text_image" (Flux) or "image_text" (SD3): attention does not depend on it, masks do.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..encodings import EncodingStack
from ..encodings.base import Composed, Encoding
from ..positions import Positions
from .dit_parts import FinalLayer, LabelEmbedder, TimestepEmbedder, init_linears, unpatchify, zero
from .latent_transformer import LatentTransformer
from .mmdit_parts import JointBlock, Order, SingleBlock

try:
    from diffusers.configuration_utils import register_to_config
    from diffusers.models.modeling_utils import ModelMixin  # noqa: F401  pipelines look for it beside the class they load
except ImportError as error:
    raise ImportError("Diffusion transformers stand on diffusers: pip install vispe[diffusion]") from error


class EncodedMMDiT(LatentTransformer):
    """Text-to-image flow transformer with any encoding on its image tokens. Every argument is a plain JSON value.

    Args:
        encoding, encoding_kwargs, input_size, train_size, patch_size, in_channels: see EncodedDiT.
        hidden_size, num_heads, mlp_ratio: of both streams.
        depth: blocks of two streams; the last one gives no text when no single block follows (it would not be used).
        single_depth: blocks of one stream for text and image behind them.
        text_dim: channels of the text tokens given.
        pooled_dim: channels of one vector for the whole text, added to the time; 0 for none.
        num_classes: 0 for text that is given. Else texts are learned, `class_tokens` tokens for each class and the null class
            (id `num_classes`); a pooled vector is then the mean of the tokens (pooled_dim = text_dim).
        class_dropout: share of classes that training replaces by the null class, one draw a sample and forward.
        order: of the joint sequence, and of the masks given.
        qk_norm: RMSNorm of queries and keys in each stream.
    """

    _skip_layerwise_casting_patterns = ["encoding", "norm"]
    _no_split_modules = ["JointBlock", "SingleBlock"]

    @register_to_config
    def __init__(
        self,
        encoding: str = "rope_axial",
        encoding_kwargs: dict[str, Any] | None = None,
        input_size: int | tuple[int, int] = 32,
        train_size: int | tuple[int, int] | None = None,
        patch_size: int = 2,
        in_channels: int = 4,
        hidden_size: int = 384,
        depth: int = 6,
        single_depth: int = 0,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        text_dim: int = 64,
        pooled_dim: int = 0,
        num_classes: int = 0,
        class_tokens: int = 4,
        class_dropout: float = 0.1,
        order: Order = "text_image",
        qk_norm: bool = True,
    ) -> None:
        super().__init__()
        if order not in ("text_image", "image_text"):
            raise ValueError(f"EncodedMMDiT: order must be 'text_image' or 'image_text', got {order!r}.")
        if depth < 1:
            raise ValueError(f"EncodedMMDiT: needs at least one block of two streams, got depth={depth}.")
        if num_classes and (class_tokens < 1 or pooled_dim not in (0, text_dim)):
            raise ValueError(
                f"EncodedMMDiT: a model with classes needs class_tokens >= 1 and pooled_dim 0 or text_dim={text_dim}, got "
                f"class_tokens={class_tokens}, pooled_dim={pooled_dim}."
            )
        self.patch_size, self.in_channels, self.order = patch_size, in_channels, order
        self.out_channels, self.prediction_type = in_channels, "flow_prediction"
        self.gradient_checkpointing = False
        self.train_grid = self._grid_of(input_size if train_size is None else train_size)
        self.x_embedder = nn.ModuleDict({"proj": nn.Conv2d(in_channels, hidden_size, patch_size, stride=patch_size)})
        self.t_embedder = TimestepEmbedder(hidden_size)
        self.y_embedder = (
            LabelEmbedder(num_classes, class_tokens * text_dim, null_class=True, dropout=class_dropout) if num_classes else None
        )
        self.text_embedder = nn.Linear(text_dim, hidden_size)
        self.pooled_embedder = (
            nn.Sequential(nn.Linear(pooled_dim, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size))
            if pooled_dim else None
        )  # fmt: skip
        shared: dict[str, Any] = dict(num_heads=num_heads, mlp_ratio=mlp_ratio, qk_norm=qk_norm, order=order)
        self.blocks = nn.ModuleList(
            JointBlock(hidden_size, text_out=single_depth > 0 or i < depth - 1, **shared) for i in range(depth)
        )
        self.single_blocks = nn.ModuleList(SingleBlock(hidden_size, **shared) for _ in range(single_depth))
        self.final_layer = FinalLayer(hidden_size, patch_size, self.out_channels)
        self.encoding = EncodingStack(
            encoding, dim=hidden_size, num_heads=num_heads, depth=depth + single_depth, options=encoding_kwargs,
            facts={
                "grid": self._grid_of(input_size), "train_grid": self.train_grid, "prefix": 0,
                "patch_size": to_2tuple(patch_size), "mlp_dim": int(hidden_size * mlp_ratio),
            },
        )  # fmt: skip
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As DiT: every block is the identity and the output zero."""
        init_linears(self)
        nn.init.xavier_uniform_(self.x_embedder["proj"].weight.flatten(1))
        nn.init.zeros_(self.x_embedder["proj"].bias)
        for layer in (self.t_embedder.mlp[0], self.t_embedder.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)
        if self.y_embedder is not None:
            nn.init.normal_(self.y_embedder.embedding_table.weight, std=1.0)  # tokens as wide as an encoder's
        for block in (*self.blocks, *self.single_blocks):
            zero(*block.modulations())
        zero(self.final_layer.adaLN_modulation[1], self.final_layer.linear)
        self.encoding.reset_parameters()

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        text: Tensor | None = None,
        pooled: Tensor | None = None,
        *,
        y: Tensor | None = None,
        text_mask: Tensor | None = None,
        positions: Positions | None = None,
        drop_classes: Tensor | None = None,
    ) -> Tensor:
        """The velocity (noise − data) at noisy latents.

        Args:
            x: (B, C, height, width). t: () or (B,), σ · 1000.
            text: (B, T, text_dim), of a model without classes.
            pooled: (B, pooled_dim), beside text.
            y: (B,) int64 class ids, of a model with classes; `num_classes` is the null class.
            text_mask: (B, T), true where a text token is no padding.
            positions: of the patches, row-major; None for the plain grid. Random ones (RPE-2D) have one draw a sample.
            drop_classes: (B,) bool, ids that become the null class; None draws in training.

        Returns:
            (B, C, height, width).
        """
        grid = self._latent_grid(x)
        if self.y_embedder is None:
            self._check_text(x.shape[0], text, pooled, text_mask)
            if y is not None or drop_classes is not None:
                raise ValueError("EncodedMMDiT: got classes, but the model takes text (num_classes=0).")
        else:
            if text is not None or pooled is not None or text_mask is not None:
                raise ValueError("EncodedMMDiT: got text, but the model has classes; give y.")
            text = self.y_embedder(self._check_ids(y, x.shape[0]), drop_classes)
            text = text.unflatten(1, (-1, self.text_embedder.in_features))
            pooled = None if self.pooled_embedder is None else text.mean(dim=1)
        c = self.t_embedder(self._times(t, x.shape[0], x.device)).expand(x.shape[0], -1)
        c = c if pooled is None else c + self.pooled_embedder(pooled)
        ctx = self.encoding.prepare(self._place(x, t, grid, positions))
        image = self.x_embedder["proj"](x).flatten(2).transpose(1, 2)
        image = self.encoding.between(self.encoding.tokens(image, ctx), ctx, -1)
        mask = self._mask(text_mask, image)
        image = self._run(image, self.text_embedder(text), c, ctx, mask)
        return unpatchify(self.final_layer(image, c), grid, self.patch_size)

    def _check_text(self, batch: int, text: Tensor | None, pooled: Tensor | None, mask: Tensor | None) -> None:
        width = self.text_embedder.in_features
        if text is None or text.ndim != 3 or text.shape[0] != batch or text.shape[2] != width:
            got = None if text is None else tuple(text.shape)
            raise ValueError(f"EncodedMMDiT: text must be ({batch}, tokens, {width}), got {got}.")
        if (pooled is None) != (self.pooled_embedder is None):
            raise ValueError("EncodedMMDiT: pooled text is given exactly when the model has pooled_dim > 0.")
        if mask is not None and mask.shape != text.shape[:2]:
            raise ValueError(f"EncodedMMDiT: text_mask must be {tuple(text.shape[:2])}, got {tuple(mask.shape)}.")

    def _run(self, image: Tensor, text: Tensor, c: Tensor, ctx: list[Any], mask: Tensor | None) -> Tensor:
        for i, block in enumerate((*self.blocks, *self.single_blocks)):
            encoding, layer_ctx = self.encoding.layer(ctx, i)
            image, text = self._block(block, image, text, c, encoding, layer_ctx, mask)
            image = self.encoding.between(image, ctx, i)
        return image

    def _block(
        self, block: nn.Module, image: Tensor, text: Tensor | None, c: Tensor, encoding: Encoding | Composed, ctx: Any,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return self._gradient_checkpointing_func(block, image, text, c, encoding, ctx, mask)
        return block(image, text, c, encoding, ctx, mask)

    def _mask(self, text_mask: Tensor | None, image: Tensor) -> Tensor | None:
        """(B, 1, 1, T + N) in the joint order, true where attention may look."""
        if text_mask is None:
            return None
        seen = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device)
        parts = (text_mask.bool(), seen) if self.order == "text_image" else (seen, text_mask.bool())
        return torch.cat(parts, dim=1)[:, None, None]
