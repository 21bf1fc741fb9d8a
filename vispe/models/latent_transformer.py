"""What diffusion transformers of one and of two streams share: latents of any size, positions, and saving by diffusers."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor

from ..encodings import EncodingStack
from ..encodings.extrapolation import Extrapolation
from ..positions import NoisyPositions, Positions, Resize, patch_grid, with_image, with_noise

try:
    from diffusers.configuration_utils import ConfigMixin
    from diffusers.models.modeling_utils import ModelMixin
except ImportError as error:
    raise ImportError("Diffusion transformers stand on diffusers: pip install vispe[diffusion]") from error


class LatentTransformer(ModelMixin, ConfigMixin):
    """A transformer over patches of a latent. Subclasses register their arguments (`input_size`, ...) and set the attributes.

    Attributes:
        encoding: the stack of the blocks.
        patch_size, in_channels, out_channels: of the latent.
        train_grid: (rows, columns) of patches that positions were trained with.
        prediction_type: what the output means, see EncodedDiT.
    """

    _supports_gradient_checkpointing = True
    encoding: EncodingStack
    patch_size: int
    in_channels: int
    out_channels: int
    train_grid: tuple[int, int]
    prediction_type: str

    def __getattr__(self, name: str) -> Any:
        """diffusers looks a name up among the saved arguments first; `encoding` is one of those, and here the modules."""
        modules = self.__dict__.get("_modules")
        return modules[name] if modules is not None and name in modules else super().__getattr__(name)

    # ---- sizes --------------------------------------------------------------------------------------------------------

    @property
    def own_grid(self) -> tuple[int, int]:
        """(rows, columns) of patches of the latent that the model was made for, the grid of its learned tables."""
        return self._grid_of(self.config.input_size)

    def _grid_of(self, size: int | tuple[int, int]) -> tuple[int, int]:
        height, width = (int(n) for n in to_2tuple(size))
        p = self.patch_size
        if height % p or width % p or min(height, width) < p:
            raise ValueError(
                f"{type(self).__name__}: a latent of {height}x{width} cells is no multiple of the patch of {p}x{p}; sides must "
                f"be multiples of {p}, e.g. {max(height // p, 1) * p}x{max(width // p, 1) * p}."
            )
        return height // p, width // p

    def _latent_grid(self, x: Tensor) -> tuple[int, int]:
        """(rows, columns) of patches of latents (B, C, height, width)."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"{type(self).__name__}: needs latents (B, {self.in_channels}, height, width), got {tuple(x.shape)}."
            )
        (height, width), p = x.shape[-2:], self.patch_size
        if height % p or width % p or min(height, width) < p:
            self._grid_of((height, width))  # raises; sizes that fit are not turned into constants of a compiled graph
        return height // p, width // p

    def set_input_size(self, input_size: int | tuple[int, int]) -> list[str]:
        """Make another latent size the model's own: learned tables are resampled, everything else computes on.

        The reference of relative coordinates (`train_size`) stays. Returns what was resampled, in words.
        """
        grid = self._grid_of(input_size)
        done = self.encoding.set_grid(grid)
        train = [n * self.patch_size for n in self.train_grid]
        self.register_to_config(input_size=list(to_2tuple(input_size)), train_size=train)
        return done

    # ---- positions ----------------------------------------------------------------------------------------------------

    def positions(self, height: int, width: int, device: torch.device | None = None) -> Positions:
        """Positions of a grid of `height` x `width` patches as this model sees them."""
        return patch_grid(height, width, train=self.train_grid, device=device)

    def _place(self, x: Tensor, t: Tensor, grid: tuple[int, int], positions: Positions | None) -> Positions:
        """The given positions of the patches, or the plain grid, with what the encoding wants to know beside."""
        count = grid[0] * grid[1]
        if positions is None:
            positions = self.positions(*grid, device=x.device)
        elif positions.prefix or positions.coords.shape[1] != count or positions.coords.shape[0] not in (1, x.shape[0]):
            raise ValueError(
                f"{type(self).__name__}: positions must hold 1 or {x.shape[0]} samples of {count} tokens (a grid of "
                f"{grid[0]}x{grid[1]} patches) without prefix, got {tuple(positions.coords.shape[:2])} and "
                f"prefix={positions.prefix}."
            )
        if self.encoding.wants_noise and not isinstance(positions, NoisyPositions):
            positions = with_noise(positions, self.noise_level(t))
        return with_image(positions, x) if self.encoding.wants_image else positions

    def noise_level(self, t: Tensor) -> float:
        """How noisy samples are at these times, 0 (data) to 1 (noise); one number, as samplers step all samples together."""
        t = torch.as_tensor(t).reshape(-1)
        if (t != t[0]).any():
            raise ValueError(
                f"{type(self).__name__}: extrapolation that depends on the time needs one time for all samples of a batch."
            )
        return 1 - float(t[0]) if self.prediction_type == "sit_velocity" else min(float(t[0]) / 1000, 1.0)

    def set_coords(self, resize: Resize | None) -> None:
        """Let coordinates "extend" beyond the train grid or "rescale" onto it; None returns to what it was created with."""
        self.encoding.set_coords(resize)

    def set_extrapolation(self, setting: str | Extrapolation | None) -> None:
        """What rotary frequencies do on latents larger than trained: a method, a preset, an `Extrapolation`, or None.

        Methods that depend on the diffusion time (`encoding.wants_noise`) take it from t, or from positions that carry it:
        `positions=with_noise(model.positions(rows, columns), noise)`.
        """
        self.encoding.set_extrapolation(setting)

    # ---- conditions ---------------------------------------------------------------------------------------------------

    def _times(self, t: Tensor, batch: int, device: torch.device) -> Tensor:
        """(1,) or (B,) times on the device."""
        t = torch.as_tensor(t, device=device)
        if t.shape not in ((), (1,), (batch,)):
            raise ValueError(
                f"{type(self).__name__}: timesteps must be one number or ({batch},), one a sample; got {tuple(t.shape)}."
            )
        return t.reshape(-1)

    def _check_ids(self, y: Tensor | None, batch: int) -> Tensor:
        """Class ids (B,) of a class-conditional model; their range is the embedder's business."""
        if y is None or y.shape != (batch,) or y.is_floating_point():
            got = None if y is None else (tuple(y.shape), y.dtype)
            raise ValueError(
                f"{type(self).__name__}: needs class ids y ({batch},) int64, got {got}; the null class is "
                f"{self.y_embedder.num_classes}."
            )
        return y

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that must not be decayed."""
        return {f"encoding.{name}" for name in self.encoding.no_weight_decay()}
