"""LOOPE: one number for each patch, its place on a Hilbert curve, plus what a small network reads from the image.

    X = X_G + X_C ∈ ℝ^N,   x_n ← x_n + [sin(X_n ω), cos(X_n ω)],   ω_k = θ^(−2k/C)

Paper: Chowdhury et al., LOOPE: Learnable Optimal Patch Order in Positional Embeddings, 2025, arXiv 2504.14386. No code was
found. X_G is the visit index of the generalised Hilbert curve (gilbert.py). X_C ∈ (−1, 1)^N, "content" here: column, row
and colours → patch convolution to 32 channels → 5x5 convolutions to 16, 8, 4, 1, each with GELU → batch norm →
Linear N → N → tanh. The paper leaves open: activation (GELU), scale of the coordinates (−1 to 1), bias (yes).
Chosen here: the default is the order alone, which needs a grid and nothing else; content="image" is the paper's whole
encoding and needs positions with the image (`with_image`, which a ViT of this package attaches by itself). Its N x N layer
belongs to the train grid: on other grids the map is resampled to it and back. Prefix tokens get zeros.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding, at_least_float32
from .functional import resample_table
from .gilbert import gilbert_order
from .rotary import positive
from .sincos2d import sincos


class Content(nn.Module):
    """X_C of an image, (B, 3, height, width) → (B, N) in (−1, 1), float32 or wider.

    Args:
        patch_size: pixels of a patch; grid: cells of the train grid; channels: of the image.
    """

    def __init__(self, *, patch_size: tuple[int, int], grid: tuple[int, int], channels: int = 3) -> None:
        super().__init__()
        self.patch_size, self.grid = tuple(patch_size), tuple(grid)
        widths = (32, 16, 8, 4, 1)
        self.patch = nn.Conv2d(channels + 2, widths[0], self.patch_size, stride=self.patch_size)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 5, padding=2) for a, b in zip(widths, widths[1:]))
        self.norm = nn.BatchNorm2d(1)
        self.mix = nn.Linear(grid[0] * grid[1], grid[0] * grid[1])

    def reset_parameters(self) -> None:
        for module in (self.patch, *self.convs, self.norm, self.mix):
            module.reset_parameters()

    def forward(self, image: Tensor) -> Tensor:
        dtype = at_least_float32(self.mix.weight.dtype)
        ranges = (torch.arange(n, dtype=dtype, device=image.device) / torch.sym_max(n - 1, 1) for n in image.shape[-2:])
        rows, cols = (2 * r - 1 for r in ranges)
        where = torch.stack(torch.broadcast_tensors(cols[None, :], rows[:, None])).expand(image.shape[0], -1, -1, -1)
        x = conv(torch.cat((where, image.to(dtype)), dim=1), self.patch)
        for layer in self.convs:
            x = F.gelu(conv(x, layer))
        size, x = x.shape[-2:], self.normalise(x).flatten(1)  # (B, N)
        x = resample_table(x.T[None], size, self.grid, antialias=False, mode="bilinear")[0].T
        x = F.linear(x, self.mix.weight.to(dtype), self.mix.bias.to(dtype)).tanh()
        return resample_table(x.T[None], self.grid, size, antialias=False, mode="bilinear")[0].T

    def normalise(self, x: Tensor) -> Tensor:
        """The batch norm in x's dtype; its running statistics, in whatever dtype, learn in training."""
        n = self.norm
        if self.training:
            var, mean = torch.var_mean(x.detach())
            n.running_mean.lerp_(mean.to(n.running_mean.dtype), n.momentum)
            n.running_var.lerp_(var.to(n.running_var.dtype), n.momentum)
        stats = (None, None) if self.training else (n.running_mean.to(x.dtype), n.running_var.to(x.dtype))
        return F.batch_norm(x, *stats, n.weight.to(x.dtype), n.bias.to(x.dtype), self.training, eps=n.eps)


def conv(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """The layer in x's dtype."""
    return F.conv2d(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.stride, layer.padding)


class Loope(Encoding):
    """Sin-cos of places on a Hilbert curve, added to the tokens ahead of block 0.

    Args:
        content: "none" (the order alone) or "image" (the paper's).
        theta: base of the frequencies.
        patch_size, train_grid: pixels of a patch and cells of the train grid, for content="image"; a host fills them in.
    """

    card = Card(
        title="LOOPE (Hilbert order)",
        family="additive",
        axes=(2,),
        injection=("tokens",),
        formula="x_n + [sin(X_n w), cos(X_n w)], X = Hilbert index (+ content)",
        needs=("grid",),
        paper="https://arxiv.org/abs/2504.14386",
        year=2025,
        cases=1,
    )

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        content: Literal["none", "image"] = "none",
        theta: float = 10000.0,
        patch_size: tuple[int, int] | None = None,
        train_grid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        if content not in ("none", "image"):
            raise ValueError(f"loope: content must be 'none' or 'image', got {content!r}.")
        if dim % 2:
            raise ValueError(f"loope: dim must be a multiple of 2 for sines and cosines, got dim={dim}.")
        if content == "image" and (patch_size is None or train_grid is None):
            raise ValueError("loope: content='image' needs patch_size=(height, width) and train_grid=(rows, columns).")
        self.theta = positive("loope", "theta", theta)
        self.wants_image = content == "image"
        self.content = Content(patch_size=patch_size, grid=train_grid) if self.wants_image else None

    def reset_parameters(self) -> None:
        if self.content is not None:
            self.content.reset_parameters()

    def places(self, pos: Positions) -> Tensor:
        """X of the tokens, (1 or B, N) float32."""
        self.check_axes(pos)
        if pos.extent is None or pos.units == "custom":
            raise ValueError(
                "loope: the curve needs grid positions (patch_grid), got custom coordinates; use sincos2d for free coordinates."
            )
        x = gilbert_order(*pos.extent).to(pos.coords.device).to(at_least_float32(pos.coords.dtype))[None]
        if self.content is not None:
            x = x + self.content(self.image(pos))
        if pos.indices is None:
            return x
        batch = max(x.shape[0], pos.indices.shape[0])
        return x.expand(batch, -1).gather(1, pos.indices.expand(batch, -1))

    def image(self, pos: Positions) -> Tensor:
        """The image of the positions, if they carry one that fits."""
        image = getattr(pos, "image", None)
        if image is None:
            raise ValueError(
                "loope: content='image' needs the image; add it with with_image(pos, image), or use content='none'."
            )
        patch = self.content.patch_size
        if image.shape[1] != self.content.patch.in_channels - 2 or any(
            n != p * cells for n, p, cells in zip(image.shape[-2:], patch, pos.extent)
        ):
            raise ValueError(
                f"loope: made for images of {self.content.patch.in_channels - 2} channels in patches of {patch} pixels, got "
                f"{tuple(image.shape[1:])} for {tuple(pos.extent)} patches; resize the image, or create it with its patch_size."
            )
        return image

    def prepare(self, pos: Positions) -> Tensor:
        """(1 or B, prefix + N, C)."""
        table = sincos(self.places(pos)[..., None], self.dim, theta=self.theta, order="row_col", stacking="axis")
        return F.pad(table, (0, 0, pos.prefix, 0))

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx.to(x.dtype)
