"""A classifier that says whether generated Glyph-47 pictures show the class that was asked for, at any size.

The shorter side of a picture is reduced to the 32 px that the judge knows (bicubic, antialiased), so that one judge serves all
sizes. Along a longer side it looks through square windows, an eighth of their side apart, and takes the mean of what it sees.
Its own accuracy on real pictures of each size is in the card of its weights (checkpoints/judge_glyph).
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 32
MEAN, STD = 0.245, 0.255  # of the pictures it was trained on


class GlyphJudge(nn.Module):
    """Grey pictures (B, 1, H, W) in [0, 1] to class probabilities (B, 47).

    Args:
        folder: checkpoints/judge_glyph, or another folder that timm opens by "local-dir:".
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        import timm

        if not (Path(folder) / "config.json").is_file():
            raise FileNotFoundError(
                f"GlyphJudge: {folder} holds no config.json. The weights are in checkpoints/judge_glyph of the repository; "
                f"configs/dit/glyph_judge.yaml trains others."
            )
        self.net = timm.create_model(f"local-dir:{folder}", pretrained=True).float().eval().requires_grad_(False)

    def train(self, mode: bool = True) -> GlyphJudge:
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 1:
            raise ValueError(f"GlyphJudge: needs grey pictures (B, 1, H, W) in [0, 1], got {tuple(images.shape)}.")
        height, width = images.shape[-2:]
        side = min(height, width)
        if side != SIDE:
            size = (round(height * SIDE / side), round(width * SIDE / side))
            images = F.interpolate(images, size, mode="bicubic", antialias=True, align_corners=False)
        x = (images - MEAN) / STD
        starts = [(r, c) for r in _starts(x.shape[-2]) for c in _starts(x.shape[-1])]
        seen = [self.net(x[..., r : r + SIDE, c : c + SIDE]).softmax(1) for r, c in starts]
        return torch.stack(seen).mean(0)

    def accuracy(self, images: Tensor, labels: Tensor, *, batch_size: int = 256) -> float:
        """Share of pictures (N, 1, H, W) whose class (N,) the judge sees."""
        right = [self(x).argmax(1) == y for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True)]
        return float(torch.cat(right).float().mean())


def _starts(length: int) -> list[int]:
    """Where windows of SIDE begin so that they cover the length from end to end."""
    count = -(-(length - SIDE) // (SIDE // 8))
    return [round(i * (length - SIDE) / count) for i in range(count + 1)] if count else [0]
