"""What the generic suite shares: the names it runs over, tiny hosts, positions for any card, and reading a context."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, register_model
from torch import Tensor

from vispe.encodings import ENCODINGS, Encoding, create_encoding
from vispe.models.vit import EncodedVisionTransformer
from vispe.models.vit_zoo import SIZES as WIDTHS
from vispe.models.vit_zoo import VARIANTS
from vispe.positions import Positions, custom_positions, full_grid, look_at, with_cameras, with_keypoints

NAMES = list(ENCODINGS)
KEYPOINTS = [name for name, cls in ENCODINGS.items() if "keypoints" in cls.card.needs]
CAMERAS = [name for name, cls in ENCODINGS.items() if "cameras" in cls.card.needs]
ZOO = list(VARIANTS) + KEYPOINTS + CAMERAS  # every encoding with two axes and every composition
PAIRS = [(name, axes) for name, cls in ENCODINGS.items() for axes in cls.card.axes]
RELATIVE = [(name, axes) for name, axes in PAIRS if ENCODINGS[name].card.relative and name not in CAMERAS]

DIM, HEADS = 96, 2  # heads of 48 channels: pairs for 1, 2 and 3 axes, and blocks of 8
SIZES = {1: (6,), 2: (3, 4), 3: (2, 3, 2), 4: (2, 3, 1, 2), 6: (1, 2, 1, 3, 1, 2)}
TINY = dict(embed_dim=DIM, depth=2, num_heads=HEADS, mlp_ratio=2.0, patch_size=8, img_size=(32, 48), num_classes=5)


POINTS = torch.tensor([[0.3, 0.4], [0.7, 0.35], [0.5, 0.6], [0.35, 0.8], [0.66, 0.75]])


class KeypointVisionTransformer(EncodedVisionTransformer):
    """A host of encodings that need key points: every image has the same ones."""

    def positions(self, height: int, width: int, device: torch.device | None = None) -> Positions:
        return with_keypoints(super().positions(height, width, device), POINTS.to(device))


# Two cameras around the origin, with focal lengths of their own.
EYES = torch.tensor([[2.5, 0.4, 0.6], [-1.0, 2.2, 0.9]])
POSES = look_at(EYES, torch.tensor([0.1, -0.2, 0.1]))  # (2, 4, 4)
INTRINSICS = torch.tensor([[[40.0, 0, 25], [0, 44, 15], [0, 0, 1]], [[45.0, 0, 23], [0, 41, 17], [0, 0, 1]]])


def of_views(pos: Positions, name: str) -> Positions:
    """The cells of one image as seen by two cameras in turn, or by one where an encoding needs all cells of a view."""
    cells = torch.arange(pos.coords.shape[1])
    posed = with_cameras(pos, POSES[:1], INTRINSICS[:1], image_size=(32, 48), depth=1 + cells / 8)
    if "grid" in ENCODINGS[name].card.needs:
        return posed
    known = {"world_to_camera": POSES[None], "intrinsics": INTRINSICS[None], "full_views": False}
    return dataclasses.replace(posed, view=cells[None] % 2, **known)


class CameraVisionTransformer(EncodedVisionTransformer):
    """A host of encodings that need cameras."""

    def positions(self, height: int, width: int, device: torch.device | None = None) -> Positions:
        return of_views(super().positions(height, width, device), self.encoding.spec)


def _register(name: str, cls: type[EncodedVisionTransformer]) -> None:
    def entry(pretrained: bool = False, **kwargs: Any) -> EncodedVisionTransformer:
        kwargs = {**WIDTHS["ti"], "patch_size": 16, "encoding": name, **kwargs}
        return build_model_with_cfg(cls, entry.__name__, pretrained, **kwargs)

    entry.__name__ = entry.__qualname__ = f"vit_ti_{name}"
    register_model(entry)


for _name in KEYPOINTS:
    _register(_name, KeypointVisionTransformer)
for _name in CAMERAS:
    _register(_name, CameraVisionTransformer)


def facts(name: str, axes: int, prefix: int = 0) -> dict[str, Any]:
    """What a host would fill in: the train grid and the prefix count, for encodings that ask."""
    known = {"grid": SIZES[axes], "prefix": prefix}
    return {k: v for k, v in known.items() if k in inspect.signature(ENCODINGS[name]).parameters}


def build(name: str, axes: int = 2, *, prefix: int = 0, seed: int = 0, **options: Any) -> Encoding:
    """One encoding with every parameter moved off its initial value, in eval mode."""
    torch.manual_seed(seed)
    options = {**facts(name, axes, prefix), **options}
    return excite(create_encoding(name, dim=DIM, num_heads=HEADS, axes=axes, depth=2, **options)).eval()


def excite(module: torch.nn.Module) -> torch.nn.Module:
    """Add noise to every parameter, so that tables that start at zero take part."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return module


def vit(variant: str, *, seed: int = 0, moved: bool = True, **kwargs: Any) -> EncodedVisionTransformer:
    """A tiny registered ViT; `moved` takes its encoding's parameters off their initial values."""
    torch.manual_seed(seed)
    model = timm.create_model(f"vit_ti_{variant}", **{**TINY, **kwargs})
    if moved:
        excite(model.encoding)
    return model.eval()


def images(height: int = 32, width: int = 48, *, batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def grid_positions(axes: int, *, prefix: int = 0, size: tuple[int, ...] | None = None, name: str = "none") -> Positions:
    """A full grid; that of an image carries key points, or cameras, for the encodings that ask."""
    pos = full_grid(size or SIZES[axes], prefix=prefix, train=SIZES[axes])
    if name in CAMERAS:
        return of_views(pos, name)
    return with_keypoints(pos, POINTS) if axes == 2 else pos


def free_positions(axes: int, *, offset: float = 0.0, prefix: int = 0) -> Positions:
    """Integer coordinates of a grid as custom ones, all moved by `offset`; prefix tokens stay where they are."""
    return custom_positions(full_grid(SIZES[axes]).coords[0] + offset, prefix=prefix)


def accepts_free(name: str, axes: int) -> bool:
    """Whether an encoding takes coordinates of the caller's own; those that need a grid must say so."""
    if name in CAMERAS:
        return False
    try:
        build(name, axes).prepare(free_positions(axes))
    except ValueError as error:
        assert name in str(error) and "custom" in str(error), error
        assert "grid" in ENCODINGS[name].card.needs
        return False
    return True


def heads(count: int, *, batch: int = 2, seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v (B, H, N, D)."""
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, count, DIM // HEADS, generator=g) for _ in range(3))


def scores(encoding: Encoding, q: Tensor, k: Tensor, ctx_q: Any, ctx_k: Any) -> Tensor:
    """Logits (B, H, Nq, Nk) that attention builds with the hooks of an encoding."""
    bias, scale = encoding.bias(q, k, ctx_q, ctx_k), q.shape[-1] ** -0.5  # the host's scale, whatever qk does to the width
    q, k = encoding.qk(q, k, ctx_q, ctx_k)
    logits = q @ k.mT * scale
    return logits if bias is None else logits + bias


def tensors(ctx: Any) -> list[Tensor]:
    """Every tensor inside a context, in order."""
    if isinstance(ctx, Tensor):
        return [ctx]
    if isinstance(ctx, (list, tuple)):
        return [t for item in ctx for t in tensors(item)]
    if isinstance(ctx, dict):
        return [t for item in ctx.values() for t in tensors(item)]
    if dataclasses.is_dataclass(ctx):
        return [t for field in dataclasses.fields(ctx) for t in tensors(getattr(ctx, field.name))]
    return []


def close(a: Tensor, b: Tensor, tol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)
