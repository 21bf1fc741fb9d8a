"""Encodings of a host that attends in space and in time by turns, behind the interface of one `EncodingStack`.

What acts on all tokens outside of attention (tables, convolutions) has three axes. What acts inside of attention is built
twice: with two axes for the attention among the places of a frame, with one for that among the frames of a place; where an
encoding has no form with one axis (EVA02-AT), with three of which row and column stay 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from ..positions import Positions, Resize, full_grid
from .base import Composed, Encoding
from .extrapolation import Extrapolation
from .stack import EncodingStack, options_by_name

OUTSIDE = {"tokens", "between", "hidden"}
Layer = Encoding | Composed


class Parts(NamedTuple):
    """One thing (stack, encoding or context) for each of: all tokens, attention in space, attention in time."""

    joint: Any
    space: Any
    time: Any


class Contexts(NamedTuple):
    """The contexts of `Parts`, and (T, H, W) of the tokens that they belong to."""

    joint: Any
    space: Any
    time: Any
    grid: tuple[int, int, int]


class FactorisedStack(nn.Module):
    """Three stacks; parameters are named `joint.learned_spacetime.time`, `space.rope_mixed.3.freqs`, `time.rope_axial...`.

    Args: as those of `EncodingStack`, on (T, H, W) grids.

    Raises:
        ValueError: an encoding that has the axes of neither form, or that needs the image.
    """

    def __init__(
        self,
        spec: str,
        *,
        dim: int,
        num_heads: int,
        depth: int,
        axes: int = 3,
        options: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        from . import encoding_class

        if axes != 3:
            raise ValueError(f"FactorisedStack: positions are (frame, row, column), got axes={axes}.")
        self.spec, self.depth = spec, depth
        names = spec.split("+")
        inside = [name for name in names if not _outside(name)]
        outside = [name for name in names if name not in inside]
        self.time_axes = _time_axes(inside)
        self.adds_inside = any("tokens" in encoding_class(name).card.injection for name in inside)
        per_name = options_by_name(names, options or {})

        def stack(members: list[str], axes: int, cells: slice) -> EncodingStack:
            chosen = {name: per_name[name] for name in members}
            cut = {k: v[cells] if k in ("grid", "train_grid") else v for k, v in (facts or {}).items()}
            return EncodingStack(
                "+".join(members) or "none", dim=dim, num_heads=num_heads, depth=depth, axes=axes,
                options=chosen[members[0]] if len(members) == 1 else chosen, facts=cut,
            )  # fmt: skip

        self.joint = stack(outside, 3, slice(0, 3))
        self.space = stack(inside, 2, slice(1, 3))
        self.time = stack(inside, self.time_axes, slice(0, self.time_axes))
        if self.wants_image:
            raise ValueError(f"FactorisedStack: {spec!r} needs the image, which videos do not carry; use attention='joint'.")

    def stacks(self) -> Parts:
        return Parts(self.joint, self.space, self.time)

    def __contains__(self, name: str) -> bool:
        return name in self.joint

    def encodings(self) -> Iterator[tuple[str, Encoding]]:
        """Every encoding with its name relative to this stack."""
        for part, stack in self.stacks()._asdict().items():
            yield from ((f"{part}.{name}", encoding) for name, encoding in stack.encodings())

    @property
    def wants_image(self) -> bool:
        return any(stack.wants_image for stack in self.stacks())

    def by_block(self) -> list[str]:
        return [f"{part}.{name}" for part, stack in self.stacks()._asdict().items() for name in stack.by_block()]

    def reset_parameters(self) -> None:
        for stack in self.stacks():
            stack.reset_parameters()

    def prepare(self, pos: Positions) -> Parts:
        """Contexts of the three stacks for all tokens of a video."""
        if pos.grid is None or pos.indices is not None or pos.prefix:
            raise ValueError(
                "FactorisedStack: attention in space and time by turns needs all tokens of a video and no class token; "
                "use class_token=False, reg_tokens=0, patch_drop_rate=0, or attention='joint'."
            )
        (frames, height, width), train, device = pos.grid, pos.train, pos.coords.device
        space = full_grid((height, width), train=train[1:], device=device)
        if self.time_axes == 3:
            time = pos.crop((0, 0, 0), (frames, 1, 1))
        else:
            time = full_grid((frames,), train=train[:1], device=device)
        return Contexts(self.joint.prepare(pos), self.space.prepare(space), self.time.prepare(time), pos.grid)

    def tokens(self, x: Tensor, ctx: Contexts) -> Tensor:
        """Ahead of block 0. x (B, T·H·W, C)."""
        x = self.joint.tokens(x, ctx.joint)
        if self.adds_inside:
            x = merge(self.space.tokens(split(x, ctx.grid, "space"), ctx.space), ctx.grid, "space")
            x = merge(self.time.tokens(split(x, ctx.grid, "time"), ctx.time), ctx.grid, "time")
        return x

    def between(self, x: Tensor, ctx: Contexts, i: int) -> Tensor:
        return self.joint.between(x, ctx.joint, i)

    def layer(self, ctx: Contexts, i: int) -> tuple[Parts, Contexts]:
        """The encodings that act inside layer i, and their contexts."""
        pairs = [stack.layer(c, i) for stack, c in zip(self.stacks(), ctx)]
        return Parts(*(encoding for encoding, _ in pairs)), Contexts(*(c for _, c in pairs), ctx.grid)

    def no_weight_decay(self) -> set[str]:
        return {f"{part}.{name}" for part, stack in self.stacks()._asdict().items() for name in stack.no_weight_decay()}

    def _cut(self, grid: tuple[int, ...]) -> Parts:
        return Parts(grid, grid[1:], grid[: self.time_axes])

    def set_grid(self, grid: tuple[int, ...]) -> list[str]:
        """Resample every table to (T, H, W) cells; returns what was resampled, in words."""
        stacks = self.stacks()._asdict().items()
        return [f"{part}: {text}" for (part, stack), cells in zip(stacks, self._cut(grid)) for text in stack.set_grid(cells)]

    def fit(self, state: dict[str, Tensor], source: tuple[int, ...], prefix: str = "") -> dict[str, Tensor]:
        """See `EncodingStack.fit`; `source` is (T, H, W)."""
        for (part, stack), cells in zip(self.stacks()._asdict().items(), self._cut(source)):
            state = stack.fit(state, cells, f"{prefix}{part}.")
        return state

    def set_coords(self, resize: Resize | None) -> None:
        for stack in self.stacks():
            stack.set_coords(resize)

    def set_extrapolation(self, setting: str | Extrapolation | None) -> None:
        """See `EncodingStack.set_extrapolation`; acts on the parts that have rotary frequencies."""
        parts = [stack for stack in self.stacks() if any(hasattr(e, "set_extrapolation") for _, e in stack.encodings())]
        for stack in parts or self.stacks():  # without any, the first one says so
            stack.set_extrapolation(setting)

    def truncate(self, depth: int) -> None:
        self.depth = min(depth, self.depth)
        for stack in self.stacks():
            stack.truncate(depth)


def split(x: Tensor, grid: tuple[int, int, int], over: Literal["space", "time"]) -> Tensor:
    """Tokens (B, T·H·W, C) as sequences over the places of a frame (B·T, H·W, C) or the frames of a place (B·H·W, T, C)."""
    frames, rows, columns = grid
    x = x.unflatten(1, (frames, rows * columns))
    return (x if over == "space" else x.transpose(1, 2)).flatten(0, 1)


def merge(x: Tensor, grid: tuple[int, int, int], over: Literal["space", "time"]) -> Tensor:
    """The inverse of `split`."""
    frames, rows, columns = grid
    if over == "space":
        return x.unflatten(0, (-1, frames)).flatten(1, 2)
    return x.unflatten(0, (-1, rows * columns)).transpose(1, 2).flatten(1, 2)


def _outside(name: str) -> bool:
    from . import encoding_class

    return set(encoding_class(name).card.injection) <= OUTSIDE


def _time_axes(names: list[str]) -> int:
    """Axes of the positions along time that all of these encodings accept."""
    from . import encoding_class

    accepted = {name: encoding_class(name).card.axes for name in names}
    for axes in (1, 3):
        if all(2 in a and axes in a for a in accepted.values()):
            return axes
    raise ValueError(
        f"FactorisedStack: attention in space needs encodings with 2 axes and attention in time with 1 (or 3), got {accepted}; "
        f"use attention='joint' or another encoding."
    )
