"""Classifier-free guidance: on some channels only, and in a part of the noise only."""

from __future__ import annotations

import torch
from torch import Tensor


def guide(cond: Tensor, uncond: Tensor, scale: float, *, channels: int | None = None) -> Tensor:
    """uncond + scale · (cond − uncond) on the first `channels` (None: all); the others are those of `cond`.

    facebookresearch/DiT and what descends from it guide 3 of 4 latent channels; their published numbers were made so.

    Args:
        cond, uncond: predictions (B, C, H, W) with the class and with the null class.
    """
    if channels is None:
        return uncond + scale * (cond - uncond)
    if not 1 <= channels <= cond.shape[1]:
        raise ValueError(f"guide: channels must lie in 1..{cond.shape[1]}, got {channels}.")
    first = uncond[:, :channels] + scale * (cond[:, :channels] - uncond[:, :channels])
    return torch.cat((first, cond[:, channels:]), dim=1)


def check_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """(low, high) noise levels between 0 (data) and 1 (noise) in which guidance acts, ends included.

    Kynkäänniemi et al., NeurIPS 2024, arXiv 2404.07724. LightningDiT's `cfg_interval_start` s, in time from noise to data, is
    the interval (0, 1 − s).
    """
    low, high = interval
    if not 0 <= low <= high <= 1:
        raise ValueError(
            f"guidance_interval is (low, high) with 0 <= low <= high <= 1 (0 data, 1 noise), got {tuple(interval)}."
        )
    return float(low), float(high)
