"""Diffusion transformers with any encoding of the table, on diffusers' ModelMixin: class-conditional DiT, SiT, LightningDiT.

Papers: Peebles and Xie, DiT, ICCV 2023, arXiv 2212.09748; Ma et al., SiT, ECCV 2024, arXiv 2401.08740; Yao et al.,
LightningDiT, CVPR 2025, arXiv 2501.01423. Codes: facebookresearch/DiT at ed81ce2, willisma/SiT at 947f95b,
hustvl/LightningDiT at 2725fed; keys are theirs, positions excepted. Different from all three: any latent size, square or not;
positions come from `encoding`; the sin-cos table is computed, not stored. Different from diffusers' DiTTransformer2DModel: one
embedder of time and class for all blocks, so that a dropped class is dropped in every block.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..encodings import EncodingStack
from ..positions import Positions
from .dit_parts import (
    CropEmbedder,
    DiTBlock,
    FinalLayer,
    LabelEmbedder,
    MlpKind,
    Norm,
    TimestepEmbedder,
    init_linears,
    unpatchify,
    zero,
)  # fmt: skip
from .latent_transformer import LatentTransformer

try:
    from diffusers.configuration_utils import register_to_config
    from diffusers.models.modeling_utils import ModelMixin  # noqa: F401  pipelines look for it beside the class they load
except ImportError as error:
    raise ImportError("Diffusion transformers stand on diffusers: pip install vispe[diffusion]") from error

Prediction = Literal["epsilon", "v_prediction", "sample", "flow_prediction", "sit_velocity"]
PREDICTIONS: tuple[str, ...] = ("epsilon", "v_prediction", "sample", "flow_prediction", "sit_velocity")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse an option that is none of the allowed ones."""
    if value not in allowed:
        raise ValueError(f"EncodedDiT: {name} must be one of {allowed}, got {value!r}.")


