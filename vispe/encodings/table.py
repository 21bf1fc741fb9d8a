"""The table of encodings as data: what `vispe list`, `vispe show` and the documentation print."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import ENCODINGS, Card, Encoding, EncodingStack, encoding_class

VIT_B = dict(dim=768, num_heads=12, depth=12)
HEADS = {"rayrope": {"num_heads": 8}}  # 96 channels a head: it takes multiples of 24; parameters are the same
GRIDS = {1: (196,), 2: (14, 14), 3: (8, 14, 14)}


@dataclass(frozen=True)
class Row:
    """One encoding: its name and card, and its learned parameters in a ViT-B (None when it needs options of its own)."""

    name: str
    card: Card
    parameters: int | None


@dataclass(frozen=True)
class Option:
    """One option of an encoding: its default and what the docstring says about it."""

    name: str
    default: Any
    text: str


def example_stack(name: str, *, axes: int | None = None, options: dict[str, Any] | None = None) -> EncodingStack:
    """The encodings of a ViT-B/16 at 224 pixels (12 layers, 768 channels, 12 heads unless HEADS has others, a class token).

    Args:
        axes: coordinate axes; None takes 2, or the first number that the encoding accepts.
    """
    card = encoding_class(name).card
    axes = (2 if 2 in card.axes else card.axes[0]) if axes is None else axes
    facts = {"grid": GRIDS.get(axes, (14,) * axes), "prefix": 1}
    return EncodingStack(name, **VIT_B | HEADS.get(name, {}), axes=axes, options=options, facts=facts)


def count_parameters(name: str) -> int | None:
    """Learned numbers in a ViT-B, or None when the encoding cannot be built without options."""
    try:
        return sum(p.numel() for p in example_stack(name).parameters() if p.requires_grad)
    except ValueError:
        return None


def rows(*, family: str | None = None, axes: int | None = None, injection: str | None = None) -> list[Row]:
    """The table, filtered; a filter value that no encoding has is refused with those that exist."""
    cards = [cls.card for cls in ENCODINGS.values()]
    choices: dict[str, set] = {
        "family": {c.family for c in cards},
        "axes": {n for c in cards for n in c.axes},
        "injection": {hook for c in cards for hook in c.injection},
    }
    for key, value in (("family", family), ("axes", axes), ("injection", injection)):
        if value is not None and value not in choices[key]:
            raise ValueError(f"list: no encoding with {key} {value!r}; choose from {sorted(choices[key])}.")
    return [
        Row(name, cls.card, count_parameters(name))
        for name, cls in ENCODINGS.items()
        if (family is None or cls.card.family == family)
        and (axes is None or axes in cls.card.axes)
        and (injection is None or injection in cls.card.injection)
    ]


COLUMNS = ("name", "title", "family", "injection", "axes", "parameters (ViT-B)", "year", "official code", "parity cases")


def cells(row: Row) -> tuple[str, ...]:
    """The texts of one row, in the order of COLUMNS."""
    card = row.card
    return (
        row.name,
        card.title,
        card.family,
        ", ".join(card.injection) or "-",
        ", ".join(map(str, card.axes)),
        "needs options" if row.parameters is None else f"{row.parameters:,}",
        str(card.year or "-"),
        card.code or "-",
        str(card.cases),
    )


def markdown(table: list[Row], extra: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The table for documentation.

    Args:
        extra: further columns: {title: {encoding: text}}, "-" where an encoding has none.
    """
    extra = extra or {}
    lines = ["| " + " | ".join((*COLUMNS, *extra)) + " |", "|" + "---|" * (len(COLUMNS) + len(extra))]
    for row in table:
        texts = (*cells(row), *(column.get(row.name, "-") for column in extra.values()))
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
    return "\n".join(lines)


def as_json(row: Row) -> dict[str, Any]:
    """One row as plain JSON values."""
    card = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(row.card).items()}
    return {"name": row.name, **card, "parameters_vit_b": row.parameters}


def options(cls: type[Encoding]) -> list[Option]:
    """An encoding's own options with their defaults and the texts of its docstring (or its bases')."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts.update(argument_texts(base.__doc__ or ""))
    own = [p for p in inspect.signature(cls).parameters.values() if p.name not in ("dim", "num_heads", "axes", "depth")]
    return [Option(p.name, p.default, texts.get(p.name, "")) for p in own]


def argument_texts(doc: str) -> dict[str, str]:
    """Texts of the arguments under `Args:` of a docstring; `a, b: text` serves both."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(doc), re.S | re.M)
    texts: dict[str, str] = {}
    for block in re.split(r"\n(?= {4}\S)", "\n" + section[1].rstrip()) if section else []:
        head, found, text = block.strip().partition(":")
        text = " ".join(text.split())
        # `a: text; b: text` on one line describes two
        for extra in re.finditer(r"; (\w+): ([^;]+)", text):
            texts[extra[1]] = extra[2]
        if found:
            texts.update({key.strip(): re.sub(r"; \w+: [^;]+", "", text) for key in head.split(",")})
    return texts
