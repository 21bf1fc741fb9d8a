"""Who takes part in a benchmark: encodings with options by a short syntax, and timm's own rotary models."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from .models.vit_zoo import VARIANTS

PRESETS: dict[str, dict[str, Any]] = {"jitter": {"jitter": 1.0}}  # name@preset, beside @fold
TIMM_SIZES = {"s": "small", "b": "base", "l": "large"}
TIMM_ROPE = ("vit_{}_patch16_rope_224", "vit_{}_patch16_rope_mixed_224", "vit_{}_patch16_dinov3")


@dataclass(frozen=True)
class Contender:
    """One model to measure, and the label of the model that its time is divided by (its own for a baseline)."""

    label: str
    model: str
    baseline: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    fold: bool = False


def parse_contender(text: str, size: str, depth: int | None = None) -> Contender:
    """`name`, `name:option=value,...` or either with `@fold` or `@jitter`, e.g. `comrope:block_size=4@fold`.

    Options are the encoding's own; in a composition they carry the member's name, `irpe_k:irpe.ratio=2`. Values are JSON, or
    plain text. `@fold` bakes a learned rotary basis into the weights (forward only); `@jitter` is `jitter=1`.
    """
    match = re.fullmatch(r"(?P<name>\w+)(:(?P<options>[^@]*))?(@(?P<variant>\w+))?", text)
    if match is None:
        raise ValueError(f"bench: {text!r} is not of the form name[:option=value,...][@variant].")
    name, variant = match["name"], match["variant"]
    if name not in VARIANTS:
        raise ValueError(f"bench: unknown encoding {name!r}{_nearest(name)}")
    if variant not in (None, "fold", *PRESETS):
        raise ValueError(f"bench: {text!r}: the variant must be one of {['fold', *PRESETS]}, got {variant!r}.")
    options = {**_options(match["options"] or ""), **PRESETS.get(variant or "", {})}
    kwargs = {} if depth is None else {"depth": depth}
    if options:
        kwargs["encoding_kwargs"] = _merge(VARIANTS[name], options, text)
    return Contender(text, f"vit_{size}_{name}", "none", kwargs, fold=variant == "fold")


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, VARIANTS, n=3, cutoff=0.4)
    return f": did you mean {', '.join(map(repr, near))}?" if near else f"; there are {', '.join(VARIANTS)}."


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in re.split(r",(?=[\w.]+=)", text) if text else []:
        key, found, value = item.partition("=")
        if not found or not key:
            raise ValueError(f"bench: {item!r} is not of the form option=value.")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def _merge(variant: dict[str, Any], options: dict[str, Any], text: str) -> dict[str, Any]:
    merged = dict(variant.get("encoding_kwargs", {}))
    composed = "+" in variant["encoding"]
    for key, value in options.items():
        member, dot, option = key.partition(".")
        if composed != bool(dot):
            need = "member.option=value" if composed else "option=value"
            raise ValueError(f"bench: {text!r}: options of {variant['encoding']!r} are written {need}, got {key!r}.")
        merged[member if dot else key] = {**merged.get(member, {}), option: value} if dot else value
    return merged


def timm_contenders(size: str, depth: int | None = None) -> list[Contender]:
    """timm's own rotary models of this size, each with its plain counterpart: the same class and options without rope."""
    if size not in TIMM_SIZES:
        raise ValueError(f"bench: timm has no rotary models of size {size!r}; use one of {list(TIMM_SIZES)}.")
    kwargs = {} if depth is None else {"depth": depth}
    found = []
    for template in TIMM_ROPE:
        name = template.format(TIMM_SIZES[size])
        plain = f"timm plain ({'dinov3' if 'dinov3' in name else 'rope'})"
        if not any(c.label == plain for c in found):
            found.append(Contender(plain, name, plain, {**kwargs, "use_rot_pos_emb": False}))
        found.append(Contender(f"timm {name}", name, plain, kwargs))
    return found
