"""Reading a checkpoint: safe formats only, wrappers taken off, and a message that names the file when it is broken."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor

_WRAPPERS = ("state_dict", "model", "module", "ema", "target_encoder", "ema_encoder", "encoder")
_PREFIXES = ("module.", "_orig_mod.", "model.")
GRID_NOTE = "vispe.grid"
SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin")


def read(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint file on the CPU."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"load: {path} must end in one of {SUFFIXES}, got {path.suffix!r}; convert it first.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # DeiT and MAE save their arguments beside the weights
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # every reader has its own exceptions for a broken file
        raise ValueError(
            f"load: {path} ({path.stat().st_size} bytes) cannot be read as weights: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no details'}. The file is truncated, corrupt, or holds more than "
            f"tensors and plain values; fetch it again or save only its state dict."
        ) from error


def unwrap(content: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    """The state dict inside a checkpoint, without "module." and the like in front of its keys, and what was passed over."""
    inner: Any = content
    notes = []
    for _ in range(3):
        name = next((w for w in _WRAPPERS if isinstance(inner, Mapping) and isinstance(inner.get(w), Mapping)), None)
        if name is None:
            break
        beside = [k for k, v in inner.items() if k != name and isinstance(v, Mapping) and _tensors(v)]
        notes += [f"taken from {name!r}; {beside} passed over"] if beside else []
        inner = inner[name]
    if not isinstance(inner, Mapping) or not inner or not all(isinstance(k, str) for k in inner):
        raise ValueError(f"load: no state dict inside; expected a mapping of names to tensors, got {type(content).__name__}.")
    state = _tensors(inner)
    if not state:
        raise ValueError(f"load: no tensors inside; the top level holds {sorted(map(str, content))[:8]}.")
    if any(k.startswith("net.") for k in state):  # our training checkpoints: the averaged weights if they hold some
        averaged = any(k.startswith("ema.module.") for k in state)
        prefix = "ema.module." if averaged else "net."
        others = [k for k in state if not k.startswith(("net.", "ema."))]
        notes += [f"taken from {prefix!r}; {others[:8]} passed over"] if others else []
        state = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
        notes += ["averaged weights taken"] if averaged else []
    while prefix := next((p for p in _PREFIXES if all(k.startswith(p) for k in state)), None):
        state = {k[len(prefix) :]: v for k, v in state.items()}
    return state, notes


def grid_of(size: int | tuple[int, int], kernel: Tensor, *, padded: bool = False) -> tuple[int, int]:
    """(rows, columns) of patches in an image of `size` pixels, from the embedding's kernel (C, channels, height, width)."""
    rows, columns = (-(-s // p) if padded else s // p for s, p in zip(to_2tuple(size), kernel.shape[-2:]))
    return int(rows), int(columns)


def stored_grid(content: Mapping[str, Any]) -> tuple[int, ...] | None:
    """(rows, columns) of patches, or (frames, rows, columns) of tubelets, that one of our training checkpoints was trained
    on; None for anything else."""
    settings, state = content.get("hyper_parameters"), content.get("state_dict")
    if not isinstance(settings, Mapping) or not isinstance(state, Mapping):
        return None
    kernel, kwargs = state.get("net.patch_embed.proj.weight"), settings.get("model_kwargs") or {}
    if kernel is None or ("img_size" not in kwargs and not any(key.startswith("net.encoding.") for key in state)):
        return None
    padded = kwargs.get("dynamic_img_pad", False)
    grid = grid_of(kwargs.get("img_size", 224), kernel, padded=padded)
    if kernel.ndim == 4:
        return grid
    frames, tubelet = kwargs.get("num_frames", 16), kernel.shape[2]
    return (-(-frames // tubelet) if padded else frames // tubelet, *grid)


def noted_grid(path: str | Path) -> tuple[int, ...] | None:
    """The grid that `vispe convert` noted in a .safetensors file; None without a note."""
    if Path(path).suffix != ".safetensors":
        return None
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        note = (file.metadata() or {}).get(GRID_NOTE)
    if note is None:
        return None
    return tuple(int(n) for n in note.split("x"))


def _tensors(mapping: Mapping[str, Any]) -> dict[str, Tensor]:
    return {k: v for k, v in mapping.items() if isinstance(v, Tensor)}
