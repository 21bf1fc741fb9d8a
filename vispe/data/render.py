"""Glyph-47 scenes: drawn from (seed, split, index), then rendered at any size.

A scene is stated in *frames*: the frame is the unit square, y down, x right, and ``size`` px an image of the
frame has on its shorter side. Nothing drawn depends on the size, so one scene can be looked at with 32, 48 or
96 px, or through a wider window. Rendering samples the scene on a grid ``oversampling(size)`` times finer (at
least 128 points a frame) and averages blocks of it: an area filter. No step sums in an order that a library
may choose, and the result is rounded to 8 bits, so that images come out alike bit for bit in every process.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from .atlas import MARGIN, Atlas, Glyph

Variant = Literal["plain", "jitter", "photo", "neighbours"]
FINE = 128  # sampling points a frame, at least
NOISE = 64  # side of the noise tile; a frame shows 32 x 32 blocks of it
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601
# One uniform number in [0, 1) each. Append only: the position of a name decides its value.
SLOTS = (
    "family face char size rotation shear aspect y x level ink texture texture_y texture_x texture_scale "
    "flip zoom canvas_y canvas_x left_char right_char left_gap right_gap backdrop gain colour0_r "
    "colour0_g colour0_b colour1_r colour1_g colour1_b slope_y slope_x ink_r ink_g ink_b ink_luma"
).split()


class Draw(NamedTuple):
    """The random numbers of one scene."""

    u: dict[str, float]  # a value in [0, 1) for each name of SLOTS
    noise: np.ndarray  # (NOISE, NOISE) float32 in [-1, 1)


class Placed(NamedTuple):
    """A glyph in the scene: ``glyph px from the bitmap's centre = inverse @ ((x, y) - centre)``."""

    glyph: Glyph
    inverse: tuple[float, float, float, float]  # px a frame
    centre: tuple[float, float]  # (y, x), frames


@dataclass(frozen=True)
class View:
    """Which part of the scene an image shows.

    ``height, width`` px are shown at ``scale`` px a frame; the frame's corner lies at pixel ``(top, left)``.
    ``zoom`` > 1 magnifies about the frame's centre; ``shift`` (dy, dx), in frames, then moves the picture
    down and right.
    """

    height: int
    width: int
    scale: int
    top: float
    left: float
    zoom: float = 1.0
    shift: tuple[float, float] = (0.0, 0.0)

    def coordinates(self, k: int) -> tuple[float, tuple[float, float]]:
        """``(step, (y0, x0))``: row i of the k times finer grid lies at scene row ``y0 + step * (i + 0.5)``."""
        corner = ((-self.top / self.scale, self.shift[0]), (-self.left / self.scale, self.shift[1]))
        y0, x0 = (0.5 + (c - s - 0.5) / self.zoom for c, s in corner)
        return 1 / (k * self.scale * self.zoom), (y0, x0)


def oversampling(size: int) -> int:
    """Fine grid points a pixel and axis: a power of two, so that size and 2 size share their grid.

    ``size`` is the image's px a frame.
    """
    k = 1
    while k * size < FINE:
        k *= 2
    return k


