"""Weights from a file or a state dict into a model that may have another image size or class count."""

from pathlib import Path
from typing import Any

import torch
from timm.models import load_state_dict

from train.checkpoint import readable
from vispe.convert import adapt

EMA, NET = "ema.module.", "net."


def fit_state(net: torch.nn.Module, state: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The state made to fit the model, and one line for each thing that was changed.

    Tables of another grid are resampled by the model's own filter; a classifier of another class count is left at its
    initial values.
    """
    shapes = {k: tuple(v.shape) for k, v in state.items()}
    state = dict(adapt(dict(state), net))
    report = []
    for key, own in net.state_dict().items():
        if key not in state:
            continue
        if key in shapes and shapes[key] != tuple(state[key].shape):
            report.append(f"resampled {key} {shapes[key]} -> {tuple(state[key].shape)}")
        if state[key].shape != own.shape:
            report.append(f"kept the initial {key} {tuple(own.shape)}: the file has {tuple(state[key].shape)}")
            state[key] = own
    return state, report


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """The network's state dict from one of our .ckpt (its averaged weights if it has some), a .pth or a .safetensors."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"init_from: no file {path}")
    with readable(path):
        if not str(path).endswith(".ckpt"):
            return load_state_dict(path, use_ema=True)
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    prefix = EMA if any(key.startswith(EMA) for key in state) else NET
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def init_from(net: torch.nn.Module, path: str) -> list[str]:
    """Load weights into the model and say what was resampled, is missing from the file, or was not used."""
    state, report = fit_state(net, read_weights(path))
    missing, unexpected = net.load_state_dict(state, strict=False)
    report += [f"missing in the file, at its initial value: {key}" for key in missing]
    report += [f"in the file, not used: {key}" for key in unexpected]
    return report


def fit_checkpoint(module: torch.nn.Module, checkpoint: dict[str, Any]) -> list[str]:
    """Make the ``state_dict`` of a checkpoint fit our LightningModule; returns one line for each change.

    The averaged weights are added when the run has an average and the checkpoint none, and dropped in the other case.
    """
    state, report = checkpoint["state_dict"], []
    nets = {NET: module.net} | ({EMA: module.ema.module} if module.ema is not None else {})
    fitted = {k: v for k, v in state.items() if not k.startswith((NET, EMA))}
    for prefix, net in nets.items():
        source = prefix if any(key.startswith(prefix) for key in state) else NET
        part = {k.removeprefix(source): v for k, v in state.items() if k.startswith(source)}
        part, changes = fit_state(net, part)
        fitted |= {prefix + key: value for key, value in part.items()}
        report += [] if prefix == EMA else changes
    checkpoint["state_dict"] = fitted
    return report
