"""3DPPE in camera view (V3): points in the frame of each image, for keys and, in every view, for queries.

    key: MLP(u / width, v / height, d / far);   query in view c: MLP(projection of its point into c), −1 where it is not seen

Source: drilistbox/3DPPE@a49bdc4 (PETRDepthHeadV3). Its networks have a batch norm, whose running statistics are part of the
weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .frustum import EPS


def view_points(pixels: Tensor, depth: Tensor, image_size: tuple[int, int], far: float) -> Tensor:
    """(..., 3) fractions of width, height and range, of pixels (..., 2), u before v, and metric depth (...)."""
    height, width = image_size
    u, v, d = torch.broadcast_tensors(pixels[..., 0] / width, pixels[..., 1] / height, depth / far)
    return torch.stack((u, v, d), dim=-1)


def project_queries(
    points: Tensor, projection: Tensor, image_size: tuple[int, int], far: float
) -> tuple[Tensor, Tensor]:
    """Points in every view, (B, V, Q, 3), and whether they are on its image, (B, V, Q) bool.

    Args:
        points: (B, Q, 3) in the world.
        projection: (B, V, 4, 4) from the world to (u·d, v·d, d, 1).
    """
    p, x = projection.float()[:, :, None, :3], points.float()[:, None, :, None]  # (B, V, 1, 3, 4), (B, 1, Q, 1, 3)
    u, v, depth = ((p[..., :3] * x).sum(-1) + p[..., 3]).unbind(-1)  # (B, V, Q)
    held = depth.clamp(min=EPS)
    where = view_points(torch.stack((u / held, v / held), dim=-1), depth, image_size, far)
    inside = ((where[..., :2] > 0) & (where[..., :2] < 1)).all(-1) & (depth > EPS)
    return torch.where(inside[..., None], where, -1.0), inside


class ViewPointEncoder(nn.Sequential):
    """Linear over channels, batch norm, ReLU, Linear of points (..., 3): (..., C). Weights are those of 1x1 convolutions."""

    def __init__(self, dim: int) -> None:
        super().__init__(nn.Conv1d(3, dim, 1), nn.BatchNorm1d(dim), nn.ReLU(), nn.Conv1d(dim, dim, 1))

    def forward(self, points: Tensor) -> Tensor:
        flat = points.reshape(1, -1, 3).mT.to(self[0].weight.dtype)
        return super().forward(flat)[0].mT.reshape(*points.shape[:-1], -1)
