"""Positions of one forward, made into contexts of every layer, on their way to the processors.

Contexts go through arguments: through the model's dictionary of attention arguments (`Carrier` as a hook ahead of the model) or
with its rotary table (`rotary.py`). Nothing is kept on modules, so that a checkpoint's recompute sees what its forward saw.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...encodings.base import Composed, Encoding
from ...models.mmdit_parts import OnImage
from ...positions import Positions, with_noise
from .attention import Placed, Processor
from .gates import HeadMatrices
from .hosts import Host, Site, grid_of


class Carrier:
    """Makes contexts; as a forward pre-hook of a model it also puts them among the arguments.

    Args:
        sites: the layers, in the order of their processors' numbers.
        train_grid: tokens on each axis in training; None takes every grid as its own.

    Attributes:
        noise: the diffusion time for extrapolation that depends on it, see `set_noise`.
    """

    def __init__(self, host: Host, sites: Sequence[Site], *, train_grid: tuple[int, ...] | None) -> None:
        self.host, self.sites, self.train_grid = host, tuple(sites), train_grid
        self.noise: float | None = None

    def __call__(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = inspect.signature(type(model).forward).bind(model, *args, **kwargs).arguments
        call.pop("self")
        given = dict(call.get(self.host.passes) or {})
        told = given.pop("positions", None)
        if self.needs_positions:
            pos, text = self.host.positions(model, call, self.train_grid)
            pos = pos if told is None else checked(told, pos, call["hidden_states"].shape[0])
        else:
            pos, text = no_positions(), 0
        call[self.host.passes] = {**given, "vispe": Placed(self.contexts(pos, text))}
        return (), dict(call)

    def processors(self) -> list[Processor]:
        """Of every site; an error where one has been replaced since."""
        found = [site.attn.processor for site in self.sites]
        lost = [type(p).__name__ for p in found if not isinstance(p, Processor)]
        if lost:
            raise ValueError(
                f"the attention processors that hold the encoding were replaced by {lost[0]} (fuse_qkv_projections and "
                f"set_attn_processor do so); swap again after that call, or undo it with unfuse_qkv_projections."
            )
        return found

    @property
    def needs_positions(self) -> bool:
        """Whether any encoding looks at them; HARoPE's matrices do not."""
        return any(not isinstance(encoding, HeadMatrices) for encoding in self.first())

    def first(self) -> list[Encoding]:
        return list(self.processors()[0].encodings.values())

    def contexts(self, pos: Positions, text: int, *, only: bool | None = None) -> tuple[tuple[Composed, tuple], ...]:
        """Hooks and context of every layer.

        Args:
            pos: of the image tokens.
            text: number of text tokens ahead of them in joint layers.
            only: joint layers alone, or the others alone; an entry of the rest is None.
        """
        found, out = self.processors(), [None] * len(self.sites)
        if any(getattr(getattr(e, "extrapolation", None), "by_time", False) for e in self.first()):
            if self.noise is None:
                raise ValueError("this extrapolation depends on the diffusion time: call set_noise ahead of each step.")
            pos = with_noise(pos, self.noise)
        with torch.autocast(pos.coords.device.type, enabled=False):
            for joint in (True, False):
                numbers = [i for i, site in enumerate(self.sites) if site.joint == joint and only in (None, joint)]
                if numbers:
                    made = prepared([found[i] for i in numbers], pos, text if joint else 0)
                    for i, entry in zip(numbers, made):
                        out[i] = entry
        return tuple(out)


def checked(told: Positions, plain: Positions, batch: int) -> Positions:
    """Positions of the caller's own, when they are of the same tokens."""
    wanted, got = plain.coords.shape[1:], tuple(told.coords.shape)
    if got[1:] != wanted or got[0] not in (1, batch) or told.prefix:
        raise ValueError(
            f"positions must hold 1 or {batch} samples of {wanted[0]} image tokens on {wanted[1]} axes without prefix, got "
            f"{got} and prefix={told.prefix}."
        )
    return told


def no_positions() -> Positions:
    return Positions(torch.zeros(1, 1, 2))


def prepared(found: list[Processor], pos: Positions, text: int) -> list[tuple[Composed, tuple]]:
    """Hooks and contexts of layers that see the same tokens.

    Encodings of queries and keys take text tokens as prefix tokens, so that what they do to tokens without a position (HARoPE's
    matrices act on them) stays consistent; others see the image tokens alone.
    """
    columns = []
    for name in found[0].encodings:
        layers = [processor.encodings[name] for processor in found]
        whole = set(layers[0].card.injection) == {"qk"}
        contexts = type(layers[0]).prepare_layers(layers, replace(pos, prefix=text if whole else 0))
        hooks = layers if whole or not text else [OnImage(layer, text, "text_image") for layer in layers]
        columns.append(list(zip(hooks, contexts)))
    return [
        (Composed([column[i][0] for column in columns]), tuple(column[i][1] for column in columns)) for i in range(len(found))
    ]


class TokenHook:
    """Forward hook of a patch embedding that adds what its `encodings` say."""

    def __init__(self, patch: int, train_grid: tuple[int, ...] | None) -> None:
        self.patch, self.train_grid = patch, train_grid

    def __call__(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        pos = grid_of(args[0], self.patch, self.train_grid)
        for encoding in module.encodings.values():
            with torch.autocast(output.device.type, enabled=False):
                ctx = encoding.prepare(pos)
            output = encoding.tokens(output, ctx)
        return output
