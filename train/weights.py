"""Weights from a file or a checkpoint into a model that may have another image size or class count."""

from typing import Any

import torch
from timm.models import load_state_dict

from vispe.convert import convert, load
from vispe.convert.files import read, stored_grid, unwrap
from vispe.convert.inflate import PATCH, inflate
from vispe.models.video_vit import EncodedVideoTransformer

EMA, NET = "ema.module.", "net."


def init_from(net: torch.nn.Module, path: str) -> list[str]:
    """Load weights into the model and say what was resampled, is missing from the file, or was not used.

    Of our own checkpoints the averaged weights are taken if there are some. Layouts of official repositories are
    recognised (``vispe.convert``) for vispe's models; any other timm model takes its own names only.
    """
    if hasattr(net, "encoding"):
        content = read(path)
        if isinstance(net, EncodedVideoTransformer) and is_image(content):
            state, report = inflate(content, net)
            net.load_state_dict(state, strict=False)
            return str(report).splitlines()
        return str(load(net, content, strict=False)).splitlines()
    state, report = keep_fitting(net, load_state_dict(path, use_ema=True))
    missing, unexpected = net.load_state_dict(state, strict=False)
    report += [f"missing in the file, at its initial value: {key}" for key in missing]
    return report + [f"in the file, not used: {key}" for key in unexpected]


def is_image(content: dict[str, Any]) -> bool:
    """Whether these are the weights of an image model, whose patches have no frames."""
    kernel = unwrap(content)[0].get(PATCH)
    return kernel is not None and kernel.ndim == 4


def keep_fitting(net: torch.nn.Module, state: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Entries of another shape give way to the model's own values; one line for each."""
    state, report = dict(state), []
    for key, own in net.state_dict().items():
        if key in state and state[key].shape != own.shape:
            report.append(f"kept the initial {key} {tuple(own.shape)}: the file has {tuple(state[key].shape)}")
            state[key] = own
    return state, report


def fit_state(
    net: torch.nn.Module, state: dict[str, Any], grid: tuple[int, ...] | None
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """A state dict of the same model, made to fit another image size or class count.

    Returns:
        The state dict, what was resampled (name -> in words), and one line for each other change.
    """
    if not hasattr(net, "encoding"):
        state, report = keep_fitting(net, state)
        return state, {}, report
    if grid is None and {k: v.shape for k, v in net.state_dict().items()} == {k: v.shape for k, v in state.items()}:
        return state, {}, []
    new, account = convert(state, net, "vispe", source_grid=grid)
    new |= {key: state[key] for key in account.unexpected}  # for Lightning to refuse
    state, report = keep_fitting(net, new)
    return state, account.resampled, report


def fit_checkpoint(module: torch.nn.Module, checkpoint: dict[str, Any]) -> tuple[set[str], list[str]]:
    """Make the ``state_dict`` of a checkpoint fit our LightningModule.

    The averaged weights are added when the run has an average and the checkpoint none, and dropped in the other case.

    Returns:
        Names of the network's parameters that were resampled, and one line for each change.
    """
    state, report, names = checkpoint["state_dict"], [], set()
    nets = {NET: module.net} | ({EMA: module.ema.module} if module.ema is not None else {})
    fitted = {k: v for k, v in state.items() if not k.startswith((NET, EMA))}
    for prefix, net in nets.items():
        source = prefix if any(key.startswith(prefix) for key in state) else NET
        part = {k.removeprefix(source): v for k, v in state.items() if k.startswith(source)}
        part, resampled, changes = fit_state(net, part, stored_grid(checkpoint))
        fitted |= {prefix + key: value for key, value in part.items()}
        if prefix == NET:
            names = set(resampled)
            report = [f"resampled {key}: {how}" for key, how in resampled.items()] + changes
    checkpoint["state_dict"] = fitted
    return names, report
