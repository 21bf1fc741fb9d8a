"""Features of the 2015 Inception network, on which FID, sFID, IS, precision and recall of papers are computed.

The network is torch-fidelity's port, through torchmetrics; its weights (pt_inception-2015-12-05-6726825d.pth of
torch-fidelity's releases) are a download, so that nothing here was compared with published numbers. As in
openai/guided-diffusion: bytes, resized to 299 px as TensorFlow 1 does, without antialiasing (torchmetrics has antialias=True
by default and then differs); pooled features for FID, precision and recall; the first 7 channels of the 1 x 1 branch of
mixed_6 (17 x 17, 2023 numbers) for sFID; logits without bias for IS.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .lite0 import checked

SPATIAL = 7


class InceptionOutput(NamedTuple):
    """pool3 (B, 2048), spatial (B, 2023), probabilities (B, 1008)."""

    pool3: Tensor
    spatial: Tensor
    probabilities: Tensor


class InceptionFeatures(nn.Module):
    """Pictures (B, 1 or 3, H, W) in [0, 1] to `InceptionOutput`.

    Args:
        weights: file of torch-fidelity's weights.
    """

    def __init__(self, weights: str | Path) -> None:
        super().__init__()
        if not Path(weights).is_file():
            raise FileNotFoundError(
                f"InceptionFeatures: no weights at {weights}. Download pt_inception-2015-12-05-6726825d.pth of "
                f"torch-fidelity's releases, or use the feature distance, which needs no download."
            )
        try:
            import torch_fidelity  # noqa: F401
            from torchmetrics.image.fid import NoTrainInceptionV3
        except ImportError as error:
            raise ImportError("FID needs torchmetrics and torch-fidelity: pip install vispe[evaluate]") from error
        self.net = NoTrainInceptionV3("inception", ["2048", "logits_unbiased"], str(weights), antialias=False)
        self.net.requires_grad_(False)
        self._spatial: Tensor | None = None
        self.net.Mixed_6d.branch1x1.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._spatial = output[:, :SPATIAL]

    def train(self, mode: bool = True) -> InceptionFeatures:
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> InceptionOutput:
        pixels = (checked(images) * 255).round().clamp(0, 255).to(torch.uint8)
        pooled, logits = self.net._torch_fidelity_forward(pixels)
        spatial, self._spatial = self._spatial, None
        return InceptionOutput(pooled.float(), spatial.flatten(1).float(), logits.float().softmax(1))