def draw(*key: int) -> Draw:
    """Random numbers from a key of non-negative integers.

    Uses the raw 64-bit words of PCG64, a stream that numpy keeps from version to version.
    """
    words = np.random.PCG64(np.random.SeedSequence(key)).random_raw(len(SLOTS) + NOISE * NOISE // 8)
    uniform = (words[: len(SLOTS)] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    noise = words[len(SLOTS) :].astype("<u8").view(np.uint8).reshape(NOISE, NOISE)
    return Draw(dict(zip(SLOTS, uniform.tolist(), strict=True)), noise.astype(np.float32) / 128 - 1)


def log_uniform(u: float, low: float, high: float) -> float:
    """Rounded, so that the last bits of the platform's exp and log do not matter."""
    return round(low * math.exp(u * math.log(high / low)), 9)


def place(d: Draw, glyph: Glyph, variant: Variant) -> Placed:
    """Size, rotation, shear, aspect and place of the labelled glyph."""
    low, high = {"jitter": (0.45, 0.9), "neighbours": (0.5, 0.75)}.get(variant, (0.55, 0.92))
    scale = (low + (high - low) * d.u["size"]) / max(glyph.height, glyph.width)  # frames a px
    angle, shear = 0.4 * d.u["rotation"] - 0.2, 0.4 * d.u["shear"] - 0.2
    stretch = log_uniform(d.u["aspect"], math.exp(-0.075), math.exp(0.075))  # (width / height) ** 0.5
    cos, sin = round(math.cos(angle), 9), round(math.sin(angle), 9)
    sx, sy = scale * stretch, scale / stretch
    # rotation @ [[1, shear], [0, 1]] @ diag(sx, sy) on (x, y)
    a, b, c, e = cos * sx, (cos * shear - sin) * sy, sin * sx, (sin * shear + cos) * sy
    det = a * e - b * c
    if variant == "jitter":  # anywhere, as long as the glyph's turned box stays inside the frame
        half_y = min(0.5, (abs(c) * glyph.width + abs(e) * glyph.height) / 2)
        half_x = min(0.5, (abs(a) * glyph.width + abs(b) * glyph.height) / 2)
        centre = (half_y + (1 - 2 * half_y) * d.u["y"], half_x + (1 - 2 * half_x) * d.u["x"])
    else:
        centre = (0.45 + 0.1 * d.u["y"], 0.45 + 0.1 * d.u["x"])
    return Placed(glyph, (e / det, -b / det, -c / det, a / det), centre)


def beside(d: Draw, main: Placed, glyph: Glyph, side: Literal["left", "right"]) -> Placed:
    """A neighbour on the line of text of ``main``, under the same affine map."""
    gap = (0.06 + 0.1 * d.u[f"{side}_gap"]) * max(main.glyph.height, main.glyph.width)
    step = (main.glyph.width + glyph.width) / 2 + gap
    step = -step if side == "left" else step
    ia, ib, ic, ie = main.inverse
    det = ia * ie - ib * ic
    dx, dy = ie / det * step, -ic / det * step  # the forward map of (step, 0)
    return Placed(glyph, main.inverse, (main.centre[0] + dy, main.centre[1] + dx))


def ink_mask(atlas: Atlas, glyphs: list[Placed], view: View, k: int) -> np.ndarray:
    """Ink on the fine grid, float32 (k * height, k * width) in 0..1."""
    step, (y0, x0) = view.coordinates(k)
    size, out = (k * view.width, k * view.height), None
    for glyph, (a, b, c, e), (cy, cx) in glyphs:
        x, y = x0 - cx, y0 - cy
        gx, gy = glyph.width / 2 + MARGIN, glyph.height / 2 + MARGIN
        to_bitmap = (a * step, b * step, a * x + b * y + gx, c * step, e * step, c * x + e * y + gy)
        bitmap = atlas.bitmap(glyph)
        image = bitmap.transform(size, Image.Transform.AFFINE, to_bitmap, Image.Resampling.BICUBIC)
        out = np.asarray(image) if out is None else np.maximum(out, np.asarray(image))
    return out.astype(np.float32) / 255


def photo(d: Draw, texture: np.ndarray, view: View, k: int) -> np.ndarray:
    """A crop of a background photograph on the fine grid; mirrored where the view leaves the photograph.

    ``texture`` (n, n, ...) float32; the result has (k * height, k * width, ...). A frame covers 96 to 144 px
    of it.
    """
    flip = int(8 * d.u["flip"])
    texture = texture.swapaxes(0, 1) if flip & 4 else texture
    texture = texture[:: -1 if flip & 1 else 1, :: -1 if flip & 2 else 1]
    n, per_frame = len(texture), 96 + 48 * d.u["texture_scale"]
    step, start = view.coordinates(k)
    for axis, (count, origin) in enumerate(zip((k * view.height, k * view.width), start, strict=True)):
        offset = (n - per_frame) * d.u[("texture_y", "texture_x")[axis]]
        at = offset + per_frame * (origin + step * (np.arange(count) + 0.5)) - 0.5
        low = np.floor(at)
        fraction = (at - low).astype(np.float32).reshape((-1,) + (1,) * (texture.ndim - axis - 1))
        tiled = ((low.astype(int) + s) % (2 * n) for s in (0, 1))
        first, second = (np.minimum(m, 2 * n - 1 - m) for m in tiled)
        texture = texture.take(first, axis) * (1 - fraction) + texture.take(second, axis) * fraction
    return texture


def block_noise(d: Draw, view: View, k: int) -> np.ndarray:
    """Noise in [-1, 1) on the fine grid, constant on 32 x 32 blocks a frame; repeats every second frame."""
    step, start = view.coordinates(k)
    rows, columns = (
        np.floor(32 * (o + step * (np.arange(k * n) + 0.5))).astype(int) % NOISE
        for o, n in zip(start, (view.height, view.width), strict=True)
    )
    return d.noise.take(rows, 0).take(columns, 1)


def render_gray(atlas: Atlas, d: Draw, glyphs: list[Placed], view: View) -> np.ndarray:
    """Bright glyph on a dark background; uint8 (height, width)."""
    k = oversampling(view.scale)
    ink = ink_mask(atlas, glyphs, view, k)
    texture = atlas.texture(int(d.u["texture"] * atlas.num_textures))[..., 3]
    paper = photo(d, texture, view, k)
    paper -= np.float32(128)
    paper *= np.float32(0.12)
    paper += np.float32(70 * d.u["level"])
    image = np.maximum(paper, 0, out=paper)
    image += (np.float32(150 + 105 * d.u["ink"]) - image) * ink
    image += 8 * block_noise(d, view, k)
    return to_bytes(image, k)


def render_colour(atlas: Atlas, d: Draw, glyphs: list[Placed], view: View) -> np.ndarray:
    """A glyph of any colour on a photograph or a gradient, lighter or darker; uint8 (height, width, 3)."""
    k = oversampling(view.scale)
    ink = ink_mask(atlas, glyphs, view, k)[..., None]
    if d.u["backdrop"] < 0.5:
        texture = atlas.texture(int(d.u["texture"] * atlas.num_textures))
        mean, gain = np.float32(round(float(texture[..., 3].mean()))), np.float32(0.5 + 0.5 * d.u["gain"])
        image = (photo(d, texture[..., :3], view, k) - mean) * gain + mean
    else:
        step, (y0, x0) = view.coordinates(k)
        y = (y0 - 0.5 + step * (np.arange(k * view.height) + 0.5)) * (2 * d.u["slope_y"] - 1)
        x = (x0 - 0.5 + step * (np.arange(k * view.width) + 0.5)) * (2 * d.u["slope_x"] - 1)
        t = np.clip(0.5 + y[:, None] + x, 0, 1).astype(np.float32)[..., None]
        first, second = (colour(d, name) for name in ("colour0", "colour1"))
        image = first + (second - first) * t
        mean = luma((first + second) / 2)
    image += (ink_colour(d, float(mean)) - image) * ink
    image += 8 * block_noise(d, view, k)[..., None]
    return to_bytes(image, k)


def colour(d: Draw, name: str) -> np.ndarray:
    return np.array([255 * d.u[f"{name}_{c}"] for c in "rgb"], np.float32)


def luma(rgb: np.ndarray) -> np.ndarray:
    """Weighted sum over the last axis, channel by channel (a fixed order)."""
    return rgb[..., 0] * LUMA[0] + rgb[..., 1] * LUMA[1] + rgb[..., 2] * LUMA[2]


def ink_colour(d: Draw, background: float, contrast: float = 80.0) -> np.ndarray:
    """A random colour whose luma is at least ``contrast`` away from the background's mean luma."""
    darker, lighter = max(0.0, background - contrast), max(0.0, 255 - background - contrast)
    at = d.u["ink_luma"] * (darker + lighter)
    target = at if at < darker else background + contrast + at - darker
    free = colour(d, "ink")
    # the grey of that luma plus as much of the free colour's chroma as stays inside 0..255
    chroma = free - luma(free)
    room = min((255 - target if c > 0 else target) / max(abs(c), 1e-6) for c in map(float, chroma))
    return (target + chroma * np.float32(min(1.0, room))).astype(np.float32)


def to_bytes(fine: np.ndarray, k: int) -> np.ndarray:
    """Mean of blocks of k x k, added up in a fixed order; clipped before, rounded after; float32 to uint8."""
    np.clip(fine, 0, 255, out=fine)
    rows = sum((fine[i::k] for i in range(1, k)), fine[0::k])
    image = sum((rows[:, i::k] for i in range(1, k)), rows[:, 0::k])
    return np.floor(image * np.float32(1 / (k * k)) + np.float32(0.5)).astype(np.uint8)
