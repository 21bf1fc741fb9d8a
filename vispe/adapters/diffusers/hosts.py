"""What `swap` has to know of each class of diffusers' models: its attention layers, its grid, where its positions enter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from diffusers import (
    DiTTransformer2DModel,
    FluxTransformer2DModel,
    Lumina2Transformer2DModel,
    PixArtTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
)
from torch import Tensor, nn

from ...positions import Positions, lattice, patch_grid
from . import processors
from .attention import Processor


@dataclass(frozen=True)
class Site:
    """One attention layer whose processor is replaced.

    Attributes:
        joint: whether text tokens take part in it.
    """

    attn: nn.Module
    joint: bool


class Host:
    """A class of models.

    Class attributes:
        axes: coordinate axes of its image or video tokens.
        own: its own encoding: a "table" added to the tokens, or a "rotary" table.
        passes: the argument of `forward` through which contexts reach the processors; "" where they go with the rotary table.
        slot: the module that adds the table, or makes the rotary one.
    """

    cls: ClassVar[type[nn.Module]]
    axes: ClassVar[int] = 2
    own: ClassVar[Literal["table", "rotary"]] = "table"
    passes: ClassVar[str] = ""
    slot: ClassVar[str] = "pos_embed"
    processor: ClassVar[type[Processor]]

    def sites(self, model: nn.Module) -> list[Site]:
        return [Site(block.attn1, False) for block in model.transformer_blocks]

    def shape(self, model: nn.Module) -> tuple[int, int]:
        """Attention heads and channels of one."""
        return model.config.num_attention_heads, model.config.attention_head_dim

    def train_grid(self, model: nn.Module) -> tuple[int, ...] | None:
        """Tokens on each axis that the configuration names; None where it names none."""
        return (model.config.sample_size // model.config.patch_size,) * 2

    def positions(self, model: nn.Module, call: dict[str, Any], train: tuple[int, ...] | None) -> tuple[Positions, int]:
        """Positions of the image tokens, and the number of text tokens, from the arguments of `forward`."""
        latent = call["hidden_states"]
        return grid_of(latent, model.config.patch_size, train), 0


class DiT(Host):
    cls, passes, processor = DiTTransformer2DModel, "cross_attention_kwargs", processors.SelfProcessor


class PixArt(Host):
    cls, passes, processor = PixArtTransformer2DModel, "cross_attention_kwargs", processors.SelfProcessor


class SD3(Host):
    cls, passes, processor = SD3Transformer2DModel, "joint_attention_kwargs", processors.SD3Processor

    def sites(self, model: nn.Module) -> list[Site]:
        found = []
        for block in model.transformer_blocks:
            found.append(Site(block.attn, True))
            if getattr(block, "attn2", None) is not None:  # dual attention, of image tokens alone
                found.append(Site(block.attn2, False))
        return found

    def positions(self, model: nn.Module, call: dict[str, Any], train: tuple[int, ...] | None) -> tuple[Positions, int]:
        return grid_of(call["hidden_states"], model.config.patch_size, train), call["encoder_hidden_states"].shape[1]


class Flux(Host):
    cls, own, passes = FluxTransformer2DModel, "rotary", "joint_attention_kwargs"
    processor = processors.FluxProcessor

    def sites(self, model: nn.Module) -> list[Site]:
        return [Site(block.attn, True) for block in (*model.transformer_blocks, *model.single_transformer_blocks)]

    def train_grid(self, model: nn.Module) -> None:
        return None

    def positions(self, model: nn.Module, call: dict[str, Any], train: tuple[int, ...] | None) -> tuple[Positions, int]:
        return flux_positions(call["img_ids"], train), call["txt_ids"].shape[-2]


class Lumina2(Host):
    """Its joint layers hold captions of different lengths, so that text tokens get the coordinate 0 in place of a prefix."""

    cls, own, slot = Lumina2Transformer2DModel, "rotary", "rope_embedder"
    processor = processors.Lumina2Processor

    def sites(self, model: nn.Module) -> list[Site]:
        return [Site(layer.attn, False) for layer in model.noise_refiner] + [Site(layer.attn, True) for layer in model.layers]

    def shape(self, model: nn.Module) -> tuple[int, int]:
        heads = model.config.num_attention_heads
        return heads, model.config.hidden_size // heads


class Wan(Host):
    cls, axes, own, slot = WanTransformer3DModel, 3, "rotary", "rope"
    processor = processors.WanProcessor

    def sites(self, model: nn.Module) -> list[Site]:
        return [Site(block.attn1, False) for block in model.blocks]

    def train_grid(self, model: nn.Module) -> None:
        return None


HOSTS: tuple[Host, ...] = (DiT(), PixArt(), SD3(), Flux(), Lumina2(), Wan())


def host_of(model: nn.Module, caller: str = "swap") -> Host:
    """The entry for a model; refuses classes that have none."""
    for host in HOSTS:
        if isinstance(model, host.cls):
            return host
    raise ValueError(
        f"{caller}: no adapter for {type(model).__name__}; of diffusers' models there are "
        f"{', '.join(host.cls.__name__ for host in HOSTS)}."
    )


def grid_of(latent: Tensor, patch: int, train: tuple[int, ...] | None) -> Positions:
    """Positions of the patches of a latent (B, C, H, W)."""
    height, width = latent.shape[-2:]
    if height % patch or width % patch:
        raise ValueError(f"a latent of {height}x{width} cells is no multiple of the patch of {patch}x{patch}.")
    return patch_grid(height // patch, width // patch, train=train, device=latent.device)


def extent_of(cells: Tensor) -> tuple[int, ...]:
    """Cells on each axis up to the last one in (N, axes) row and column numbers."""
    return tuple(int(n) + 1 for n in cells.amax(dim=0).tolist())


def exact(ids: Tensor) -> Tensor:
    """Ids (N, axes) as float32; refuses half precision where neighbours have fallen together."""
    ids = ids[0] if ids.ndim == 3 else ids
    last = {torch.bfloat16: 256, torch.float16: 2048}.get(ids.dtype)
    if last is not None and ids.abs().max() >= last:
        raise ValueError(
            f"image ids in {ids.dtype} are the same for neighbours from {last} on; build them in float32 (they go up to "
            f"{float(ids.abs().max()):.0f} here)."
        )
    return ids.float()


def flux_positions(ids: Tensor, train: Sequence[int] | None) -> Positions:
    """Positions of Flux's image tokens from their ids (N, 3), (0, row, column). On a GPU this waits for the ids once a forward.

    Raises:
        ValueError: an id whose first number is not 0 (a reference image), which has no place on the grid.
    """
    ids = exact(ids)
    if bool((ids[:, 0] != 0).any()):
        raise ValueError(
            "flux: image ids with a first number other than 0 (reference images) have no place on the grid of an encoding; "
            "only harope beside the model's own rotary (old='keep') works with them."
        )
    cells = ids[:, 1:]
    extent = extent_of(cells)
    whole = cells.shape[0] == extent[0] * extent[1] and torch.equal(cells, lattice(extent, cells.device))
    return Positions(
        cells[None],
        grid=extent if whole else None,
        extent=extent,
        train=extent if train is None else tuple(train),
        indices=None if whole else (cells[:, 0] * extent[1] + cells[:, 1]).long()[None],
    )
