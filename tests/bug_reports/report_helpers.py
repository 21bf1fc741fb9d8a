"""What the tests of public bug reports share: tiny models, images, encodings and tables."""


import timm
import torch

from vispe.encodings import create_encoding

TINY = dict(embed_dim=64, depth=2, num_heads=2, mlp_ratio=2.0, patch_size=8, img_size=(32, 32), num_classes=5)


def vit(variant, *, seed=0, **kwargs):
    torch.manual_seed(seed)
    return timm.create_model(f"vit_ti_{variant}", **{**TINY, **kwargs}).eval()


def images(height=32, width=32, *, batch=2):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def encoding(name, **options):
    torch.manual_seed(0)
    return create_encoding(name, dim=128, num_heads=2, depth=2, **options).eval()


def close(a, b, tol=1e-5):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def learned(grid, dim, rows, *, prefix=0, **options):
    """A learned table with given rows, (prefix rows + cells, C)."""
    table = create_encoding("learned", dim=dim, num_heads=1, grid=grid, prefix=prefix, **options)
    table.pos_embed.data = rows[None].clone()
    return table
