"""The arithmetic that encodings share: angles, rotations of channel pairs, logarithmic buckets, resampled tables."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

Layout = Literal["interleaved", "half"]
LAYOUTS: tuple[str, ...] = ("interleaved", "half")


def phase(coords: Tensor, freqs: Tensor) -> Tensor:
    """Angles of rotary pairs: the sum over axes of coordinate times frequency.

    Args:
        coords: (B or 1, N, A) float.
        freqs: (..., H or 1, A, P) radians per coordinate unit.

    Returns:
        (..., B or 1, H or 1, N, P). Elementwise products: autocast downcasts a matmul, and positions collapse.
    """
    freqs = freqs.unsqueeze(-4)  # (..., 1, H, A, P)
    c = coords.unsqueeze(-3)  # (B, 1, N, A)
    angle = c[..., 0, None] * freqs[..., 0, None, :]  # (..., B, H, N, P)
    for axis in range(1, coords.shape[-1]):
        angle = torch.addcmul(angle, c[..., axis, None], freqs[..., axis, None, :])
    return angle


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout = "interleaved") -> Tensor:
    """Turn channel pairs (a, b) into (a cos − b sin, a sin + b cos).

    Args:
        x: (B, H, N, D).
        cos, sin: broadcastable to (B, H, N, P) with 2P <= D; channels from 2P on stay as they are.
        layout: "interleaved" pairs channels (2i, 2i+1), "half" pairs (i, i + P).

    Returns:
        (B, H, N, D) in x's dtype; the arithmetic runs in the dtype of the tables (float32) when that is wider.
    """
    pairs = cos.shape[-1]
    turned = x if 2 * pairs == x.shape[-1] else x[..., : 2 * pairs]
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        out = _Turn.apply(turned, cos, sin, layout)
    else:
        out = turn(turned, cos, sin, layout)
    return out if turned is x else torch.cat((out, x[..., 2 * pairs :]), dim=-1)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """`rotate` of tokens whose channels all turn."""
    pairs = cos.shape[-1]
    if layout == "half":
        a, b = x.chunk(2, dim=-1)
        # joined with heads inside tokens, as projections lay them out: attention's result then merges its heads for free
        parts = ((a * cos - b * sin).transpose(-3, -2), (a * sin + b * cos).transpose(-3, -2))
        return torch.cat(parts, dim=-1).transpose(-3, -2).type_as(x)
    if _complex_view(x, cos):  # the same products in one pass instead of seven
        z = torch.view_as_complex(x.unflatten(-1, (pairs, 2))) * torch.complex(cos, sin)
        return torch.view_as_real(z).flatten(-2)
    a, b = x.unflatten(-1, (pairs, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).type_as(x)


def _complex_view(x: Tensor, cos: Tensor) -> bool:
    """Whether eager code may see channel pairs as complex numbers; compilers and exporters get real arithmetic."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or x.device.type not in ("cpu", "cuda"):
        return False
    even = x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in x.stride()[:-1])
    return even and x.dtype == cos.dtype and x.dtype in (torch.float32, torch.float64)


class _Turn(torch.autograd.Function):
    """`turn` by learned tables. Keeps its result, which attention keeps too, and not its input, which nothing else needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        return turn(x, cos, sin, layout)

    @staticmethod
    def setup_context(ctx, inputs, output: Tensor) -> None:
        _, cos, sin, ctx.layout = inputs
        ctx.save_for_backward(cos, sin, output)

    @staticmethod
    def backward(ctx, grad: Tensor):
        cos, sin, y = ctx.saved_tensors
        grad_cos, grad_sin = table_gradients(grad, y, cos, sin, ctx.layout)
        return turn(grad, cos, -sin, ctx.layout), grad_cos, grad_sin, None


def table_gradients(grad: Tensor, y: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Gradients of cos and sin from the result y of `turn` and the gradient of y: x = R⁻¹ y need not have been kept."""
    if layout == "interleaved" and _complex_view(grad, cos) and _complex_view(y, cos):
        g, z = (torch.view_as_complex(t.unflatten(-1, (-1, 2))) for t in (grad, y))
        both = (g.conj() * z).sum_to_size(cos.shape)
        along, across = both.real, both.imag
    else:
        split = (lambda t: t.chunk(2, dim=-1)) if layout == "half" else (lambda t: t.unflatten(-1, (-1, 2)).unbind(-1))
        (ga, gb), (ya, yb) = split(grad.to(cos.dtype)), split(y.to(cos.dtype))
        along = (ga * ya + gb * yb).sum_to_size(cos.shape)
        across = (ga * yb - gb * ya).sum_to_size(cos.shape)
    size = cos.square() + sin.square()  # 1, but for tables that also scale
    return (cos * along + sin * across) / size, (sin * along - cos * across) / size


def log_bucket(x: Tensor, ratio: float) -> Tensor:
    """iRPE's piecewise index of integer (or float) offsets: exact up to `ratio`, logarithmic up to 2·ratio at 8·ratio.

    Returns int64 in [−int(2·ratio), int(2·ratio)]. The clip happens at the float 2·ratio and the result is truncated, so
    ratio 1.9 ends at 3. Source: microsoft/Cream iRPE (arXiv 2107.14222, eq. 18).
    """
    alpha, beta, gamma = ratio, 2 * ratio, 8 * ratio
    size = x.abs()
    far = alpha + torch.log(size.clamp(min=1).float() / alpha) / math.log(gamma / alpha) * (beta - alpha)
    far = torch.sign(x).float() * far.round().clamp(max=beta)
    return torch.where(size <= alpha, torch.round(x.float()), far).long()


def resample_table(table: Tensor, source: tuple[int, int], target: tuple[int, int], *, antialias: bool, mode: str) -> Tensor:
    """A learned table (1, h·w, C) at another grid, always from the original entries; float32 inside.

    Equal grids give the table itself, without a resampling node. Target sizes go to the interpolation as sizes, never as
    scale factors, whose rounding loses a row at some sizes (facebookresearch/dino#8).
    """
    if table.shape[1] != source[0] * source[1]:
        raise ValueError(
            f"resample_table: the table has {table.shape[1]} rows, its grid {tuple(source)} needs {source[0] * source[1]}; "
            f"name the grid that the table was made for."
        )
    if statically_known_true(target[0] == source[0]) and statically_known_true(target[1] == source[1]):
        return table
    with torch.autocast(table.device.type, enabled=False):
        rows, cols = (
            resample_weights(n, m, antialias=antialias, mode=mode, device=table.device) for n, m in zip(source, target)
        )
        image = (rows @ table.float().reshape(source[0], -1)).unflatten(1, (source[1], -1))  # (H, w, C)
        image = cols @ image  # (H, W, C)
    return image.flatten(0, 1)[None].to(table.dtype)


def resample_weights(source: int, target: int, *, antialias: bool, mode: str, device: torch.device | None = None) -> Tensor:
    """The (target, source) matrix by which `F.interpolate` resamples one axis.

    Interpolation is separable, and a matrix product has a backward for symbolic sizes, which antialiased interpolation has not
    (torch 2.14): compiled training at several sizes needs it.
    """
    unit = torch.eye(source, device=device)[None, None]
    return F.interpolate(unit, size=(target, source), mode=mode, align_corners=False, antialias=antialias)[0, 0]
