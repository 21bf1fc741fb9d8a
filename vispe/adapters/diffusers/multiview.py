"""Several views of one scene in one diffusion transformer: joint attention of all views, with encodings that know cameras.

    model = multiview(pixart, "plucker+epipolar")           # or "gta", "prope", "rayrope", ...
    cameras = Cameras(world_to_camera, intrinsics, image_size=(256, 256))       # (B, V, 4, 4), (B, V, 3, 3)
    out = model(latents, timestep=t, encoder_hidden_states=words, cross_attention_kwargs={"cameras": cameras})

`latents` are (B · V, C, H, W), views of a scene next to each other; text, classes and times stay those of each view. In every
self-attention the tokens of a scene's views look at each other, as in SPAD (Kant et al., CVPR 2024, arXiv 2402.05235;
yashkant/spad@7a375c0, MIT). Encodings of tokens (Plücker rays) are added ahead of queries, keys and values of every layer,
inside its residual branch, by a projection of its own that starts at zero: with one view, the model then computes what it did.
SPAD appends the six numbers to the channels ahead of a projection whose new columns are zero, which is the same sum.
Cross-attention to text is as ever. Different here: the target is a transformer with patch embeddings instead of SPAD's U-Net;
its embedding of relative camera angles in the time step is left out.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DiTTransformer2DModel, PixArtTransformer2DModel
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor, nn

from ...encodings import EncodingStack, encoding_class
from ...encodings.base import Composed, Encoding
from ...layers import attend
from ...positions import CameraPositions, camera_grid
from .attention import heads, normed, project
from .processors import CrossProcessor
from .square import any_shape
from .swap import Setup

CLASSES = (DiTTransformer2DModel, PixArtTransformer2DModel)
ACTS = {"tokens", "between", "look", "qk", "v", "out", "bias", "mix", "beside", "projected"}


@dataclass(frozen=True)
class Cameras:
    """Cameras of the views of a batch.

    Attributes:
        world_to_camera: (B or 1, V, 4, 4), OpenCV axes.
        intrinsics: (B or 1, V, 3, 3) in pixels of image_size, or None where the encoding does without.
        image_size: (height, width) that the intrinsics are for; any size, since latents are cells of it.
    """

    world_to_camera: Tensor
    intrinsics: Tensor | None = None
    image_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class PlacedViews:
    """What travels to the processors: the number of views, and the context of each encoding of each layer."""

    views: int
    layers: tuple[tuple[Any, ...], ...]


class MultiViewProcessor(nn.Module):
    """Self-attention over the tokens of all views.

    Args:
        number: of the layer.
        encodings: of this layer, by name.
    """

    def __init__(self, number: int, encodings: dict[str, Encoding]) -> None:
        super().__init__()
        self.number, self.encodings = number, nn.ModuleDict(encodings)

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        vispe: PlacedViews | None = None,
    ) -> Tensor:
        if not isinstance(vispe, PlacedViews):
            raise ValueError("this attention layer joins views; call it through its whole model, with cameras.")
        if attention_mask is not None:
            raise ValueError("multiview: a mask of the tokens of one view has no meaning among all views; leave it out.")
        hooks, ctx = Composed(list(self.encodings.values())), vispe.layers[self.number]
        x = hidden_states.unflatten(0, (-1, vispe.views)).flatten(1, 2)  # (B, V · N, C)
        for member, c in zip(hooks.members, ctx):
            x = member.tokens(x, c)
        ctx = hooks.look(x, ctx)
        width = attn.to_q.out_features // attn.heads
        q, k, v = (heads(t, width) for t in project(attn, x))
        q, k = normed(q, k, attn.norm_q, attn.norm_k)
        o = attend(*(t.transpose(1, 2) for t in (q, k, v)), hooks, ctx, ctx, scale=width**-0.5)
        o = attn.to_out[1](hooks.projected(attn.to_out[0](o.transpose(1, 2).flatten(2)), ctx))
        o = o.unflatten(1, (vispe.views, -1)).flatten(0, 1)
        return (o + hidden_states if attn.residual_connection else o) / attn.rescale_output_factor


class CameraCarrier:
    """Forward pre-hook of a model: makes contexts of `cameras` among its attention arguments and sends them to the layers."""

    def __call__(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = inspect.signature(type(model).forward).bind(model, *args, **kwargs).arguments
        call.pop("self")
        given = dict(call.get("cross_attention_kwargs") or {})
        cameras = given.pop("cameras", None)
        if not isinstance(cameras, Cameras):
            raise ValueError(
                f"multiview: pass cross_attention_kwargs={{'cameras': Cameras(world_to_camera, intrinsics, image_size=...)}}, "
                f"got {type(cameras).__name__}."
            )
        pos = places(call["hidden_states"], model.config.patch_size, cameras)
        layers = [list(block.attn1.processor.encodings.values()) for block in model.transformer_blocks]
        with torch.autocast(pos.coords.device.type, enabled=False):
            columns = [type(column[0]).prepare_layers(column, pos) for column in zip(*layers)]
        placed = PlacedViews(pos.num_views, tuple(zip(*columns)) if columns else ((),) * len(layers))
        return (), {**call, "cross_attention_kwargs": {**given, "vispe": placed}}


def places(latent: Tensor, patch: int, cameras: Cameras) -> CameraPositions:
    """Positions of the patches of latents (B · V, C, H, W)."""
    batch, views = cameras.world_to_camera.shape[:2]
    height, width = latent.shape[-2:]
    if height % patch or width % patch:
        raise ValueError(f"multiview: a latent of {height}x{width} cells is no multiple of the patch of {patch}x{patch}.")
    if latent.shape[0] % views or batch not in (1, latent.shape[0] // views):
        raise ValueError(
            f"multiview: {latent.shape[0]} latents are not those of {views} views of {batch} scenes; pass B · V latents, the "
            f"views of a scene next to each other, and cameras (B or 1, V, 4, 4)."
        )
    return camera_grid(
        height // patch, width // patch, cameras.world_to_camera, cameras.intrinsics, cameras.image_size, frame="first"
    )


def multiview(
    model: nn.Module, encoding: str, encoding_kwargs: dict[str, Any] | None = None, *, train_grid: tuple[int, int] | None = None
) -> nn.Module:
    """A copy of a DiT or PixArt whose self-attention joins views and knows their cameras.

    The model's own encoding of places stays. Parameters of the new ones stand in `...attn1.processor.encodings.<name>` of the
    state dict, each layer's its own; this package's `save` and `load` write and read the whole model. Poses are moved to the
    first view, in float64, ahead of rounding, so that the world's frame does not matter to any encoding, absolute ones too.

    Args:
        model: a DiTTransformer2DModel or PixArtTransformer2DModel with its stock processors.
        encoding: a name of the table, or several joined by "+"; "none" joins views alone.
        encoding_kwargs: its options; for several {name: options}.
        train_grid: tokens on each axis in training; None takes the model's configuration.

    Raises:
        ValueError: another class, processors that are not the stock ones, an encoding without a place.
    """
    if not isinstance(model, CLASSES):
        raise ValueError(f"multiview: no adapter for {type(model).__name__}; there are {[c.__name__ for c in CLASSES]}.")
    strange = {type(b.attn1.processor).__name__ for b in model.transformer_blocks} - {AttnProcessor2_0.__name__}
    if strange:
        raise ValueError(f"multiview: the attention processors {sorted(strange)} would be lost; start from the stock model.")
    for name in encoding.split("+"):
        acts = set(encoding_class(name).card.injection)
        if not acts <= ACTS:
            raise ValueError(f"multiview: {name!r} acts on {sorted(acts - ACTS)}, which has no place among joined views.")
    model = copy.deepcopy(model)
    blocks, weight = model.transformer_blocks, model.transformer_blocks[0].attn1.to_q.weight
    grid = train_grid or (model.config.sample_size // model.config.patch_size,) * 2
    num_heads = model.config.num_attention_heads
    stack = EncodingStack(
        encoding, dim=num_heads * model.config.attention_head_dim, num_heads=num_heads, depth=len(blocks),
        options=encoding_kwargs, facts={"prefix": 0, "grid": tuple(grid), "train_grid": tuple(grid)},
    )  # fmt: skip
    if stack.wants_image:
        raise ValueError(f"multiview: {encoding!r} reads one image and there are several views; take another encoding.")
    for i, block in enumerate(blocks):
        own = {name: layer_of(stack[name], i) for name in stack if name != "none"}
        processor = MultiViewProcessor(i, own).to(device=weight.device, dtype=weight.dtype)
        block.attn1.set_processor(processor.train(model.training))
        if getattr(block, "attn2", None) is not None:
            block.attn2.set_processor(CrossProcessor())
    model.register_forward_pre_hook(CameraCarrier(), with_kwargs=True)
    model.vispe_setup = Setup(encoding, encoding_kwargs or {}, train_grid=train_grid and tuple(train_grid), views=True)
    any_shape(model)
    return model


def layer_of(member: Encoding | nn.ModuleList, i: int) -> Encoding:
    """The encoding of layer i; a shared one is copied, since every layer has its own here."""
    if isinstance(member, nn.ModuleList):
        return member[i]
    if member.of_blocks:
        raise ValueError(
            f"multiview: {type(member).__name__} with these options acts between blocks; leave inject='tokens', which every "
            f"layer here does for itself."
        )
    return copy.deepcopy(member)
