"""Saving and loading swapped models: diffusers' files, and `vispe.json` with what was made of the model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import is_accelerate_available, logging
from safetensors import safe_open
from torch import Tensor, nn

from ...encodings.extrapolation import Extrapolation
from .hosts import HOSTS, host_of
from .multiview import multiview
from .swap import Setup, set_extrapolation, setup_of, swap

FILE, WEIGHTS = "vispe.json", "diffusion_pytorch_model.safetensors"


def save(model: nn.Module, folder: str | Path, **save_pretrained: Any) -> None:
    """Write a model as `save_pretrained` does, with its encodings' parameters, and `vispe.json` beside.

    A pipeline's own save_pretrained writes no `vispe.json`; call this for its transformer's folder afterwards.

    Args:
        save_pretrained: arguments of diffusers' method (max_shard_size, ...); safetensors only.
    """
    host_of(model, "save")
    if not save_pretrained.get("safe_serialization", True) or save_pretrained.get("variant"):
        raise ValueError("save: writes safetensors without a variant, which is what load reads.")
    folder, setup = Path(folder), asdict(setup_of(model))
    text = json.dumps({"model": type(model).__name__, **setup}, indent=2)  # an option that is no plain value fails here
    model.save_pretrained(folder, **save_pretrained)
    (folder / FILE).write_text(text + "\n")


def load(folder: str | Path, *, device: torch.device | str | None = None, **from_pretrained: Any) -> nn.Module:
    """A model that `save` wrote, through `from_pretrained`; in eval mode, as that leaves it.

    The encodings are put in before their weights are read, so that no weight is left aside.

    Args:
        device: where to put it.
        from_pretrained: arguments of diffusers' method (torch_dtype, ...).

    Raises:
        ValueError: `vispe.json` is missing; a weight in the files has no place, or a parameter no weight.
    """
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise ValueError(f"load: {folder} has no {FILE}; `save` writes it. A folder of diffusers' own goes to from_pretrained.")
    told = json.loads((folder / FILE).read_text())
    cls = next((host.cls for host in HOSTS if host.cls.__name__ == told["model"]), None)
    if cls is None:
        raise ValueError(f"load: {FILE} is of a {told['model']}, for which there is no adapter.")
    model, info = quiet(cls, folder, from_pretrained)
    setup = Setup(**{key: value for key, value in told.items() if key != "model"})
    if setup.views:
        model = multiview(model, setup.encoding, setup.encoding_kwargs, train_grid=setup.train_grid)
    elif setup.encoding:
        swap(model, setup.encoding, encoding_kwargs=setup.encoding_kwargs, old=setup.old, start=setup.start,
             train_grid=setup.train_grid, into="model")  # fmt: skip
    fill_new(model, folder, info)
    if setup.extrapolation is not None:
        set_extrapolation(model, Extrapolation(**plain(setup.extrapolation)))
    return model if device is None else model.to(device)


def quiet(cls: type[nn.Module], folder: Path, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """from_pretrained without its warning about weights that have no place yet: `fill_new` finds theirs, or raises."""
    if cls._keep_in_fp32_modules and not is_accelerate_available():
        return by_hand(cls, folder, options)
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return cls.from_pretrained(folder, output_loading_info=True, **options)
    finally:
        logging.set_verbosity(level)


def by_hand(cls: type[nn.Module], folder: Path, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """The same for models with modules that stay in float32 (Wan), which from_pretrained loads through accelerate alone."""
    if options:
        raise ValueError(f"load: options {sorted(options)} of {cls.__name__} need accelerate: pip install accelerate.")
    model = cls.from_config(cls.load_config(folder)).eval()
    own, found = model.state_dict().keys(), set(places(folder))
    model.load_state_dict(read(folder, found & own), strict=False)
    return model, {"missing_keys": own - found, "unexpected_keys": found - own}


def fill_new(model: nn.Module, folder: Path, info: dict[str, Any]) -> None:
    """The weights that diffusers left aside into the encodings; every one of either side must find its other."""
    own, unused = model.state_dict(), set(info["unexpected_keys"])
    new = read(folder, unused & own.keys())
    fresh = {key for key in own if ".encodings." in key}
    missing = (fresh - new.keys()) | (set(info["missing_keys"]) & own.keys())  # a removed table is missing, and not wanted
    odd = [key for key, value in new.items() if value.shape != own[key].shape] + list(info.get("mismatched_keys") or [])
    if missing or unused - own.keys() or odd:
        raise ValueError(
            f"load: weights in {folder} and the model do not match: missing {sorted(missing)[:4]}, without a place "
            f"{sorted(unused - own.keys())[:4]}, of another shape {[str(key) for key in odd][:4]}."
        )
    with torch.no_grad():
        for key, value in new.items():
            own[key].copy_(value)


def places(folder: Path) -> dict[str, str]:
    """The file of each tensor in a folder."""
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        return json.loads(index.read_text())["weight_map"]
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return dict.fromkeys(file.keys(), WEIGHTS)


def read(folder: Path, keys: set[str]) -> dict[str, Tensor]:
    """Some tensors of a folder."""
    found = {}
    for name, file_keys in by_file(places(folder), keys).items():
        with safe_open(folder / name, framework="pt") as file:
            found |= {key: file.get_tensor(key) for key in file_keys}
    return found


def by_file(where: dict[str, str], keys: set[str]) -> dict[str, list[str]]:
    """The keys that each file holds."""
    return {name: [key for key in keys if where[key] == name] for name in {where[key] for key in keys}}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where the setting has tuples."""

    def fixed(value: Any) -> Any:
        return tuple(fixed(v) for v in value) if isinstance(value, list) else value

    return {key: fixed(value) for key, value in values.items()}
