"""Patch embedding whose size checks do not tie compiled graphs to one resolution."""

from __future__ import annotations

import torch.nn.functional as F
from timm.layers import PatchEmbed as TimmPatchEmbed
from torch import Tensor


class PatchEmbed(TimmPatchEmbed):
    """timm's PatchEmbed with a plain ValueError: its formatted assertion recompiles a graph at every resolution."""

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) pixels to (B, H, W, C) patches."""
        height, width = x.shape[-2:]
        ph, pw = self.patch_size
        if self.dynamic_img_pad:
            x = F.pad(x, (0, (pw - width % pw) % pw, 0, (ph - height % ph) % ph))
        elif height % ph or width % pw:
            raise ValueError(
                f"PatchEmbed: image sides must be multiples of the patch size {self.patch_size}, got {(height, width)}; resize "
                f"or pad the image, or create the model with dynamic_img_pad=True."
            )
        return self.norm(self.proj(x).permute(0, 2, 3, 1))
