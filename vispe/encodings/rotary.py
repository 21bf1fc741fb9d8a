"""The rotary core: per-head frequency vectors over the axes turn pairs of channels of queries and keys.

R(x) rotates pair i of head h by the angle Σ_a x_a · freqs[h, a, i]. Axial, Mixed, DINOv3, GTA's image form and (in a learned
orthonormal basis) ComRoPE differ only in `frequencies`, in the pair layout and in what the prefix tokens do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..positions import Positions, Resize, Units
from .base import Card, Encoding
from .extrapolation import Extrapolation, Series, extrapolation
from .functional import Layout, phase, rotate


@dataclass(frozen=True)
class Rotation:
    """cos and sin (B or 1, H or 1, prefix + N, P) float32; prefix rows are the identity unless the encoding turns them.

    `factor`, the attention's temperature under extrapolation, multiplies queries and keys each; None is 1.
    """

    cos: Tensor
    sin: Tensor
    factor: float | None = field(default=None, kw_only=True)

    def weigh(self, x: Tensor) -> Tensor:
        return x if self.factor is None else x * self.factor


class Rotary(Encoding):
    """Base of rotary encodings. Subclasses give `frequencies()`; hosts call `prepare` and `qk`.

    Class attributes:
        layout: "interleaved" pairs channels (2i, 2i+1), "half" pairs (i, i + P).
        units, default_resize: the coordinate convention (see `Positions.to`).
        prefix_coord: coordinate, on every axis, of class and register tokens; None leaves them unrotated.
    """

    layout: Layout = "interleaved"
    units: Units = "index"
    default_resize: Resize = "extend"
    prefix_coord: float | None = None
    extrapolation: Extrapolation | None = None
    _resize_before: Resize = "extend"  # what set_extrapolation(None) comes back to

    def __init__(self, *, dim: int, num_heads: int, axes: int = 2, resize: Resize | None = None) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        self.resize = self.default_resize if resize is None else resize
        if self.resize not in ("extend", "rescale"):
            raise ValueError(f"{type(self).__name__}: resize must be 'extend' or 'rescale', got {resize!r}.")

    def frequencies(self) -> Tensor:
        """(H or 1, axes, P) float32, radians per coordinate unit."""
        raise TypeError(f"{type(self).__name__} gives no frequencies; a rotary encoding must override frequencies().")

    def series(self) -> tuple[Series, ...] | None:
        """For each axis the geometric series that its frequencies come from; None when they are learned."""
        return None

    def cell(self, train: tuple[int, ...]) -> tuple[float, ...]:
        """Coordinate units of one cell on each axis, for coordinates that grow with the grid ("extend")."""
        size = {"centered_min": (min(train),) * len(train), "centered_max": (max(train),) * len(train)}.get(self.units, train)
        return tuple({"index": 1.0, "unit": 1 / n}.get(self.units, 2 / n) for n in size)

    def set_extrapolation(self, setting: str | Extrapolation | None) -> None:
        """Choose what happens on grids larger than trained: a method, a preset, a setting, or None for nothing.

        Coordinates "extend" meanwhile; None brings back how they grew before.
        """
        setting = extrapolation(setting)
        if setting is not None:
            setting.check(type(self).__name__, self.series())
            if self.extrapolation is None:
                self._resize_before = self.resize
            self.resize = "extend"
        elif self.extrapolation is not None:
            self.resize = self._resize_before
        self.extrapolation = setting

    def follow(self, other: Rotary) -> None:
        """Grow with the grid as another encoding does: what is left of it once its basis is folded away."""
        self.resize, self.default_resize, self.extrapolation = other.resize, other.default_resize, other.extrapolation
        self._resize_before = other._resize_before

    def extrapolated(self, freqs: Tensor, pos: Positions) -> tuple[Tensor, float | None]:
        """Frequencies (..., axes, P) for the grid of these positions, and the factor of queries and keys."""
        setting, name = self.extrapolation, type(self).__name__
        if setting is None:
            return freqs, None
        if self.resize != "extend":
            raise ValueError(
                f"{name}: coordinates are rescaled onto the train grid and extrapolation is set too, which would act twice; "
                f"call set_extrapolation after set_coords, or set_extrapolation(None)."
            )
        now, train = setting.sizes(name, pos)
        units = self.cell(tuple(pos.train or train))
        freqs = setting.frequencies(freqs, pos, series=self.series(), units=units, name=name)
        factor = setting.logits(now, train, pos.coords.shape[1])
        return freqs, None if setting.temperature == "none" else factor

    def places(self, pos: Positions) -> Tensor:
        """(B or 1, N, axes) in this encoding's convention."""
        return pos.to(self.units, self.resize)

    def coordinates(self, pos: Positions) -> Tensor:
        """`places`, which an encoding may move at random in training."""
        return self.places(pos)

    @classmethod
    def prepare_layers(cls, layers: Sequence[Rotary], pos: Positions) -> list[Rotation]:
        layers[0].check_axes(pos)
        coords = layers[0].coordinates(pos)
        if len(layers) == 1:
            freqs = layers[0].frequencies().to(coords.device)[None]
        else:
            freqs = torch.stack([layer.frequencies().to(coords.device) for layer in layers])  # (L, H, A, P)
        freqs, factor = layers[0].extrapolated(freqs, pos)
        angle = phase(coords, freqs)  # (L, B, H, N, P)
        cos, sin = angle.cos(), angle.sin()
        if pos.prefix and layers[0].prefix_coord is None:
            # cos 1 and sin 0 leave prefix tokens bit-equal, without cutting and joining q and k in every layer.
            cos, sin = F.pad(cos, (0, 0, pos.prefix, 0), value=1.0), F.pad(sin, (0, 0, pos.prefix, 0))
        elif pos.prefix:
            place = layers[0].lead(coords, pos)
            lead = phase(layers[0].place_prefix(place, pos), freqs).expand(-1, cos.shape[1], -1, -1, -1)
            cos, sin = torch.cat((lead.cos(), cos), dim=-2), torch.cat((lead.sin(), sin), dim=-2)
        return [Rotation(c, s, factor=factor) for c, s in zip(cos.unbind(0), sin.unbind(0))]

    def lead(self, coords: Tensor, pos: Positions) -> Tensor:
        """Coordinates (1, prefix, axes) of prefix tokens that turn: at `prefix_coord` of the image, however large it is."""
        place = coords.new_full((1, pos.prefix, coords.shape[-1]), self.prefix_coord)
        if self.extrapolation is None:
            return place
        now, train = self.extrapolation.sizes(type(self).__name__, pos)
        return torch.stack([c * (n / m) for c, n, m in zip(place.unbind(-1), now, train)], dim=-1)

    def place_prefix(self, place: Tensor, pos: Positions) -> Tensor:
        """A last word on the prefix tokens' coordinates (1 or B, prefix, axes)."""
        return place

    def prepare(self, pos: Positions) -> Rotation:
        return self.prepare_layers([self], pos)[0]

    def qk(self, q: Tensor, k: Tensor, ctx_q: Rotation, ctx_k: Rotation) -> tuple[Tensor, Tensor]:
        q, k = rotate(q, ctx_q.cos, ctx_q.sin, self.layout), rotate(k, ctx_k.cos, ctx_k.sin, self.layout)
        return ctx_q.weigh(q), ctx_k.weigh(k)

    @torch.no_grad()
    def wavelengths(self, grid: tuple[int, ...]) -> Tensor:
        """Wavelength of every pair in cells, (H or 1, P): 2π over the length of its frequency vector per cell step."""
        pos = Positions(torch.zeros(1, 1, self.axes), extent=tuple(grid), train=tuple(grid))
        origin = self.places(pos)
        step = self.places(Positions(torch.ones(1, 1, self.axes), extent=tuple(grid), train=tuple(grid))) - origin
        per_cell = self.frequencies().cpu() * step[0, 0][:, None]  # (H, A, P)
        return 2 * math.pi / per_cell.norm(dim=1)


