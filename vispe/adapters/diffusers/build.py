"""The encodings of every replaced layer, from a specification; refuses what a host has no place for."""

from __future__ import annotations

import copy
from typing import Any, Literal

from torch import nn

from ...encodings import EncodingStack, create_encoding, encoding_class
from ...encodings.base import Encoding
from ...encodings.harope import HARoPE
from ...encodings.rotary import Rotary
from ...encodings.stack import options_by_name
from .gates import GATED, HeadMatrices
from .hosts import Host, Lumina2

IN_ATTENTION = {"qk", "v", "out", "bias", "mix", "beside"}
Start = Literal["identity", "init"]


class Plan:
    """What a model gets.

    Attributes:
        layers: by name, one encoding for each attention layer.
        tokens: by name, encodings that are added to the tokens.
    """

    def __init__(self) -> None:
        self.layers: dict[str, list[Encoding]] = {}
        self.tokens: dict[str, Encoding] = {}


def plan(
    host: Host,
    model: nn.Module,
    spec: str,
    options: dict[str, Any],
    *,
    turn: bool,
    start: Start,
    train_grid: tuple[int, ...] | None,
) -> Plan:
    """Encodings of a model.

    Args:
        turn: whether the model's own rotary stays.
    """
    made, names = Plan(), spec.split("+")
    given = options_by_name(names, options)
    for name in names:
        check(host, name)
        if name == "none":
            continue
        encodings = build(host, model, name, given[name], turn=turn, start=start, train_grid=train_grid)
        if start == "identity" and not all([encoding.set_identity() for encoding in encodings]):
            raise ValueError(
                f"swap: {name} has no setting (with these options) at which it changes nothing, so the model would not start "
                f"from the same function; pass start='init' to accept that, or take harope, rope_axial, rope_mixed or comrope."
            )
        if set(encodings[0].card.injection) == {"tokens"}:
            made.tokens[name] = encodings[0]
        else:
            made.layers[name] = encodings
    return made


def check(host: Host, name: str) -> None:
    """Refuse an encoding that the host has no place for."""
    cls = encoding_class(name)
    acts, label = set(cls.card.injection), host.cls.__name__
    if isinstance(host, Lumina2) and name != "none":
        if not (issubclass(cls, Rotary) and cls.units == "index"):
            raise ValueError(
                f"swap: {label} has captions of different lengths ahead of its image tokens, where only rotary encodings in "
                f"cell units work (harope, rope_axial, rope_mixed, ...); {name!r} is none."
            )
    if set(cls.card.needs) - {"coords", "grid"} or cls.wants_image:
        raise ValueError(f"swap: {name!r} needs {cls.card.needs}, which {label} does not carry.")
    if acts <= IN_ATTENTION or (acts == {"tokens"} and host.own == "table"):
        return
    where = "queries, keys, values and logits" + (", or are added to the tokens alone" if host.own == "table" else "")
    raise ValueError(
        f"swap: {name!r} acts on {sorted(acts)}; {label} has a place for encodings that act on {where}, e.g. harope, "
        f"rope_mixed, comrope, swin_bias{', learned, sincos2d' if host.own == 'table' else ''}."
    )


def build(
    host: Host,
    model: nn.Module,
    name: str,
    options: dict[str, Any],
    *,
    turn: bool,
    start: Start,
    train_grid: tuple[int, ...] | None,
) -> list[Encoding]:
    """One encoding for each layer (for tokens: one)."""
    (num_heads, head_dim), cls = host.shape(model), encoding_class(name)
    size, depth = {"dim": num_heads * head_dim, "num_heads": num_heads}, len(host.sites(model))
    if cls is HARoPE and turn:
        if unknown := options.keys() - {"mode"}:
            raise ValueError(
                f"swap: beside the rotary table of {host.cls.__name__} harope is its matrices alone and takes 'mode', not "
                f"{sorted(unknown)}; old='remove' replaces that table by harope's own."
            )
        return [HeadMatrices(**size, **options) for _ in range(depth)]
    if start == "identity" and cls in GATED:
        create_encoding(name, **size, axes=host.axes, **options)  # names unknown options
        return [GATED[cls](**size, axes=host.axes, **options) for _ in range(depth)]
    facts: dict[str, Any] = {"prefix": 0}
    if train_grid is not None:
        facts |= {"grid": train_grid, "train_grid": train_grid}
    elif "grid" in cls.card.needs or hasattr(cls, "set_grid"):
        raise ValueError(
            f"swap: {name!r} belongs to a grid, which the configuration of {host.cls.__name__} does not name; pass train_grid, "
            f"tokens on its {host.axes} axes."
        )
    stack = EncodingStack(name, **size, depth=depth, axes=host.axes, options=options, facts=facts)
    if isinstance(stack[name], nn.ModuleList):
        return list(stack[name])
    copies = 1 if set(cls.card.injection) == {"tokens"} else depth  # a processor shares nothing with another
    return [stack[name], *(copy.deepcopy(stack[name]) for _ in range(copies - 1))]
