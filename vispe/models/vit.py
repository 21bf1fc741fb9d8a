"""timm's Vision Transformer with any encoding of the table, at any image size.

A subclass that keeps timm's parameters and contract (features, intermediates, input size, classifier, parameter groups,
checkpointing, saving) and replaces the learned table by `self.encoding`, an `EncodingStack`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn as nn
from timm.layers import Mlp, PatchDropoutWithIndices, to_2tuple
from timm.models import checkpoint
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from ..encodings import EncodingStack
from ..encodings.extrapolation import Extrapolation
from ..layers import Attention, Block, PatchEmbed
from ..positions import Positions, Resize, patch_grid, with_image
from .timm_private import feature_take_indices, update_model_args, update_model_input_size


class EncodedVisionTransformer(VisionTransformer):
    """Vision Transformer whose positions come from the hooks of an encoding.

    Args:
        encoding: a name of the table, or several joined by "+" ("learned+rope_mixed").
        encoding_kwargs: options of that encoding; for a composition {name: options}. Plain JSON values.
        img_size: pixels, (height, width) or one number; other sizes are accepted at run time.
        train_size: pixels of the images that positions were trained with, the reference of "extend" and "rescale"; None takes
            img_size. Learned tables are made for img_size, so that a model comes back from its saved arguments with the table
            that `set_input_size` left it.
        patch_drop_rate: share of patches dropped in training; the kept ones keep their own positions.
        embed_layer, block_fn: what makes tokens of pixels, and the blocks; for subclasses.
        timm_kwargs: every other argument of timm's VisionTransformer, which refuses unknown ones. `pos_embed` and
            `dynamic_img_size` are not among them: the encoding is the position embedding, and sizes are always dynamic.
    """

    stack_class: type[EncodingStack] = EncodingStack

    def __init__(
        self,
        encoding: str = "none",
        encoding_kwargs: dict[str, Any] | None = None,
        img_size: int | tuple[int, int] = 224,
        train_size: int | tuple[int, int] | None = None,
        patch_drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        embed_layer: Callable[..., nn.Module] = PatchEmbed,
        block_fn: type[nn.Module] = Block,
        **timm_kwargs: Any,
    ) -> None:
        for name in ("pos_embed", "dynamic_img_size", "no_embed_class"):
            if name in timm_kwargs:
                raise TypeError(
                    f"{type(self).__name__}: {name!r} is not an argument here; positions come from `encoding` "
                    f"(e.g. encoding='learned', encoding_kwargs={{'prefix_rows': True}}) and any image size is accepted."
                )
        super().__init__(
            img_size=img_size, pos_embed="none", dynamic_img_size=True, embed_layer=embed_layer, block_fn=block_fn,
            attn_layer=Attention, device=device, dtype=dtype, **timm_kwargs,
        )  # fmt: skip
        self.train_grid = self._grid_of(img_size if train_size is None else train_size)
        self._record_train_size()
        grid = self._grid_of(img_size)
        if not 0 <= patch_drop_rate < 1:
            raise ValueError(f"patch_drop_rate is a share in [0, 1), got {patch_drop_rate}.")
        if patch_drop_rate > 0:
            self.patch_drop = PatchDropoutWithIndices(patch_drop_rate, num_prefix_tokens=0)
        with torch.device(device) if device is not None else torch.device(self.patch_embed.proj.weight.device):
            self.encoding = self.stack_class(
                encoding,
                dim=self.embed_dim,
                num_heads=self.blocks[0].attn.num_heads,
                depth=len(self.blocks),
                axes=len(grid),
                options=encoding_kwargs,
                facts=self._facts(grid),
            )
        self.encoding.to(dtype=dtype)
        self.register_load_state_dict_pre_hook(_rename_plain_table)

    def _record_train_size(self) -> None:
        """Save the reference of coordinates with the model, so that a reload at another image size keeps it."""
        update_model_args(self, train_size=tuple(n * p for n, p in zip(self.train_grid, self.patch_embed.patch_size)))

    def _grid_of(self, size: int | tuple[int, int]) -> tuple[int, int]:
        size = to_2tuple(size)
        if not self.patch_embed.dynamic_img_pad and any(s % p or s < p for s, p in zip(size, self.patch_embed.patch_size)):
            raise ValueError(
                f"{type(self).__name__}: image size {tuple(size)} is no multiple of the patch size "
                f"{self.patch_embed.patch_size}; choose a multiple, or dynamic_img_pad=True."
            )
        return tuple(int(n) for n in self.patch_embed.dynamic_feat_size(size))

    def _facts(self, grid: tuple[int, int]) -> dict[str, Any]:
        """What encodings may ask of their host."""
        mlp = self.blocks[0].mlp
        return {
            "grid": grid,
            "train_grid": self.train_grid,
            "prefix": self.num_prefix_tokens,
            "patch_size": tuple(self.patch_embed.patch_size),
            "mlp_dim": mlp.fc1.out_features if isinstance(mlp, Mlp) else None,
        }

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        super().init_weights(mode, needs_reset)
        if hasattr(self, "encoding"):  # timm's pass re-initialises every Linear, the encoding's own with it
            self.encoding.reset_parameters()

    # ---- forward ----------------------------------------------------------------------------------------------------

    def start(self, x: Tensor, pos: Positions) -> tuple[Tensor, list[Any]]:
        """Patch tokens (B, N, C) at positions `pos` to block 0's input (B, prefix + N, C) and the encoding's contexts."""
        if self.training and isinstance(self.patch_drop, PatchDropoutWithIndices):
            x, keep = self.patch_drop(x)
            pos = pos.take(keep)
        lead = [t.expand(x.shape[0], -1, -1) for t in (self.cls_token, self.reg_token) if t is not None]
        x = torch.cat([*lead, x], dim=1) if lead else x
        ctx = self.encoding.prepare(pos)
        x = self.norm_pre(self.pos_drop(self.encoding.tokens(x, ctx)))
        return self.encoding.between(x, ctx, -1), ctx

    def run_block(self, i: int, x: Tensor, ctx: list[Any], attn_mask: Tensor | None = None) -> Tensor:
        """Block i and what the encoding does after it."""
        encoding, layer_ctx = self.encoding.layer(ctx, i)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            x = checkpoint(self.blocks[i], x, encoding, layer_ctx, attn_mask)
        else:
            x = self.blocks[i](x, encoding, layer_ctx, attn_mask)
        return self.encoding.between(x, ctx, i)

    def positions(self, height: int, width: int, device: torch.device | None = None) -> Positions:
        """Positions of a grid of `height` x `width` patches as this model sees them."""
        return patch_grid(height, width, prefix=self.num_prefix_tokens, train=self.train_grid, device=device)

    def _embed(self, x: Tensor) -> tuple[Tensor, list[Any]]:
        patches = self.patch_embed(x)  # (B, H, W, C)
        pos = self.positions(*patches.shape[1:-1], device=x.device)
        return self.start(patches.flatten(1, -2), with_image(pos, x) if self.encoding.wants_image else pos)

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Images (B, C, height, width) to normalised tokens (B, prefix + N, C)."""
        x, ctx = self._embed(x)
        attn_mask = _causal(attn_mask, is_causal, x)
        for i in range(len(self.blocks)):
            x = self.run_block(i, x, ctx, attn_mask)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """timm's intermediate features (see VisionTransformer.forward_intermediates), on the grid of the actual image."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"forward_intermediates: output_fmt must be 'NCHW' or 'NLC', got {output_fmt!r}.")
        take, last = feature_take_indices(len(self.blocks), indices)
        grid = self.patch_embed.dynamic_feat_size(x.shape[2:])
        x, ctx = self._embed(x)
        attn_mask = _causal(attn_mask, is_causal, x)
        found = []
        for i in range(last + 1 if stop_early else len(self.blocks)):
            x = self.run_block(i, x, ctx, attn_mask)
            if i in take:
                found.append(self.norm(x) if norm else x)
        prefix = [y[:, : self.num_prefix_tokens] for y in found]
        found = [y[:, self.num_prefix_tokens :] for y in found]
        if output_fmt == "NCHW":
            found = [y.transpose(1, 2).unflatten(2, grid).contiguous() for y in found]
        with_prefix = return_prefix_tokens and self.num_prefix_tokens > 0
        if output_dict:
            out = {"image_intermediates": found}
            out |= {"image_intermediates_prefix": prefix} if with_prefix else {}
            return out if intermediates_only else out | {"image_features": self.norm(x)}
        found = list(zip(found, prefix)) if with_prefix else found
        return found if intermediates_only else (self.norm(x), found)

    # ---- timm's contract --------------------------------------------------------------------------------------------

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {f"encoding.{name}" for name in self.encoding.no_weight_decay()}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Per-layer encodings go with their block, shared ones with the stem."""
        own = rf"^encoding\.(?:{'|'.join(self.encoding.by_block()) or 'none of them'})\.(\d+)\."
        uncaptured = own.replace(r"(\d+)", r"\d+")  # timm reads every capturing group as a number, unmatched ones too
        return {
            "stem": rf"^cls_token|^reg_token|^patch_embed|^norm_pre|(?!{uncaptured})^encoding\.",
            "blocks": [(r"^blocks\.(\d+)", None), (own, None), (r"^norm|^fc_norm", (99999,))],
        }

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        take = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.encoding.truncate(len(self.blocks))
        return take

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> list[str]:
        """Make another size the model's own: learned tables are resampled, everything else computes on.

        The reference of relative coordinates (`train_size`) stays, so outputs at a given size do not change.

        Returns:
            What was resampled, in words.
        """
        old_patch = self.patch_embed.patch_size
        self.patch_embed.set_input_size(
            img_size=None if img_size is None else to_2tuple(img_size), patch_size=patch_size
        )
        grid = self._grid_of(self.patch_embed.img_size)
        done = self.encoding.set_grid(grid)
        if old_patch != self.patch_embed.patch_size:
            done.append(f"patch_embed.proj resampled from {old_patch} to {self.patch_embed.patch_size}")
        update_model_input_size(self, self.patch_embed.img_size, patch_size=patch_size)
        self._record_train_size()
        return done

    def set_coords(self, resize: Resize | None) -> None:
        """Let coordinates "extend" beyond the train grid or "rescale" onto it; None returns to what it was created with."""
        self.encoding.set_coords(resize)

    def set_extrapolation(self, setting: str | Extrapolation | None) -> None:
        """What rotary frequencies do on images larger than trained: a method, a preset, an `Extrapolation`, or None."""
        self.encoding.set_extrapolation(setting)

    @torch.no_grad()
    def fold(self) -> EncodedVisionTransformer:
        """Bake learned rotary bases into W_q and W_k, in place, for inference: plain rotary remains. Returns self."""
        for stack, attentions in self.attentions():
            fold_stack(stack, attentions)
        return self

    def attentions(self) -> list[tuple[EncodingStack, list[nn.Module]]]:
        """Every stack of encodings with the attention layers that it serves."""
        return [(self.encoding, [block.attn for block in self.blocks])]