def split_pairs(name: str, head_dim: int, axes: int) -> int:
    """Pairs for each axis when the head's channels are shared out evenly; refuses widths that do not divide."""
    if head_dim % (2 * axes):
        fit = [h for h in range(2 * axes, head_dim + 2 * axes + 1, 2 * axes)][-2:]
        raise ValueError(
            f"{name}: a head of {head_dim} channels cannot be cut into pairs for {axes} axes; head_dim must be a multiple of "
            f"{2 * axes}, e.g. {fit[0]} or {fit[-1]}: change dim or num_heads."
        )
    return head_dim // (2 * axes)


def block_frequencies(freqs: Tensor, axes: int) -> Tensor:
    """(P,) frequencies of one axis, repeated for every axis in its own block of pairs: (1, axes, axes · P)."""
    return torch.block_diag(*[freqs[None]] * axes)[None]


def reference_indices(pos: Positions, resize: Resize, reference: tuple[int, ...] | None, *, offset: float = 0.0) -> Tensor:
    """Cells counted on another grid, (p + offset) / n · r: n cells an axis now ("extend": in training), r on the reference.

    Args:
        reference: cells an axis of the grid that frequencies belong to; None for the train grid.

    Returns:
        (B or 1, N, axes); custom coordinates unchanged. Source: baaivision/EVA (VisionRotaryEmbeddingFast), timm.
    """
    if pos.units == "custom":
        return pos.coords
    size, reference = pos.extent if resize == "rescale" else pos.train, reference or pos.train
    if size is None or reference is None:
        raise ValueError(
            "reference_indices: these positions carry no frame (extent, train) to be scaled by; build them with "
            "patch_grid(..., train=(H, W)), or pass coordinates with custom_positions."
        )
    return torch.stack([(c + offset) / n * r for c, n, r in zip(pos.coords.unbind(-1), size, reference)], dim=-1)


def positive(name: str, option: str, value: float) -> float:
    """The value, when it is above zero."""
    if not value > 0:
        raise ValueError(f"{name}: {option} must be positive, got {value}.")
    return value


class FixedRotary(Rotary):
    """Plain rotary with given frequencies: what is left of a learned rotary encoding once its basis is folded into W_q, W_k.

    Args:
        freqs: (H or 1, axes, P) radians per coordinate unit.
        units, resize, prefix_coord: the coordinate convention and the place of prefix tokens.
    """

    card = Card("Folded rotary", "rotary", (1, 2, 3), ("qk",), "angle_i = sum_a x_a · f[a, i], f fixed", relative=True)
    per_layer = True
    no_decay = ("freqs",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int,
        freqs: Tensor,
        units: Units,
        resize: Resize,
        prefix_coord: float | None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        self.units, self.prefix_coord = units, prefix_coord
        self.freqs = torch.nn.Parameter(freqs.detach().clone(), requires_grad=False)

    def frequencies(self) -> Tensor:
        return self.freqs.float()
