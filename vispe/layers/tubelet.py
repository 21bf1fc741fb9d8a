"""Tubelet embedding: blocks of frames x rows x columns of a video become tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.layers import resample_patch_embed, to_2tuple
from torch import Tensor, nn


class TubeletEmbed(nn.Module):
    """timm's PatchEmbed for videos; its size attributes and methods speak of frames, rows and columns.

    Paper: Arnab et al., ViViT, ICCV 2021, arXiv 2103.15691, section 3.2.

    Args:
        img_size: pixels, (height, width) or one number, of the videos the model is made for; others are accepted.
        num_frames: frames of those videos.
        tubelet_size: frames of one token.
        dynamic_img_pad: pad at the end, with zeros, to whole tubelets; otherwise other sizes are refused.
        strict_img_size, output_fmt: what timm hands to any embedding; sizes are free and tokens come last here.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        *,
        num_frames: int = 16,
        tubelet_size: int = 2,
        norm_layer: Callable[..., nn.Module] | None = None,
        bias: bool = True,
        dynamic_img_pad: bool = False,
        strict_img_size: bool = False,
        output_fmt: str = "NHWC",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if strict_img_size or output_fmt != "NHWC":
            raise ValueError(f"TubeletEmbed: sizes are free and channels last, got {strict_img_size=}, {output_fmt=}.")
        if num_frames < 1 or tubelet_size < 1:
            raise ValueError(f"TubeletEmbed: num_frames and tubelet_size must be at least 1, got {num_frames}, {tubelet_size}.")
        self.img_size, self.patch_size = to_2tuple(img_size), to_2tuple(patch_size)
        self.num_frames, self.tubelet_size = num_frames, tubelet_size
        self.strict_img_size, self.dynamic_img_pad = False, dynamic_img_pad
        kernel = self.cell
        self.proj = nn.Conv3d(in_chans, embed_dim, kernel, stride=kernel, bias=bias, device=device, dtype=dtype)
        self.norm = norm_layer(embed_dim, device=device, dtype=dtype) if norm_layer else nn.Identity()

    @property
    def cell(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels in one token."""
        return (self.tubelet_size, *self.patch_size)

    @property
    def grid_size(self) -> tuple[int, int, int]:
        return self.dynamic_feat_size((self.num_frames, *self.img_size))

    @property
    def num_patches(self) -> int:
        frames, rows, columns = self.grid_size
        return frames * rows * columns

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        """Pixels a token, in space."""
        return max(self.patch_size) if as_scalar else self.patch_size

    def dynamic_feat_size(self, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """Tokens (T, H, W) of a video of (frames, height, width)."""
        return tuple(-(-n // c) if self.dynamic_img_pad else n // c for n, c in zip(size, self.cell, strict=True))

    def check(self, size: tuple[int, int, int]) -> None:
        """Refuse (frames, height, width) that are no whole tubelets."""
        if not self.dynamic_img_pad and any(n % c or n < c for n, c in zip(size, self.cell)):
            raise ValueError(
                f"TubeletEmbed: (frames, height, width) must be multiples of the tubelet {self.cell}, got {tuple(size)}; "
                f"sample, resize or pad the video, or create the model with dynamic_img_pad=True."
            )

    def set_input_size(
        self,
        img_size: int | tuple[int, int] | None = None,
        patch_size: int | tuple[int, int] | None = None,
        num_frames: int | None = None,
    ) -> None:
        """Another size of the videos; another patch size resamples the kernel of every frame (timm's FlexiViT resampling)."""
        self.img_size = self.img_size if img_size is None else to_2tuple(img_size)
        self.num_frames = self.num_frames if num_frames is None else num_frames
        if patch_size is None or to_2tuple(patch_size) == self.patch_size:
            return
        self.patch_size = to_2tuple(patch_size)
        old = self.proj
        self.proj = nn.Conv3d(
            old.in_channels, old.out_channels, self.cell, stride=self.cell, bias=old.bias is not None,
            device=old.weight.device, dtype=old.weight.dtype,
        )  # fmt: skip
        with torch.no_grad():
            frames = [resample_patch_embed(w, list(self.patch_size)) for w in old.weight.unbind(2)]
            self.proj.weight.copy_(torch.stack(frames, dim=2))
            if old.bias is not None:
                self.proj.bias.copy_(old.bias)
        for new, was in zip(self.proj.parameters(), old.parameters()):
            new.requires_grad_(was.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, frames, height, width) pixels to (B, T, H, W, C) tubelets."""
        if x.ndim != 5:
            raise ValueError(
                f"TubeletEmbed: needs videos (batch, channels, frames, height, width), got {x.ndim} axes {tuple(x.shape)}; "
                f"an image is a video of {self.tubelet_size} equal frames."
            )
        if self.dynamic_img_pad:
            short = [-n % c for n, c in zip(x.shape[2:], self.cell)]
            x = F.pad(x, (0, short[2], 0, short[1], 0, short[0]))
        else:
            self.check(x.shape[2:])
        return self.norm(self.proj(x).permute(0, 2, 3, 4, 1))
