"""Rays against spheres, yaw-turned boxes and a ground plane: pictures with exact depth, many scenes at once.

Additions, products, quotients and square roots of single numbers only, which every processor rounds alike: a picture does not
depend on how many scenes are drawn together. World z is up, the ground is z = 0; cameras are those of `positions.camera`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..positions.rays import camera_centre, pixel_centres, unproject

Vector = tuple[Tensor, Tensor, Tensor]  # x, y, z apart: a sum over an axis of 3 is slow and may round as it likes
LIGHT = (0.40561610, 0.30421208, 0.86193422)  # towards the light, (0.4, 0.3, 0.85) made a unit vector
NEAR = 1e-3


@dataclass(frozen=True)
class Solids:
    """What stands in S scenes.

    Attributes:
        spheres: (S, K, 4) centre and radius. sphere_colours: (S, K, 3).
        boxes: (S, M, 8): centre, size along the box's own axes, cos and sin of its yaw (counter-clockwise from above).
        box_colours: (S, M, 3).
        ground_radius: the ground ends at this distance from the origin.

    A radius or size of 0 is a solid that is not there.
    """

    spheres: Tensor
    sphere_colours: Tensor
    boxes: Tensor
    box_colours: Tensor
    ground_radius: float = float("inf")


@dataclass
class Nearest:
    """The nearest hit so far of every ray, all (S, V, H, W): distance, number of the solid (-1 for none), colour."""

    distance: Tensor
    number: Tensor
    colour: list[Tensor]

    def put(self, hit: Tensor, distance: Tensor, number: int, colour: list[Tensor]) -> None:
        nearer = hit & (distance < self.distance)
        self.distance = torch.where(nearer, distance, self.distance)
        self.number.masked_fill_(nearer, number)
        self.colour = [torch.where(nearer, new, old) for new, old in zip(colour, self.colour)]


def render(
    solids: Solids, world_to_camera: Tensor, intrinsics: Tensor, image_size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures through the pixel centres of V cameras in each of S scenes.

    Args:
        world_to_camera: (S, V, 4, 4). intrinsics: (S, V, 3, 3), in pixels of `image_size` = (height, width).

    Returns:
        Colours (S, V, 3, H, W) in [0, 1]; depth z (S, V, H, W), 0 where a ray ends in the sky; and the number of the solid seen
        (S, V, H, W) int64: spheres first, then boxes, -1 for ground and sky.
    """
    pixels = pixel_centres(*image_size, device=intrinsics.device).flatten(0, 1)
    p = tuple(t.unflatten(-1, image_size) for t in unproject(pixels, intrinsics).unbind(-1))  # (S, V, H, W)
    length = _dot(p, p).sqrt()
    r = world_to_camera[..., :3, :3]
    d = tuple(sum(r[..., i, j, None, None] * p[i] for i in range(3)) / length for j in range(3))  # Rᵀp/|p|
    o = tuple(t[..., None, None] for t in camera_centre(world_to_camera).unbind(-1))  # (S, V, 1, 1)
    found = _background(o, d, solids.ground_radius)
    for k in range(solids.spheres.shape[1]):
        _sphere(found, o, d, _column(solids.spheres, k), _column(solids.sphere_colours, k), k)
    for m in range(solids.boxes.shape[1]):
        number = solids.spheres.shape[1] + m
        _box(found, o, d, _column(solids.boxes, m), _column(solids.box_colours, m), number)
    far = found.distance.isinf()
    depth = torch.where(far, torch.zeros_like(length), found.distance / length)  # z = 1 at distance |p|
    return torch.stack(found.colour, dim=2).clamp(0, 1), depth, found.number


def _background(o: Vector, d: Vector, radius: float) -> Nearest:
    """Sky, and the ground: a checker of 1 x 1 in two greys."""
    infinite = torch.full_like(d[2], float("inf"))
    sky = [0.55 + 0.2 * d[2], 0.65 + 0.2 * d[2], torch.full_like(d[2], 0.85)]
    found = Nearest(infinite, torch.full(infinite.shape, -1, device=infinite.device), sky)
    down = d[2] < -1e-4
    t = -o[2] / torch.where(down, d[2], -1.0)
    x, y = o[0] + t * d[0], o[1] + t * d[1]
    odd = (x.floor() + y.floor()).remainder(2) != 0
    grey = torch.where(odd, 0.6, 0.45)
    found.put(down & (t > NEAR) & (x * x + y * y < radius * radius), t, -1, [grey, grey, grey])
    return found


def _sphere(found: Nearest, o: Vector, d: Vector, sphere: list[Tensor], colour: list[Tensor], number: int) -> None:
    *centre, radius = sphere
    oc = tuple(a - b for a, b in zip(o, centre))
    b = _dot(oc, d)
    disc = b * b - (_dot(oc, oc) - radius * radius)
    t = -b - disc.clamp(min=0).sqrt()
    hit = (disc > 0) & (t > NEAR) & (radius > 0)
    normal = tuple((a + t * s) / radius.clamp(min=1e-6) for a, s in zip(oc, d))
    light = 0.35 + 0.65 * sum(n * s for n, s in zip(normal, LIGHT)).clamp(min=0)
    found.put(hit, t, number, [c * light for c in colour])


def _box(found: Nearest, o: Vector, d: Vector, box: list[Tensor], colour: list[Tensor], number: int) -> None:
    """Slabs in the box's own axes; faces across x, y and z are shaded by 0.75, 0.55 and 1."""
    centre, size, (cos, sin) = box[:3], box[3:6], box[6:]
    ox, oy, oz = (a - b for a, b in zip(o, centre))
    local_o = (cos * ox + sin * oy, cos * oy - sin * ox, oz)
    local_d = (cos * d[0] + sin * d[1], cos * d[1] - sin * d[0], d[2])
    near, far, shade = torch.full_like(d[2], -float("inf")), torch.full_like(d[2], float("inf")), torch.ones_like(d[2])
    for start, step, side, dark in zip(local_o, local_d, size, (0.75, 0.55, 1.0)):
        step = torch.where(step.abs() < 1e-9, 1e-9, step)
        t1, t2 = (-side / 2 - start) / step, (side / 2 - start) / step
        enter = torch.minimum(t1, t2)
        shade = torch.where(enter > near, dark, shade)
        near, far = torch.maximum(near, enter), torch.minimum(far, torch.maximum(t1, t2))
    there = (size[0] > 0) & (size[1] > 0) & (size[2] > 0)
    found.put((near < far) & (near > 0.1) & there, near, number, [c * shade for c in colour])


def _dot(a: Vector, b: Vector) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _column(table: Tensor, k: int) -> list[Tensor]:
    """The numbers of solid k, each (S, 1, 1, 1)."""
    return list(table[:, k, :, None, None, None].unbind(1))
