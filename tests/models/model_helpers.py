"""Tiny registered ViTs and fixed images."""

import timm
import torch

import vispe  # noqa: F401  registers the names
from vispe.models.vit_zoo import VARIANTS

ZOO = list(VARIANTS)
TINY = dict(embed_dim=96, depth=3, num_heads=2, mlp_ratio=2.0, patch_size=8, img_size=(32, 48), num_classes=5)


def vit(variant, *, seed=0, **kwargs):
    """An eval-mode ViT whose encoding's parameters are off their initial values."""
    torch.manual_seed(seed)
    model = timm.create_model(f"vit_ti_{variant}", **{**TINY, **kwargs})
    if not kwargs.get("features_only"):
        stir(model.encoding)
    return model.eval()


def stir(module):
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.2 * torch.randn_like(p))


def images(height=32, width=48, *, batch=2, seed=1):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def close(a, b, tol=1e-5):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)
