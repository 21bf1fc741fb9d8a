"""Camera poses as matrices on blocks of channels: relative frames, Wigner matrices of low degree, products by views."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..positions import CameraPositions, Positions


@dataclass(frozen=True)
class Views:
    """The cameras of one set of tokens.

    Attributes:
        pose: (B or 1, V, 4, 4) float32, from the axes of `frame` to each camera.
        frame: (B or 1, 4, 4) float64, world to the axes that poses count in (the first camera's).
        view: (B or 1, N) int64, the camera of each token.
        count: tokens of each view when views are full and in order, else None.
        prefix: tokens ahead of the N, which stay as they are.
    """

    pose: Tensor
    frame: Tensor
    view: Tensor
    count: int | None
    prefix: int


def views_of(name: str, pos: Positions) -> Views:
    """The cameras of positions, relative to the first of them: subtracted in float64, ahead of any rounding.

    Raises:
        ValueError: positions without cameras.
    """
    if not isinstance(pos, CameraPositions):
        raise ValueError(
            f"{name}: needs positions with cameras, got {type(pos).__name__} with {pos.axes} axes (custom ones cannot carry "
            f"any); build them with camera_grid or with_cameras."
        )
    world = pos.world_to_camera.double()
    frame = world[:, 0]
    return Views((world @ invert_rigid(frame)[:, None]).float(), frame, pos.view, pos.tokens_per_view, pos.prefix)


def move_frame(views: Views, frame: Tensor) -> Views:
    """The same cameras with poses that count in another frame (B or 1, 4, 4)."""
    step = views.frame @ invert_rigid(frame)
    return replace(views, pose=(views.pose.double() @ step[:, None]).float(), frame=frame)


def invert_rigid(pose: Tensor) -> Tensor:
    """Inverse of [R, t; 0, 1] (..., 4, 4) without a solver: [Rᵀ, −Rᵀt; 0, 1]."""
    turned = pose[..., :3, :3].mT
    return join(turned, -(turned @ pose[..., :3, 3:]))


def join(linear: Tensor, translation: Tensor) -> Tensor:
    """[A, t; 0, 1] (..., 4, 4) from A (..., 3, 3) and t (..., 3, 1)."""
    top = torch.cat((linear, translation), dim=-1)
    last = torch.cat((torch.zeros_like(top[..., :1, :3]), torch.ones_like(top[..., :1, :1])), dim=-1)
    return torch.cat((top, last), dim=-2)


def scale_translation(pose: Tensor, factor: Tensor) -> Tensor:
    """[R, c·t; 0, 1]: conjugation by diag(c, c, c, 1), so that products and inverses stay those of poses."""
    return join(pose[..., :3, :3], pose[..., :3, 3:] * factor)


def wigner(rotation: Tensor, degree: int) -> list[Tensor]:
    """Matrices D_l, l = 1 .. degree <= 2, with Y_l(R r) = D_l Y_l(r).

    Bases: (y, z, x) and (√3 xy, √3 yz, (3z² − r²)/2, √3 xz, √3/2 (x² − y²)). Closed forms, exact where the camera looks
    backwards too (R₂₂ = −1), where ZYZ angles are not: D_1 = P R Pᵀ, D_2[m, n] = ⟨Rᵀ B_m R, B_n⟩ / ⟨B_n, B_n⟩ with B_m the
    symmetric matrix of Y_m.

    Args:
        rotation: (..., 3, 3).
    """
    order = [1, 2, 0]
    found = [rotation[..., order, :][..., :, order]]
    if degree == 2:
        b = _quadrics(rotation)
        turned = rotation.unsqueeze(-3).mT @ b @ rotation.unsqueeze(-3)  # (..., 5, 3, 3)
        found.append(turned.flatten(-2) @ b.flatten(-2).mT / b[0].square().sum())
    return found


def _quadrics(like: Tensor) -> Tensor:
    half = 3**0.5 / 2
    b = like.new_zeros(5, 3, 3)
    for m, (i, j) in ((0, (0, 1)), (1, (1, 2)), (3, (0, 2))):
        b[m, i, j] = b[m, j, i] = half
    b[2] = torch.diag(like.new_tensor([-0.5, -0.5, 1.0]))
    b[4] = torch.diag(like.new_tensor([half, -half, 0.0]))
    return b


def apply_blocks(x: Tensor, matrix: Tensor, views: Views) -> Tensor:
    """Multiply groups of channels, as row vectors, by the matrix of their token's camera.

    Args:
        x: (B, H, N, m·b).
        matrix: (B or 1, V, b, b).
    """
    size = matrix.shape[-1]
    if views.count is not None:
        rows = x.unflatten(2, (matrix.shape[1], views.count)).unflatten(-1, (-1, size))
        return (rows.flatten(3, 4) @ matrix[:, None]).reshape(x.shape)
    return (x.unflatten(-1, (-1, size)) @ of_tokens(matrix, views)[:, None]).flatten(-2)


def of_tokens(matrix: Tensor, views: Views) -> Tensor:
    """(B or 1, V, ...) as (B or 1, N, ...) by the camera of each token."""
    batch = max(matrix.shape[0], views.view.shape[0])
    index = views.view.expand(batch, -1)
    index = index.reshape(*index.shape, *(1,) * (matrix.ndim - 2)).expand(-1, -1, *matrix.shape[2:])
    return matrix.expand(batch, *matrix.shape[1:]).gather(1, index)
