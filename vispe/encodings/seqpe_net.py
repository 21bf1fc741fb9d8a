"""The network of SeqPE: positions as digits, read by a small causal transformer.

    (2, 13) → digits 0 2 1 3 → GPT-2 blocks over digits and a closing token → LN → Linear of the closing token's state

Code: ghrua/seqpe at 4c4b908, image_seqpe (SequentialPE). Padding zeros are ordinary digits there (`mask_padding` False in
all image runs). Float32 whatever the dtype of the parameters; only the closing token's row of the last block is computed.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import at_least_float32


def digits(positions: Tensor, max_digits: int) -> Tensor:
    """Decimal digits of cells, most significant first, axes one after the other.

    Args:
        positions: (..., axes) non-negative whole numbers, of any dtype that holds them.

    Returns:
        (..., axes · max_digits) int64 in 0...9.

    Raises:
        ValueError: negative, fractional, or with more than `max_digits` digits. Compiled code does not look at values; the
            leading digit is not reduced there, so that the lookup of a position out of range fails instead of wrapping.
    """
    if not torch.compiler.is_compiling() and not positions.is_meta and positions.numel():
        low, high = positions.aminmax()
        whole = not positions.is_floating_point() or bool((positions == positions.floor()).all())
        if low < 0 or high >= 10**max_digits or not whole:
            raise ValueError(
                f"seqpe: positions must be whole numbers from 0 to {10**max_digits - 1} ({max_digits} digits), got values from "
                f"{low.item():g} to {high.item():g}; create it with more max_digits, or use a smaller grid."
            )
    powers = 10 ** torch.arange(max_digits - 1, -1, -1, device=positions.device)
    shifted = positions.long()[..., None] // powers  # (..., axes, max_digits)
    return torch.cat((shifted[..., :1], shifted[..., 1:] % 10), dim=-1).flatten(-2)


def real_digits(positions: Tensor, max_digits: int) -> Tensor:
    """Which of `digits` are no padding, (..., axes · max_digits) bool; a lone zero is real."""
    powers = 10 ** torch.arange(max_digits - 1, -1, -1, device=positions.device)
    powers[-1] = 0
    return (positions.long()[..., None] >= powers).flatten(-2)


class DigitBlock(nn.Module):
    """A pre-norm GPT-2 block: tanh GELU, hidden width 4 · width."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor, rows: slice) -> Tensor:
        """x (N, L, width) to the states of `rows`; mask (1 or N, 1, L, L) is added to the logits."""
        qkv = linear(norm(x, self.norm1), self.qkv).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (N, heads, L, D)
        o = F.scaled_dot_product_attention(q[:, :, rows], k, v, attn_mask=mask[:, :, rows])
        x = x[:, rows] + linear(o.transpose(1, 2).flatten(2), self.proj)
        return x + linear(F.gelu(linear(norm(x, self.norm2), self.fc1), approximate="tanh"), self.fc2)


class DigitEncoder(nn.Module):
    """Positions to vectors.

    Args:
        axes: coordinates of a position.
        out_dim: width of the result; `width`: of the blocks, whose heads are `num_heads` (default: width // 64).
        attention: "causal", or "bi" (every digit sees every digit).
        mask_padding: hide the padding zeros.
        temperature: divides the result.
    """

    def __init__(
        self, *, axes: int, max_digits: int, width: int, out_dim: int, layers: int = 2, num_heads: int | None = None,
        attention: Literal["causal", "bi"] = "causal", mask_padding: bool = False, last_norm: bool = True,
        temperature: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        num_heads = max(1, width // 64) if num_heads is None else num_heads
        if min(max_digits, layers, num_heads) < 1 or width % num_heads:
            raise ValueError(
                f"seqpe: the network's width must be a positive multiple of its heads, got width={width}, heads={num_heads}, "
                f"layers={layers}, max_digits={max_digits}; choose net_width and net_heads that fit."
            )
        if attention not in ("causal", "bi") or not temperature > 0:
            raise ValueError(f"seqpe: attention must be 'causal' or 'bi', temperature > 0, got {attention!r}, {temperature}.")
        self.max_digits, self.mask_padding = max_digits, mask_padding
        self.causal, self.temperature = attention == "causal", temperature
        self.digit = nn.Parameter(torch.empty(10, width))
        self.place = nn.Parameter(torch.empty(axes * max_digits, width))
        self.axis = nn.Parameter(torch.empty(axes, width)) if axes > 1 else None
        self.close = nn.Parameter(torch.empty(1, width))
        self.blocks = nn.ModuleList(DigitBlock(width, num_heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if last_norm else None
        self.proj = nn.Linear(width, out_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        for table in (self.digit, self.place, self.axis, self.close):
            if table is not None:
                nn.init.trunc_normal_(table, std=0.02)

    def forward(self, positions: Tensor) -> Tensor:
        """Cells (N, axes) to (N, out_dim), float32 or wider."""
        dtype = at_least_float32(self.digit.dtype)
        x = F.embedding(digits(positions, self.max_digits), self.digit.to(dtype)) + self.place.to(dtype)
        if self.axis is not None:
            x = x + self.axis.to(dtype).repeat_interleave(self.max_digits, dim=0)
        x = torch.cat((x, self.close.to(dtype).expand(x.shape[0], 1, -1)), dim=1)  # (N, axes · max_digits + 1, width)
        mask = self.mask(positions, x)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, slice(-1, None) if i == len(self.blocks) - 1 else slice(None))
        x = x[:, -1] if self.norm is None else norm(x[:, -1], self.norm)
        return linear(x, self.proj) / self.temperature

    def mask(self, positions: Tensor, x: Tensor) -> Tensor:
        """What is added to the logits, (1 or N, 1, L, L): 0, or the lowest number (a row of padding alone stays finite)."""
        size = x.shape[1]
        seen = torch.ones(1, 1, size, size, dtype=torch.bool, device=x.device)
        seen = seen.tril() if self.causal else seen
        if self.mask_padding:
            seen = seen & F.pad(real_digits(positions, self.max_digits), (0, 1), value=True)[:, None, None]
        return torch.zeros((), dtype=x.dtype, device=x.device).where(seen, torch.finfo(x.dtype).min)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """The layer in x's dtype."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    """The layer in x's dtype."""
    return F.layer_norm(x, layer.normalized_shape, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)