def fold_stack(stack: EncodingStack, attentions: list[nn.Module]) -> bool:
    """Bake every learned basis of a stack into the attentions that it serves; tells whether there was one."""
    able = [(n, m) for n, m in stack.items() if isinstance(m, nn.ModuleList) and hasattr(m[0], "folded")]
    for name, member in able:
        stack[name] = fold_layers(name, attentions, member).train(member.training)
    return bool(able)


def fold_layers(name: str, attentions: list[nn.Module], layers: nn.ModuleList) -> nn.ModuleList:
    """Bake the bases of one encoding's layers into their attentions; returns the plain rotary that is left of each."""
    plain = nn.ModuleList()
    for attn, layer in zip(attentions, layers):
        if not isinstance(attn.q_norm, nn.Identity):
            raise ValueError(f"fold: {name} cannot be folded through q_norm and k_norm; use the model unfolded.")
        basis, rotary = layer.folded()
        fold_basis(attn.qkv, basis)
        rotary.follow(layer)
        plain.append(rotary.to(attn.qkv.weight.device))
    return plain


def fold_basis(qkv: nn.Linear, basis: Tensor) -> None:
    """Multiply the query and key rows of a fused projection by matrices, one a head, in place.

    Args:
        basis: (H, D, D) for both, or (2, H, D, D) for queries and for keys.
    """
    heads, head_dim = basis.shape[-3:-1]
    size = heads * head_dim
    for i, matrices in enumerate(basis.double().expand(2, -1, -1, -1)):
        for tensor in (qkv.weight, qkv.bias):
            if tensor is not None:
                rows = tensor[i * size : (i + 1) * size].view(heads, head_dim, -1)
                rows.copy_((matrices @ rows.double()).to(tensor.dtype))


def _causal(mask: Tensor | None, is_causal: bool, x: Tensor) -> Tensor | None:
    if not is_causal:
        return mask
    if mask is not None:
        raise ValueError("pass either attn_mask or is_causal=True, not both.")
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()


def _rename_plain_table(model: EncodedVisionTransformer, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """A plain ViT's `pos_embed` is the learned encoding's table; strict loading then works unconverted."""
    if "learned" in model.encoding and f"{prefix}pos_embed" in state_dict:
        state_dict[f"{prefix}encoding.learned.pos_embed"] = state_dict.pop(f"{prefix}pos_embed")