class EncodedDiT(LatentTransformer):
    """Diffusion transformer whose positions come from the hooks of an encoding. Every argument is a plain JSON value.

    Args:
        encoding: a name of the table, or several joined by "+" ("sincos2d+rope_eva02").
        encoding_kwargs: options of that encoding; for a composition {name: options}.
        input_size: cells of the latent, (height, width) or one number; other multiples of the patch are accepted at run time.
        train_size: cells that positions were trained with, the reference of "extend" and "rescale"; None takes input_size.
        patch_size, in_channels, hidden_size, depth, num_heads, mlp_ratio: the transformer (default: DiT-XL/2).
        num_classes: classes without the null class, whose id is `num_classes`; 0 for an unconditional model.
        null_class: whether there is a null class, which guidance needs.
        class_dropout: share of classes that training replaces by the null class, one draw a sample and forward.
        prediction_type: what the output means. "epsilon", "v_prediction" and "sample" take times 0..999; "flow_prediction" is
            noise − data at time σ · 1000 (SD3); "sit_velocity" is data − noise at time 1 − σ in [0, 1], unscaled (SiT).
        learn_sigma: twice the channels come out, the second half a variance; for the two flows it is computed and dropped.
        qk_norm, qk_norm_weight, norm, mlp, shift: see DiTBlock; LightningDiT has norm="rms", mlp="swiglu" and, in some sizes,
            shift=False.
        micro_conditioning: take the crop of the training image as a condition, see CropEmbedder.
    """

    _skip_layerwise_casting_patterns = ["encoding", "norm"]
    _no_split_modules = ["DiTBlock"]
    folded = False

    @register_to_config
    def __init__(
        self,
        encoding: str = "sincos2d",
        encoding_kwargs: dict[str, Any] | None = None,
        input_size: int | tuple[int, int] = 32,
        train_size: int | tuple[int, int] | None = None,
        patch_size: int = 2,
        in_channels: int = 4,
        hidden_size: int = 1152,
        depth: int = 28,
        num_heads: int = 16,
        mlp_ratio: float = 4.0,
        num_classes: int = 1000,
        null_class: bool = True,
        class_dropout: float = 0.1,
        prediction_type: Prediction = "epsilon",
        learn_sigma: bool = True,
        qk_norm: bool = False,
        qk_norm_weight: bool = True,
        norm: Norm = "layer",
        mlp: MlpKind = "gelu",
        shift: bool = True,
        micro_conditioning: bool = False,
    ) -> None:
        super().__init__()
        one_of("prediction_type", prediction_type, PREDICTIONS)
        one_of("norm", norm, ("layer", "rms"))
        one_of("mlp", mlp, ("gelu", "swiglu"))
        self.patch_size, self.in_channels, self.prediction_type = patch_size, in_channels, prediction_type
        self.out_channels = 2 * in_channels if learn_sigma else in_channels
        self.gradient_checkpointing = False
        self.train_grid = self._grid_of(input_size if train_size is None else train_size)
        grid = self._grid_of(input_size)
        self.x_embedder = nn.ModuleDict({"proj": nn.Conv2d(in_channels, hidden_size, patch_size, stride=patch_size)})
        self.t_embedder = TimestepEmbedder(hidden_size)
        self.y_embedder = (
            LabelEmbedder(num_classes, hidden_size, null_class=null_class, dropout=class_dropout) if num_classes else None
        )
        self.crop_embedder = CropEmbedder(hidden_size) if micro_conditioning else None
        self.blocks = nn.ModuleList(
            DiTBlock(
                hidden_size, num_heads, mlp_ratio=mlp_ratio, mlp=mlp, norm=norm, qk_norm=qk_norm, qk_norm_weight=qk_norm_weight,
                shift=shift,
            )
            for _ in range(depth)
        )  # fmt: skip
        self.final_layer = FinalLayer(hidden_size, patch_size, self.out_channels, norm=norm)
        mlp_dim = self.blocks[0].mlp.fc1.out_features if mlp == "gelu" else None
        self.encoding = EncodingStack(
            encoding, dim=hidden_size, num_heads=num_heads, depth=depth, options=encoding_kwargs,
            facts={
                "grid": grid, "train_grid": self.train_grid, "prefix": 0, "patch_size": to_2tuple(patch_size),
                "mlp_dim": mlp_dim,
            },
        )  # fmt: skip
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """DiT's initialisation: the model's output is zero and every block the identity."""
        init_linears(self)
        proj = self.x_embedder["proj"]
        nn.init.xavier_uniform_(proj.weight.flatten(1))
        nn.init.zeros_(proj.bias)
        for layer in (self.t_embedder.mlp[0], self.t_embedder.mlp[2]):
            nn.init.normal_(layer.weight, std=0.02)
        if self.y_embedder is not None:
            nn.init.normal_(self.y_embedder.embedding_table.weight, std=0.02)
        zero(*(block.adaLN_modulation[1] for block in self.blocks), self.final_layer.adaLN_modulation[1])
        zero(self.final_layer.linear, *([] if self.crop_embedder is None else [self.crop_embedder.mlp[2]]))
        self.encoding.reset_parameters()

    # ---- forward ----------------------------------------------------------------------------------------------------

    def condition(
        self, t: Tensor, y: Tensor | None, batch: int, *, crop: Tensor | None = None, drop_classes: Tensor | None = None
    ) -> Tensor:
        """The vector (B, C) that modulates every block."""
        c = self.t_embedder(self._times(t, batch, self.t_embedder.mlp[0].weight.device)).expand(batch, -1)
        if self.y_embedder is None and y is not None:
            raise ValueError("EncodedDiT: got class ids, but the model is unconditional (num_classes=0); leave y out.")
        if self.y_embedder is not None:
            c = c + self.y_embedder(self._check_ids(y, batch), drop_classes)
        elif drop_classes is not None:
            raise ValueError("EncodedDiT: drop_classes needs a class-conditional model (num_classes > 0).")
        if self.crop_embedder is not None:
            return c + self.crop_embedder(crop, batch)
        if crop is not None:
            raise ValueError("EncodedDiT: got a crop; create the model with micro_conditioning=True to condition on it.")
        return c

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        y: Tensor | None = None,
        *,
        positions: Positions | None = None,
        crop: Tensor | None = None,
        drop_classes: Tensor | None = None,
    ) -> Tensor:
        """The prediction at noisy latents.

        Args:
            x: (B, C, height, width), sides multiples of the patch.
            t: () or (B,), in the unit of `prediction_type`.
            y: (B,) int64 class ids; `num_classes` is the null class.
            positions: of the patches, row-major; None for the plain grid. Random ones (RPE-2D) have one draw a sample.
            crop: (B, 4), see CropEmbedder; None is the whole image.
            drop_classes: (B,) bool, ids that become the null class; None draws in training.

        Returns:
            (B, C or 2C, height, width).
        """
        grid = self._latent_grid(x)
        c = self.condition(t, y, x.shape[0], crop=crop, drop_classes=drop_classes)
        ctx = self.encoding.prepare(self._place(x, t, grid, positions))
        x = self.x_embedder["proj"](x).flatten(2).transpose(1, 2)  # (B, N, C)
        x = self.encoding.between(self.encoding.tokens(x, ctx), ctx, -1)
        for i, block in enumerate(self.blocks):
            encoding, layer_ctx = self.encoding.layer(ctx, i)
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = self._gradient_checkpointing_func(block, x, c, encoding, layer_ctx)
            else:
                x = block(x, c, encoding, layer_ctx)
            x = self.encoding.between(x, ctx, i)
        out = unpatchify(self.final_layer(x, c), grid, self.patch_size)
        flow = self.prediction_type in ("flow_prediction", "sit_velocity")
        return out[:, : self.in_channels] if flow and self.out_channels > self.in_channels else out

    # ---- folding, saving -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def fold(self) -> EncodedDiT:
        """Bake learned rotary bases into W_q and W_k, in place, for inference: plain rotary remains. Returns self.

        The folded model computes the same at any size; its state dict is no longer that of its configuration, so that it is not
        saved by `save_pretrained`.
        """
        from .vit import fold_stack

        self.folded = fold_stack(self.encoding, [block.attn for block in self.blocks]) or self.folded
        return self

    def save_pretrained(self, save_directory: str | PathLike, *args: Any, **kwargs: Any) -> None:
        """diffusers' (which see for the other arguments); refuses a folded model, which would not come back so."""
        if self.folded:
            raise ValueError("EncodedDiT: a folded model has other parameters than its configuration; save it ahead of fold().")
        super().save_pretrained(save_directory, *args, **kwargs)
