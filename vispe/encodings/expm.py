"""Matrix exponentials of many small skew-symmetric matrices, and blocks of channels turned by them.

Scaling and squaring with a Taylor polynomial of degree 15 in six products. On many small matrices this is faster, and closer in
float32, than `torch.linalg.matrix_exp`, whose backward exponentiates matrices of twice the size. The derivative along E goes
with it, by the product rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_REACH = 2.0  # largest norm at which the polynomial is exact to float32


@dataclass(frozen=True)
class Blocks:
    """Rotation matrices (B or 1, H or 1, prefix + N, m, b, b) float32."""

    matrices: Tensor


@torch.library.custom_op("vispe::skew_exp", mutates_args=())
def skew_exp(skew: Tensor) -> Tensor:
    """exp(S) of skew-symmetric (..., b, b), float32 or float64; one operator, since its squarings depend on the data."""
    return _exp(skew, None)[0]


@skew_exp.register_fake
def _(skew: Tensor) -> Tensor:
    return torch.empty_like(skew)


@torch.library.custom_op("vispe::skew_exp_backward", mutates_args=())
def skew_exp_backward(skew: Tensor, grad: Tensor) -> Tensor:
    """The adjoint of the derivative of exp at S is the derivative at Sᵀ."""
    return _exp(skew.mT.contiguous(), grad)[1]


@skew_exp_backward.register_fake
def _(skew: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(skew)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad: Tensor) -> Tensor:
    return skew_exp_backward(*ctx.saved_tensors, grad.contiguous())


skew_exp.register_autograd(_backward, setup_context=_save)


def _exp(skew: Tensor, along: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """exp(S), and its derivative at S along E."""
    # The eigenvalues of S come in pairs ±λi, so that its spectral norm is at most the Frobenius norm over √2.
    norm = float(torch.linalg.matrix_norm(skew).amax()) / math.sqrt(2)
    squarings = max(0, math.ceil(math.log2(norm / _REACH))) if 0 < norm < math.inf else 0
    s = skew / 2**squarings
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
    powers = [s, s @ s]
    powers += [powers[1] @ s, powers[1] @ powers[1]]
    terms = [[1 / math.factorial(4 * j + i) for i in range(4)] for j in range(4)]  # of degree 4j + i
    rows = [t[0] * eye + t[1] * s + t[2] * powers[1] + t[3] * powers[2] for t in terms]
    r = rows[3]
    if along is None:
        for row in rows[2::-1]:
            r = row + r @ powers[3]
        for _ in range(squarings):
            r = r @ r
        return r, None
    e = along / 2**squarings
    d2 = s @ e + e @ s
    d3 = powers[1] @ e + d2 @ s
    d4 = powers[1] @ d2 + d2 @ powers[1]
    slopes = [t[1] * e + t[2] * d2 + t[3] * d3 for t in terms]
    d = slopes[3]
    for row, slope in zip(rows[2::-1], slopes[2::-1]):
        r, d = row + r @ powers[3], slope + d @ powers[3] + r @ d4
    for _ in range(squarings):
        r, d = r @ r, r @ d + d @ r
    return r, d


def turn_blocks(x: Tensor, matrices: Tensor) -> Tensor:
    """Column vectors x (B, H, N, D), cut into blocks, times their tokens' matrices; channels that no block holds stay.

    Args:
        matrices: (B or 1, H or 1, N, m, b, b) with m · b <= D.
    """
    blocks, size = matrices.shape[-3], matrices.shape[-1]
    matrices = matrices.to(x.dtype)
    parts = x[..., : blocks * size].unflatten(-1, (blocks, size))  # (B, H, N, m, b)
    if matrices.shape[0] == 1:
        # All images have the same matrices: each meets the whole batch in one product.
        turned = torch.matmul(parts.permute(1, 2, 3, 0, 4), matrices[0].mT).permute(3, 0, 1, 2, 4)
    else:
        turned = (matrices * parts[..., None, :]).sum(-1)
    turned = turned.flatten(-2)
    return turned if blocks * size == x.shape[-1] else torch.cat((turned, x[..., blocks * size :]), dim=-1)
