"""Encodings in diffusers' transformers (DiT, PixArt, SD3, Flux, Lumina2, Wan), and extrapolation of their rotary tables.

    model = vispe.swap(flux, "harope")                                       # or this package's swap
    vispe.adapters.diffusers.set_extrapolation(model, "yarn", train_grid=(64, 64))
    vispe.adapters.diffusers.multiview(pixart, "plucker+epipolar")           # joint attention of several views
    vispe.adapters.diffusers.save(model, "folder"); model = vispe.adapters.diffusers.load("folder")
"""

try:
    import diffusers as _installed  # noqa: F401
except ImportError as error:
    raise ImportError("The adapters for diffusers' models need diffusers: pip install vispe[diffusion]") from error

from .multiview import Cameras, multiview
from .saving import load, save
from .swap import no_weight_decay, set_extrapolation, set_noise, swap

__all__ = ["Cameras", "load", "multiview", "no_weight_decay", "save", "set_extrapolation", "set_noise", "swap"]
