"""All encodings of all layers of one host: builds them from a specification, prepares their contexts once a forward."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..positions import Positions, Resize
from ..positions.grid import RESIZE
from .base import Composed, Encoding
from .extrapolation import Extrapolation


class EncodingStack(nn.ModuleDict):
    """The encodings of a model: `stack[name]` is one shared encoding, or a list with one for each layer.

    Parameters are named `rope_mixed.3.freqs` (per layer) or `learned.pos_embed` (shared).

    Args:
        spec: names joined by "+", e.g. "learned+rope_mixed".
        depth: layers of the host.
        options: for a single encoding its options; for a composition {name: options}.
        facts: what only the host knows (grid, train grid, prefix tokens); handed to encodings that ask for it by name, as are
            `depth` and `layer`, the number of the layer that a per-layer encoding serves.
    """

    def __init__(
        self,
        spec: str,
        *,
        dim: int,
        num_heads: int,
        depth: int,
        axes: int = 2,
        options: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        from . import create_encoding, encoding_class

        names = spec.split("+")
        if len(set(names)) < len(names):
            raise ValueError(f"encoding {spec!r} names one encoding twice; every member must be another one.")
        per_name = options_by_name(names, options or {})
        self.spec, self.depth = spec, depth
        for name in names:
            cls = encoding_class(name)

            def build(layer: int) -> Encoding:
                accepted = inspect.signature(cls).parameters
                known = {**(facts or {}), "layer": layer}
                if not hasattr(cls, "set_grid") and "train_grid" in known:  # no table: its grid is a unit of length
                    known["grid"] = known["train_grid"]
                known = {k: v for k, v in known.items() if k in accepted}
                return create_encoding(
                    name, dim=dim, num_heads=num_heads, depth=depth, axes=axes, **{**known, **per_name[name]}
                )

            first = build(0)
            self[name] = nn.ModuleList([first, *(build(i) for i in range(1, depth))]) if first.per_layer else first
        for _, encoding in self.encodings():
            if hasattr(encoding, "resize"):
                encoding.default_resize = encoding.resize  # what `set_coords(None)` comes back to
        mixers = [name for name in names if self.first(name).mixes]
        if len(mixers) > 1:
            raise ValueError(f"encoding {spec!r}: {mixers} all replace the product of probabilities and values; use one.")

    def first(self, name: str) -> Encoding:
        """The shared encoding of that name, or its first layer's."""
        member = self[name]
        return member[0] if isinstance(member, nn.ModuleList) else member

    def encodings(self) -> Iterator[tuple[str, Encoding]]:
        """Every encoding with its name relative to the stack."""
        for name, member in self.items():
            if isinstance(member, nn.ModuleList):
                yield from ((f"{name}.{i}", layer) for i, layer in enumerate(member))
            else:
                yield name, member

    @property
    def wants_image(self) -> bool:
        """Whether positions must carry the image."""
        return any(encoding.wants_image for _, encoding in self.encodings())

    @property
    def wants_noise(self) -> bool:
        """Whether positions must carry the diffusion time (with_noise), for extrapolation that depends on it."""
        settings = [getattr(encoding, "extrapolation", None) for _, encoding in self.encodings()]
        return any(setting is not None and setting.by_time for setting in settings)

    def by_block(self) -> list[str]:
        """Names of the modules whose entries, by number, belong to the block of that number."""
        shared = [f"{name}.{m.of_blocks}" for name, m in self.items() if not isinstance(m, nn.ModuleList) and m.of_blocks]
        return [name for name, member in self.items() if isinstance(member, nn.ModuleList)] + shared

    def reset_parameters(self) -> None:
        for _, encoding in self.encodings():
            encoding.reset_parameters()

    def prepare(self, pos: Positions) -> list[Any]:
        """One entry for each member: a context, or a list of one context for each layer."""
        with torch.autocast(pos.coords.device.type, enabled=False):
            return [
                type(member[0]).prepare_layers(list(member), pos)
                if isinstance(member, nn.ModuleList)
                else member.prepare(pos)
                for member in self.values()
            ]

    def tokens(self, x: Tensor, ctx: list[Any]) -> Tensor:
        for member, c in zip(self.values(), ctx):
            x = member[0].tokens(x, c[0]) if isinstance(member, nn.ModuleList) else member.tokens(x, c)
        return x

    def between(self, x: Tensor, ctx: list[Any], i: int) -> Tensor:
        for member, c in zip(self.values(), ctx):
            if not isinstance(member, nn.ModuleList):
                x = member.between(x, c, i)
        return x

    def layer(self, ctx: list[Any], i: int) -> tuple[Encoding | Composed, Any]:
        """The encoding that acts inside layer i, and its context."""
        pairs = [
            (member[i], c[i]) if isinstance(member, nn.ModuleList) else (member, c)
            for member, c in zip(self.values(), ctx)
        ]
        if len(pairs) == 1:
            return pairs[0]
        return Composed([p[0] for p in pairs]), tuple(p[1] for p in pairs)

    def no_weight_decay(self) -> set[str]:
        """Names, relative to the stack, of the parameters that must not be decayed."""
        return {
            f"{prefix}.{name}"
            for prefix, encoding in self.encodings()
            for name, _ in encoding.named_parameters()
            if name.split(".")[-1] in encoding.no_decay or name.split(".")[0] in encoding.no_decay
        }

    def set_grid(self, grid: tuple[int, ...]) -> list[str]:
        """Resample every table that belongs to a grid; returns what was resampled, in words."""
        done = []
        for name, encoding in self.encodings():
            if hasattr(encoding, "set_grid"):
                done += [f"{name}: {text}" for text in encoding.set_grid(grid)]
        return done

    def fit(self, state: dict[str, Tensor], source: tuple[int, ...], prefix: str = "") -> dict[str, Tensor]:
        """A state dict whose tables were made for the grid `source`, with every table at this stack's own grid.

        Grids are compared, not shapes: a table of 3 x 8 cells has as many rows as one of 8 x 3.

        Args:
            prefix: what stands ahead of this stack's names, "encoding." in a model.

        Raises:
            ValueError: a table that belongs to neither grid.
        """
        state = dict(state)
        for name, encoding in self.encodings():
            keys = {key: f"{prefix}{name}.{key}" for key in encoding.state_dict()}
            if hasattr(encoding, "set_grid") and all(key in state for key in keys.values()):
                fitted = fit_tables(encoding, {key: state[full] for key, full in keys.items()}, source, name=name)
                state |= {keys[key]: value for key, value in fitted.items()}
        return state

    def set_coords(self, resize: Resize | None) -> None:
        """How coordinates grow with the grid: "extend", "rescale", or None for what each encoding was created with."""
        if resize not in (*RESIZE, None):
            raise ValueError(f"set_coords: 'extend', 'rescale' or None, got {resize!r}.")
        for _, encoding in self.encodings():
            if hasattr(encoding, "resize"):
                encoding.resize = encoding.default_resize if resize is None else resize

    def set_extrapolation(self, setting: str | Extrapolation | None) -> None:
        """What encodings with frequencies do on grids larger than trained (see extrapolation.py); None for nothing.

        Raises:
            ValueError: no member has frequencies, or one's frequencies cannot do it.
        """
        able = [encoding for _, encoding in self.encodings() if hasattr(encoding, "set_extrapolation")]
        if not able and setting is not None:
            raise ValueError(
                f"set_extrapolation: {self.spec!r} has no rotary frequencies to change; use set_coords('rescale') where it has "
                f"coordinates, or a rotary encoding."
            )
        for encoding in able:
            encoding.set_extrapolation(setting)

    def truncate(self, depth: int) -> None:
        """Drop the encodings of the layers from `depth` on."""
        self.depth = min(depth, self.depth)
        for name, member in list(self.items()):
            if isinstance(member, nn.ModuleList):
                self[name] = member[:depth]
            elif hasattr(member, "truncate"):
                member.truncate(depth)

    def extra_repr(self) -> str:
        return f"{self.spec!r}, depth={self.depth}"


