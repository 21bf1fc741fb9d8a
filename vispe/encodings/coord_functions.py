"""Encodings of coordinates as plain functions: octaves, coarse to fine, integrated over a region, Gaussians, splines, sines.

Sources: chenhsuanlin/bundle-adjusting-NeRF@803291b (NeRF, BARF), google/mipnerf@84c969e (integrated), amirhertz/SAPE@47bfb06,
osiriszjq/Rethinking-positional-encoding@6da4779 (shifted Gaussians), Eunjnnn/bfstvsr@f2ad72f (splines),
V-DETR/V-DETR@c2a1c45 (3DETR's sine and Fourier).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .frustum import sine_features


def octaves(x: Tensor, count: int) -> Tensor:
    """NeRF: [sin(2^k π x), k = 0 ... L − 1, then all cosines] for each coordinate of x (..., A): (..., A · 2L)."""
    freqs = math.pi * 2.0 ** torch.arange(count, dtype=x.dtype, device=x.device)
    angle = x[..., None] * freqs  # (..., A, L)
    return torch.cat((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def coarse_to_fine(count: int, progress: float, start: float, end: float) -> Tensor:
    """BARF's weight of each octave, (count,): (1 − cos(π clamp(α − k, 0, 1))) / 2, α = L (progress − start)/(end − start)."""
    alpha = (progress - start) / (end - start) * count
    return (1 - torch.cos(math.pi * (alpha - torch.arange(count, dtype=torch.float32)).clamp(0, 1))) / 2


def weighted_octaves(x: Tensor, count: int, progress: float, start: float = 0.1, end: float = 0.5) -> Tensor:
    """BARF: `octaves` that appear one after the other as `progress` goes from `start` to `end`."""
    weight = coarse_to_fine(count, progress, start, end).to(x)
    return (octaves(x, count).unflatten(-1, (x.shape[-1], 2, count)) * weight).flatten(-3)


def integrated(mean: Tensor, variance: Tensor, low: int, high: int) -> Tensor:
    """mip-NeRF: expected sines at 2^k, k = low ... high − 1, of a normal variable; no π.

    Args:
        mean: (..., A).
        variance: (..., A), along the axes; or the whole covariance (..., A, A), of which the diagonal counts.

    Returns:
        (..., 2 · A · (high − low)): exp(−var/2) sin, k outside and axes inside, then the same a quarter turn on.
    """
    if variance.ndim == mean.ndim + 1:
        variance = variance.diagonal(dim1=-2, dim2=-1)
    scale = 2.0 ** torch.arange(low, high, dtype=mean.dtype, device=mean.device)[:, None]
    x, damping = (mean[..., None, :] * scale).flatten(-2), (variance[..., None, :] * scale.square()).flatten(-2)
    return torch.exp(-0.5 * torch.cat((damping, damping), -1)) * torch.sin(torch.cat((x, x + 0.5 * math.pi), -1))


def frustum_moments(
    origins: Tensor, directions: Tensor, edges: Tensor, radii: Tensor, *, shape: str = "cone", diagonal: bool = True
) -> tuple[Tensor, Tensor]:
    """Mean (..., S, 3) and covariance (..., S, 3) or (..., S, 3, 3) of the pieces of a cone or cylinder around each ray.

    Args:
        origins, directions: (..., 3); edges: (..., S + 1) distances in lengths of the direction.
        radii: (..., 1): of a cone at distance 1 (distance between neighbouring directions · 2/√12), or of a cylinder.
    """
    near, far = edges[..., :-1], edges[..., 1:]
    if shape == "cone":  # the stable form of mip-NeRF's equation 7
        mid, half = (near + far) / 2, (far - near) / 2
        ratio = 3 * mid**2 + half**2
        mean_t = mid + 2 * mid * half**2 / ratio
        var_t = half**2 / 3 - 4 / 15 * half**4 * (12 * mid**2 - half**2) / ratio**2
        var_r = radii**2 * (mid**2 / 4 + 5 / 12 * half**2 - 4 / 15 * half**4 / ratio)
    elif shape == "cylinder":
        mean_t, var_t, var_r = (near + far) / 2, (far - near) ** 2 / 12, (radii**2 / 4).expand_as(near)
    else:
        raise ValueError(f"frustum_moments: shape must be 'cone' or 'cylinder', got {shape!r}.")
    mean = origins[..., None, :] + directions[..., None, :] * mean_t[..., None]
    length = directions.square().sum(-1, keepdim=True).clamp(min=1e-10)
    if diagonal:
        along = directions.square()
        across = 1 - along / length
        return mean, var_t[..., None] * along[..., None, :] + var_r[..., None] * across[..., None, :]
    along = directions[..., :, None] * directions[..., None, :]
    across = torch.eye(3, dtype=directions.dtype, device=directions.device) - along / length[..., None]
    return mean, var_t[..., None, None] * along[..., None, :, :] + var_r[..., None, None] * across[..., None, :, :]


