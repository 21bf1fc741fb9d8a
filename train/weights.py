"""Weights from a file or a checkpoint into a model that may have another image size or class count."""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import to_2tuple
from timm.models import load_state_dict

from vispe.convert import convert, load
from vispe.convert.files import read

EMA, NET = "ema.module.", "net."


def stored_grid(checkpoint: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) of patches that one of our checkpoints was trained on; None for a file from elsewhere."""
    kwargs = (checkpoint.get("hyper_parameters") or {}).get("model_kwargs") or {}
    kernel = checkpoint.get("state_dict", {}).get(f"{NET}patch_embed.proj.weight")
    if kernel is None or "img_size" not in kwargs:
        return None
    height, width = (size // patch for size, patch in zip(to_2tuple(kwargs["img_size"]), kernel.shape[-2:], strict=True))
    return height, width


def init_from(net: torch.nn.Module, path: str) -> list[str]:
    """Load weights into the model and say what was resampled, is missing from the file, or was not used.

    Of our own checkpoints the averaged weights are taken if there are some. Layouts of official repositories are
    recognised (``vispe.convert``) for vispe's models; any other timm model takes its own names only.
    """
    if hasattr(net, "encoding"):
        content = read(path)
        return str(load(net, content, strict=False, source_grid=stored_grid(content))).splitlines()
    state, report = keep_fitting(net, load_state_dict(path, use_ema=True))
    missing, unexpected = net.load_state_dict(state, strict=False)
    report += [f"missing in the file, at its initial value: {key}" for key in missing]
    return report + [f"in the file, not used: {key}" for key in unexpected]


def keep_fitting(net: torch.nn.Module, state: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Entries of another shape give way to the model's own values; one line for each."""
    state, report = dict(state), []
    for key, own in net.state_dict().items():
        if key in state and state[key].shape != own.shape:
            report.append(f"kept the initial {key} {tuple(own.shape)}: the file has {tuple(state[key].shape)}")
            state[key] = own
    return state, report


def fit_state(net: torch.nn.Module, state: dict[str, Any], grid: tuple[int, int] | None) -> tuple[dict[str, Any], list[str]]:
    """A state dict of the same model, made to fit another image size or class count; one line for each change."""
    own = {key: value.shape for key, value in net.state_dict().items()}
    if own == {key: value.shape for key, value in state.items()} or not hasattr(net, "encoding"):
        return keep_fitting(net, state)
    state, account = convert(state, net, "vispe", source_grid=grid)
    state, report = keep_fitting(net, state)
    return state, [f"resampled {key}: {how}" for key, how in account.resampled.items()] + report


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
        part, changes = fit_state(net, part, stored_grid(checkpoint))
        fitted |= {prefix + key: value for key, value in part.items()}
        report += [] if prefix == EMA else changes
    checkpoint["state_dict"] = fitted
    return report