def fit_tables(
    encoding: Encoding, tensors: dict[str, Tensor], source: tuple[int, ...], *, name: str = "table"
) -> dict[str, Tensor]:
    """The state of an encoding with tables (`set_grid`), made for the grid `source`, at the encoding's own grid.

    Tensors that do not fit `source` but do fit the encoding as it is (it was given a grid of its own, say a window) stay.

    Raises:
        ValueError: tensors that fit neither.
    """
    source = tuple(int(n) for n in source)
    if source == tuple(encoding.grid):
        return tensors
    twin = copy.deepcopy(encoding)
    twin.set_grid(source)
    if _shapes(tensors) != _shapes(twin.state_dict()):
        if _shapes(tensors) == _shapes(encoding.state_dict()):
            return tensors
        raise ValueError(
            f"{name}: tables {_shapes(tensors)} fit neither the grid {source} they are said to be for nor the model's "
            f"{tuple(encoding.grid)}; give the grid they were trained on, or the model the options they were trained with."
        )
    twin.load_state_dict(tensors, assign=True)
    twin.set_grid(encoding.grid)
    return twin.state_dict()


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in tensors.items()}


def options_by_name(names: list[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each member's options: all of them for a single name, by name in a composition."""
    if len(names) == 1:
        return {names[0]: options}
    unknown = set(options) - set(names)
    if unknown:
        raise ValueError(
            f"options of the composition {'+'.join(names)!r} go by member, e.g. {{{names[0]!r}: {{...}}}}; "
            f"got {sorted(unknown)}, which are no members."
        )
    return {name: dict(options.get(name, {})) for name in names}
