"""Positions of the tokens of one or several views together with the cameras that took them.

One convention inside: OpenCV axes (x right, y down, z forward); `world_to_camera` maps a world point X to R·X + t; pixel
(row i, column j) covers [j, j+1) x [i, i+1), so corners are integers, centres lie at +0.5 and an image of width W spans
[0, W]; intrinsics are in pixels of the whole image. `camera_formats` has the converters from and to other conventions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from .camera_checks import check_cameras, check_depth, check_image_size
from .camera_formats import invert_pose
from .grid import Positions, patch_grid

_FIELDS = tuple(f.name for f in fields(Positions))  # here, because a compiler cannot read the fields of a class


@dataclass(frozen=True)
class CameraPositions(Positions):
    """Positions of the tokens of V views and their cameras.

    `coords` are row and column cells inside each view and `extent` the (h, w) cells of one view; tokens are view-major and
    row-major inside a view. `grid` is None when there are several views, which together are no full grid; `indices` are the
    row-major cells inside each view.

    Attributes:
        view: (B or 1, N) int64, the number of the camera of each token.
        world_to_camera: (B or 1, V, 4, 4) float32, rigid, OpenCV axes.
        intrinsics: (B or 1, V, 3, 3) float32 in pixels of `image_size`, or None.
        image_size: (height, width) of every view in pixels; None when there are no intrinsics.
        depth: (B or 1, N) float32, z in metres at the centre of each token, or None.
        full_views: whether the tokens are all cells of all views in order.
    """

    view: Tensor | None = None
    world_to_camera: Tensor | None = None
    intrinsics: Tensor | None = None
    image_size: tuple[int, int] | None = None
    depth: Tensor | None = None
    full_views: bool = False

    @property
    def num_views(self) -> int:
        return self.world_to_camera.shape[1]

    @property
    def tokens_per_view(self) -> int | None:
        """Tokens of each view when all views have all their cells in order, else None."""
        return self.coords.shape[1] // self.num_views if self.full_views else None

    def take(self, keep: Tensor) -> CameraPositions:
        """The positions of the kept tokens, (B, K) or (K,) int64 into the N tokens; cameras stay, numbers and all."""
        base = super().take(keep)
        keep = (keep[None] if keep.ndim == 1 else keep).expand(base.coords.shape[0], -1)
        view = self.view.expand(keep.shape[0], -1).gather(1, keep)
        depth = self.depth
        if depth is not None:
            batch = max(depth.shape[0], keep.shape[0])
            depth = depth.expand(batch, -1).gather(1, keep.expand(batch, -1))
        return replace(base, view=view, depth=depth, full_views=False)

    def select_views(self, views: Sequence[int]) -> CameraPositions:
        """The given views alone, in the given order, with their tokens and cameras; needs all cells of all views."""
        count = self.tokens_per_view
        if count is None:
            raise ValueError("CameraPositions.select_views: tokens were dropped; select views first.")
        if not views or any(not 0 <= v < self.num_views for v in views):
            raise ValueError(f"CameraPositions.select_views: there are views 0 to {self.num_views - 1}, got {list(views)}.")
        chosen = torch.as_tensor(list(views), device=self.coords.device)
        kept = self.take((chosen[:, None] * count + torch.arange(count, device=chosen.device)).flatten())
        return replace(
            kept,
            view=torch.arange(len(chosen), device=chosen.device).repeat_interleave(count)[None].expand(kept.view.shape),
            world_to_camera=self.world_to_camera[:, chosen],
            intrinsics=None if self.intrinsics is None else self.intrinsics[:, chosen],
            grid=self.extent if len(chosen) == 1 else None,
            full_views=True,
        )

    def of_tokens(self, per_view: Tensor) -> Tensor:
        """Rows of a tensor (B or 1, V, ...) for every token: (B or 1, N, ...)."""
        if self.full_views:
            return per_view.repeat_interleave(self.tokens_per_view, dim=1)
        batch = max(per_view.shape[0], self.view.shape[0])
        index = self.view.expand(batch, -1)
        shape = (*index.shape, *(1,) * (per_view.ndim - 2))
        index = index.reshape(shape).expand(*index.shape, *per_view.shape[2:])
        return per_view.expand(batch, *per_view.shape[1:]).gather(1, index)

    def pixels(self) -> Tensor:
        """Centres of the tokens in pixels, (B or 1, N, 2) float32, u (column) before v (row)."""
        if self.image_size is None or self.extent is None:
            raise ValueError("CameraPositions.pixels: needs image_size and the extent of a view; pass image_size=(H, W).")
        row, col = self.coords.unbind(-1)
        (height, width), (h, w) = self.image_size, self.extent
        return torch.stack(((col + 0.5) * (width / w), (row + 0.5) * (height / h)), dim=-1)


def with_cameras(
    pos: Positions,
    world_to_camera: Tensor,
    intrinsics: Tensor | None = None,
    *,
    image_size: tuple[int, int] | None = None,
    depth: Tensor | None = None,
    frame: Literal["world", "first"] = "world",
) -> CameraPositions:
    """Positions that carry cameras.

    Args:
        pos: positions of the tokens of one view (patch_grid), all of them or some, the same for every view; or positions
            that carry cameras already, which are replaced.
        world_to_camera: (V, 4, 4) or (B, V, 4, 4) float32 or float64, rigid.
        intrinsics: (V, 3, 3) or (B, V, 3, 3) in pixels of `image_size`, zero-skew or not.
        image_size: (height, width) in pixels; needed with intrinsics.
        depth: (N,) or (B, N), positive metres along z at each token of all views; 0 or less where it is not known.
        frame: "world" keeps the poses; "first" moves the world to the axes of view 0, in float64, ahead of rounding to
            float32: what cameras kilometres from the origin need (pass float64).

    Raises:
        ValueError: half precision, NaN, matrices that are not rigid (with the deviation), singular or normalised intrinsics,
            or shapes and batches that do not fit.
    """
    if pos.axes != 2 or pos.units == "custom" or pos.extent is None:
        raise ValueError("with_cameras: needs positions of an image's patches (patch_grid), which have rows and columns.")
    if frame not in ("world", "first"):
        raise ValueError(f"with_cameras: frame is 'world' or 'first', got {frame!r}.")
    world_to_camera, intrinsics = check_cameras(world_to_camera, intrinsics)
    if frame == "first":
        world_to_camera = world_to_camera.double() @ invert_pose(world_to_camera[:, :1].double())
    world_to_camera = world_to_camera.float()
    image_size = check_image_size(image_size, intrinsics)
    views = world_to_camera.shape[1]
    known = {name: getattr(pos, name) for name in _FIELDS}
    if isinstance(pos, CameraPositions):
        if pos.num_views != views:
            raise ValueError(f"with_cameras: the tokens belong to {pos.num_views} views, got {views} cameras.")
        view, full = pos.view, pos.full_views
        depth = pos.depth if depth is None else depth
    else:
        count = pos.coords.shape[1]
        full = pos.grid is not None and pos.grid == pos.extent and pos.indices is None
        cells = torch.arange(count, device=pos.coords.device)[None] if pos.indices is None else pos.indices
        view = torch.arange(views, device=pos.coords.device).repeat_interleave(count)[None].expand(pos.coords.shape[0], -1)
        if views > 1:
            known |= {"coords": pos.coords.repeat(1, views, 1), "indices": cells.repeat(1, views), "grid": None}
    depth = check_depth(depth, view.shape[1])
    _check_batches(known["coords"], world_to_camera, intrinsics, depth)
    return CameraPositions(
        **known, view=view, world_to_camera=world_to_camera, intrinsics=intrinsics, image_size=image_size, depth=depth,
        full_views=full,
    )  # fmt: skip


def camera_grid(
    height: int,
    width: int,
    world_to_camera: Tensor,
    intrinsics: Tensor | None = None,
    image_size: tuple[int, int] | None = None,
    *,
    depth: Tensor | None = None,
    prefix: int = 0,
    train: tuple[int, int] | None = None,
    frame: Literal["world", "first"] = "world",
) -> CameraPositions:
    """All tokens of V views of `height` x `width` cells each; arguments as in `with_cameras` and `patch_grid`."""
    pos = patch_grid(height, width, prefix=prefix, train=train, device=world_to_camera.device)
    return with_cameras(pos, world_to_camera, intrinsics, image_size=image_size, depth=depth, frame=frame)


def _check_batches(coords: Tensor, cameras: Tensor, intrinsics: Tensor | None, depth: Tensor | None) -> None:
    sizes = {"positions": coords.shape[0], "world_to_camera": cameras.shape[0]}
    if intrinsics is not None:
        sizes["intrinsics"] = intrinsics.shape[0]
    if depth is not None:
        sizes["depth"] = depth.shape[0]
    if len({n for n in sizes.values() if not (isinstance(n, int) and n == 1)}) > 1:
        raise ValueError(f"with_cameras: batches do not fit together, got {sizes}; pass 1 or the same number everywhere.")
