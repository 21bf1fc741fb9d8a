"""Rotary tables of Flux, Wan and Lumina2 that can be extrapolated: modules in the place of the models' own.

Without a setting they call the module they replaced. With one they compute the same table (frequencies and angles in float64,
as there) with the frequencies of `Extrapolation` for the grid of the call; at the trained size it is the same table. They
also bring contexts of encodings along, where a model passes nothing else to its attention layers (`carrier`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...encodings.extrapolation import Extrapolation
from ...encodings.rope_diffusers import RopeDiffusers, widen
from ...positions import Positions, full_grid, with_noise
from .attention import Placed
from .carrier import Carrier, no_positions
from .hosts import exact, extent_of


class RotarySlot(nn.Module):
    """Base of the tables.

    Args:
        base: the model's module.
        channels: of each axis.

    Attributes:
        setting: what happens on larger grids than trained; None for nothing.
        noise: the diffusion time, 1 for pure noise, for settings that depend on it.
        carrier: makes contexts to be passed along; None for none.
    """

    name: ClassVar[str]
    free: ClassVar[int] = 0  # leading axes that no image size changes (Flux's first id, Lumina2's captions)

    def __init__(self, base: nn.Module, channels: tuple[int, ...], theta: float) -> None:
        super().__init__()
        self.base, self.theta, self.channels = base, theta, tuple(channels)
        self.setting: Extrapolation | None = None
        self.noise: float | None = None
        self.carrier: Carrier | None = None

    def rope(self) -> RopeDiffusers:
        """The same frequencies; three axes, of whatever meaning."""
        return RopeDiffusers(
            dim=sum(self.channels), num_heads=1, axes=3, preset="wan", channels=self.channels, theta=self.theta
        )

    def frequencies(self, extent: tuple[int, ...], tokens: int, device: torch.device) -> tuple[Tensor, float]:
        """(3, P) float64 (float32 where a device has none) for a grid of `extent`, and the factor of queries and keys."""
        setting, rope = self.setting, self.rope()
        pos = Positions(torch.zeros(1, tokens, len(extent)), extent=extent, train=setting.train)
        if setting.by_time:
            if self.noise is None:
                raise ValueError(f"{self.name}: {setting.method!r} depends on the diffusion time: call set_noise first.")
            pos = with_noise(pos, self.noise)
        table, series = rope.table()[0], rope.series()[self.free :]
        moved = setting.frequencies(
            table[self.free :], pos, series=series, units=(1.0,) * len(extent), name=self.name
        )
        now, train = setting.sizes(self.name, pos)
        factor = 1.0 if setting.temperature == "none" else setting.logits(now, train, tokens)
        wide = torch.float32 if device.type == "mps" else torch.float64
        return torch.cat((table[: self.free], moved)).to(device=device, dtype=wide), factor

    def angles(self, ids: Tensor, extent: tuple[int, ...], tokens: int) -> tuple[Tensor, float]:
        """(..., P) for ids (..., 3)."""
        freqs, factor = self.frequencies(extent, tokens, ids.device)
        return (ids.to(freqs.dtype)[..., None] * freqs).sum(-2), factor

    def passed(self, table: Any, pos: Positions, text: int = 0, *, only: bool | None = None) -> Any:
        """The table, with contexts where there is a carrier."""
        if self.carrier is None:
            return table
        pos = pos if self.carrier.needs_positions else no_positions()
        return Placed(self.carrier.contexts(pos, text, only=only), table)


class FluxRotary(RotarySlot):
    """Ids (N, 3) to cosines and sines (N, D); the grid is what rows and columns of the ids span (on a GPU
    with a setting, asking for it waits for the device once a forward)."""

    name, free = "flux", 1

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.setting is None:
            return self.base(ids)
        ids = exact(ids)
        extent = extent_of(ids[:, 1:])
        angle, factor = self.angles(ids, extent, extent[0] * extent[1])
        return tuple(widen(t * factor, "interleaved").float() for t in (angle.cos(), angle.sin()))


class WanRotary(RotarySlot):
    """Latents (B, C, T, H, W) to cosines and sines (1, N, 1, D)."""

    name = "wan"

    def forward(self, latents: Tensor) -> Any:
        grid = tuple(n // p for n, p in zip(latents.shape[2:], self.base.patch_size))
        train = None if self.carrier is None else self.carrier.train_grid
        pos = full_grid(grid, train=train, device=latents.device)
        return self.passed(self.table(latents, pos), pos)

    def table(self, latents: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        if self.setting is None:
            return self.base(latents)
        angle, factor = self.angles(pos.coords[0], pos.extent, pos.coords.shape[1])
        return tuple(widen(t * factor, "interleaved").float()[None, :, None] for t in (angle.cos(), angle.sin()))


class Lumina2Rotary(RotarySlot):
    """Latents and the captions' mask to patches and complex tables of captions, image and both, as Lumina2RotaryPosEmbed."""

    name, free = "lumina2", 1

    def forward(self, latents: Tensor, mask: Tensor) -> tuple[Any, ...]:
        p = self.base.patch_size
        grid = tuple(n // p for n in latents.shape[-2:])
        patches, words, image, joint, captions, lengths = self.base(latents, mask)
        if self.setting is not None:
            ids = caption_ids(captions, grid, joint.shape[1], latents.device)
            angle, factor = self.angles(ids, grid, grid[0] * grid[1])
            joint = torch.polar(torch.full_like(angle, factor), angle).to(joint.dtype)
            image = torch.stack([row[n : n + image.shape[1]] for row, n in zip(joint, captions)])
        if self.carrier is not None:
            train = self.carrier.train_grid or grid
            both = caption_ids(captions, grid, joint.shape[1], latents.device)[..., 1:]
            image = self.passed(image, full_grid(grid, train=train, device=latents.device), only=False)
            joint = self.passed(joint, Positions(both, extent=grid, train=train), only=True)
        return patches, words, image, joint, captions, lengths


def caption_ids(captions: list[int], grid: tuple[int, int], longest: int, device: torch.device) -> Tensor:
    """Ids (B, longest, 3) of captions with their images behind: (j, 0, 0) for word j of n, (n, row, column) for a cell."""
    cells = full_grid(grid, device=device).coords[0]
    ids = torch.zeros(len(captions), longest, 3, device=device)
    for row, n in zip(ids, captions):
        row[:n, 0] = torch.arange(n, device=device)
        row[n : n + len(cells), 0] = n
        row[n : n + len(cells), 1:] = cells
    return ids


def rotary_slot(model: nn.Module) -> RotarySlot | None:
    """The replaced table of a model; None where it is the model's own or there is none."""
    for name in ("pos_embed", "rope", "rope_embedder"):
        module = model._modules.get(name)
        if isinstance(module, RotarySlot):
            return module
    return None


def open_slot(model: nn.Module, name: str) -> RotarySlot:
    """The replaced table of a model of Flux, Wan or Lumina2; puts it in its place first where it is still the model's own."""
    base = model._modules[name]
    if isinstance(base, RotarySlot):
        return base
    if name == "rope":
        slot = WanRotary(base, (base.t_dim, base.h_dim, base.w_dim), 10000.0)
    else:
        slot = (FluxRotary if name == "pos_embed" else Lumina2Rotary)(base, tuple(base.axes_dim), float(base.theta))
    setattr(model, name, slot.train(model.training))
    return slot
