"""Optimizer and schedule: timm's factory, a cosine with warm-up, and who wins on a resume."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from timm.optim import create_optimizer_v2
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def build_optimizer(
    net: torch.nn.Module,
    *,
    optimizer: str,
    lr: float,
    weight_decay: float,
    layer_decay: float | None,
    options: dict[str, Any],
) -> Optimizer:
    """timm's optimizer by name; biases, vectors and ``net.no_weight_decay()`` are not decayed.

    Layer decay scales each group's learning rate by its depth. timm leaves that scale to its own schedulers; here it
    is folded into the group's base rate, so that any torch scheduler honours it.
    """
    built = create_optimizer_v2(
        net, opt=optimizer, lr=lr, weight_decay=weight_decay, layer_decay=layer_decay, **options
    )
    for group in built.param_groups:
        group["lr"] *= group.get("lr_scale", 1.0)
    return built


def warmup_cosine(
    optimizer: Optimizer, *, steps: int, warmup: float, warmup_lr_ratio: float, min_lr_ratio: float
) -> LambdaLR:
    """Linear warm-up from ``warmup_lr_ratio`` over the share ``warmup`` of the steps, then a cosine to ``min_lr_ratio``."""
    rising = round(steps * warmup)

    def factor(step: int) -> float:
        if step < rising:
            return warmup_lr_ratio + (1 - warmup_lr_ratio) * (step + 1) / rising
        share = min(1.0, (step - rising) / max(1, steps - rising))
        return min_lr_ratio + (1 - min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * share))

    return LambdaLR(optimizer, factor)


def group_options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """A copy of the options of each group, to be put back by :func:`restore_options`."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def restore_options(optimizer: Optimizer, scheduler: LambdaLR, options: list[dict[str, Any]]) -> None:
    """After a checkpoint was loaded: this run's options win, and the rate follows this run's schedule at that step."""
    for group, fresh in zip(optimizer.param_groups, options, strict=True):
        group.update(fresh)
    scheduler.base_lrs = [fresh["initial_lr"] for fresh in options]
    rates = [base * fn(scheduler.last_epoch) for base, fn in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def drop_stale_state(optimizer: Optimizer, resampled: Iterable[torch.nn.Parameter] = ()) -> int:
    """Forget the moments of resampled parameters, whose shape may be the same, and of those whose shape has changed since
    they were saved; returns how many."""
    moved = {id(param) for param in resampled}
    stale = [
        param
        for param, state in optimizer.state.items()
        if id(param) in moved
        or any(torch.is_tensor(v) and v.ndim > 0 and v.shape != param.shape for v in state.values())
    ]
    for param in stale:
        del optimizer.state[param]
    return len(stale)