def shifted_gaussians(x: Tensor, count: int, sigma: float, *, norm: float | None = None) -> Tensor:
    """Gaussians at 2i/E of every coordinate (..., A), i < E/2, axes one after the other: (..., A · E/2).

    Args:
        count: E.
        norm: divisor; None is the released one, the longest row of this batch, which makes a row depend on the others.
    """
    centres = 2 * torch.arange(count // 2, dtype=x.dtype, device=x.device) / count
    found = torch.exp(-((x[..., None] - centres) ** 2) / (2 * sigma**2)).flatten(-2)
    return found / (found.norm(dim=-1).max() if norm is None else norm)


def sape_octaves(x: Tensor, count: int) -> Tensor:
    """SAPE: for each 2^k π, k outside, cosines of all coordinates, then sines: (..., 2 · A · count)."""
    freqs = math.pi * 2.0 ** torch.arange(count, dtype=x.dtype, device=x.device)
    angle = x[..., None, :] * freqs[:, None]
    return torch.cat((angle.cos(), angle.sin()), dim=-1).flatten(-2)


def gaussian_fourier(x: Tensor, freqs: Tensor, *, interleaved: bool = False) -> Tensor:
    """Sines and cosines of 2π x·B, B (A, F): (..., 2F); sines ahead of cosines unless interleaved."""
    angle = 2 * math.pi * (x[..., None] * freqs.to(x.dtype)).sum(-2)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2) if interleaved else torch.cat((angle.sin(), angle.cos()), -1)


def radial_basis(x: Tensor, centres: Tensor, inverse_width: Tensor) -> Tensor:
    """SAPE's Gaussians exp(−|x − c|² w²) at centres (F, A) with inverse widths w (F,): (..., F)."""
    return torch.exp(-(x[..., None, :] - centres).square().sum(-1) * inverse_width**2)


def progressive_mask(blocks: int, step: int, period: int) -> Tensor:
    """SAPE's weight of each block, (blocks,): 1 for those revealed, and for the next one min(1, 2 (step mod n)/n).

    The first block is revealed from the start, another one every `period` steps.
    """
    mask, revealed = torch.zeros(blocks), 1 + step // period
    mask[:revealed] = 1.0
    if revealed < blocks:
        mask[revealed] = min(1.0, 2 * (step % period) / period)
    return mask


def even_shares(channels: int, axes: int) -> list[int]:
    """Even numbers of channels for each axis; what is left goes to the first axes, two at a time (3DETR)."""
    base, rest = channels // axes // 2 * 2, channels - channels // axes // 2 * 2 * axes
    return [base + (2 if 2 * i < rest - rest % 2 else 0) for i in range(axes)]


def scene_sine(x: Tensor, channels: int, *, temperature: float = 10000.0, scale: float = 2 * math.pi) -> Tensor:
    """3DETR's interleaved sines of normalised coordinates (..., A), axes one after the other: (..., channels)."""
    shares = even_shares(channels, x.shape[-1])
    parts = [
        sine_features(t * scale, n, stacking="interleaved", temperature=temperature) for t, n in zip(x.unbind(-1), shares)
    ]
    return torch.cat(parts, dim=-1)


def b_spline(x: Tensor, order: int = 3) -> Tensor:
    """The centred cardinal B-spline of an order (degree): pieces of degree `order`, support |x| < (order + 1)/2.

        B_n(x) = Σ_k (−1)^k C(n + 1, k) max(x + (n + 1)/2 − k, 0)^n / n!
    """
    total = torch.zeros_like(x)
    edge = (order + 1) / 2
    y = -x.abs()  # even; the left half has no cancellation
    for k in range(order // 2 + 2):
        total = total + (-1) ** k * math.comb(order + 1, k) * (y + edge - k).clamp(min=0) ** order
    return total / math.factorial(order)
