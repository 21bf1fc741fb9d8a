"""Segments of the rows of a batch of transformers, read once from token ids and grids; what follows goes by segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..positions.segments import Image, Segment, Text, Tiles, Video

TEXT, IMAGE, VIDEO = 0, 1, 2
NAMES = {IMAGE: "image", VIDEO: "video"}


@dataclass(frozen=True)
class Reader:
    """How a model writes pictures into its token ids.

    Attributes:
        image_token, video_token: their placeholders.
        style: "grids" (Qwen2-VL, Qwen2.5-VL), "frames" (Qwen3-VL: every frame of a video is a block of its own), "tiles"
            (InternVL: a block is an image of one or more tiles) or "images" (LLaVA: images of one size).
        merge: side of the square of patches that is one token, of models with grids.
        grid: (height, width) in tokens of a tile or an image, of models without grids; None where the model does not say.
    """

    image_token: int | None
    video_token: int | None
    style: Literal["grids", "frames", "tiles", "images"]
    merge: int = 1
    grid: tuple[int, int] | None = None

    def rows(self, call: dict[str, Any], *, valid: Tensor, by_count: bool) -> list[list[Segment]]:
        """Segments of every row's valid tokens.

        Args:
            call: arguments of the model: input_ids (B, S) or mm_token_type_ids (B, S) (which count first, and tell an image
                from a token that was generated and only looks like one), image_grid_thw (n, 3), video_grid_thw (n, 3) in
                patches, second_per_grid_ts (n,).
            valid: (B, S) bool, false for padding.
            by_count: whether the scheme counts visual tokens and asks nothing about their grid.
        """
        kinds = self.kinds(call, valid)
        supply = {IMAGE: self._images(call), VIDEO: self._videos(call)}
        used = {IMAGE: 0, VIDEO: 0}
        out = []
        for row, (types, keep) in enumerate(zip(kinds, valid)):
            segments: list[Segment] = []
            first = 0
            runs = (part.tolist() for part in torch.unique_consecutive(types[keep], return_counts=True))
            for kind, count in zip(*runs):
                if kind == TEXT:
                    segments.append(Text(count))
                elif self.style in ("tiles", "images"):
                    segments += self._squares(count, row, sum(not isinstance(s, Text) for s in segments), by_count)
                else:
                    found = cut(count, supply[kind][used[kind] :], NAMES[kind], row, used[kind], first=first)
                    segments += found
                    used[kind] += len(found)
                first += count
            out.append(segments)
        for kind, number in used.items():
            if number != len(supply[kind]):
                raise ValueError(
                    f"positions: {len(supply[kind])} {NAMES[kind]} grids (frames count one by one where the model splits them) "
                    f"were given, the rows hold {number}; with a cache pass those of the new tokens alone."
                )
        return out

    def kinds(self, call: dict[str, Any], valid: Tensor) -> Tensor:
        """What every token is, (B, S) int64 on the CPU."""
        types, ids = call.get("mm_token_type_ids"), call.get("input_ids")
        shape = tuple(valid.shape)
        if types is not None:
            types = types[:, -shape[1] :]  # `generate` passes those of the whole sequence
            if tuple(types.shape) != shape:
                raise ValueError(f"positions: mm_token_type_ids must be {shape} as the tokens, got {tuple(types.shape)}.")
            return types.long().cpu()
        if ids is None:
            if call.get("image_grid_thw") is not None or call.get("video_grid_thw") is not None:
                raise ValueError(
                    "positions: inputs_embeds do not tell where images are; pass mm_token_type_ids, input_ids or position_ids."
                )
            return torch.full(shape, TEXT)
        found = torch.full_like(ids, TEXT)
        for token, kind in ((self.image_token, IMAGE), (self.video_token, VIDEO)):
            if token is not None:
                found[ids == token] = kind
        return found.long().cpu()

    def _grid(self, kind: str, number: int, thw: list[int]) -> tuple[int, int, int]:
        t, h, w = thw
        if h % self.merge or w % self.merge or min(t, h, w) < 1:
            raise ValueError(
                f"positions: {kind} {number} has a grid of {t} x {h} x {w} patches, whose rows and columns must be multiples "
                f"of {self.merge}, which make one token."
            )
        return t, h // self.merge, w // self.merge

    def _images(self, call: dict[str, Any]) -> list[Segment]:
        grids = call.get("image_grid_thw")
        found = [self._grid("image", i, g) for i, g in enumerate([] if grids is None else grids.tolist())]
        return [Image(h, w) if t == 1 else Video(t, h, w) for t, h, w in found]

    def _videos(self, call: dict[str, Any]) -> list[Segment]:
        grids, seconds = call.get("video_grid_thw"), call.get("second_per_grid_ts")
        found = [self._grid("video", i, g) for i, g in enumerate([] if grids is None else grids.tolist())]
        if self.style == "frames":
            return [Video(1, h, w, seconds=0.0) for t, h, w in found for _ in range(t)]
        if seconds is not None:
            seconds = [float(s) for s in seconds]
            if len(seconds) != len(found):
                raise ValueError(f"positions: {len(found)} videos need as many second_per_grid_ts, got {len(seconds)}.")
        return [Video(*grid, seconds=None if seconds is None else seconds[i]) for i, grid in enumerate(found)]

    def _squares(self, count: int, row: int, number: int, by_count: bool) -> list[Segment]:
        """A run of image tokens of a model without grids."""
        if self.grid is None or count % (self.grid[0] * self.grid[1]):
            if by_count:
                return [Image(1, count)]
            need = "unknown" if self.grid is None else f"{self.grid[0]} x {self.grid[1]}"
            raise ValueError(
                f"positions: row {row}, image {number} has {count} tokens, the grid of an image is {need}; pass image_grid= to "
                f"swap, or position_ids of your own (`place`)."
            )
        parts = count // (self.grid[0] * self.grid[1])
        if parts == 1 or self.style == "images":
            return [Image(*self.grid)] * parts
        return [Tiles(parts, 1, *self.grid)]


def cut(count: int, left: Sequence[Segment], kind: str, row: int, number: int, *, first: int) -> list[Segment]:
    """A run of visual tokens in the grids that it holds; images may touch."""
    found, reached = [], 0
    for segment in left:
        if reached >= count:
            break
        found.append(segment)
        reached += segment.length
    if reached != count:
        last = number + len(found) - 1
        which = f"{kind} {number}" if last <= number else f"{kind}s {number} to {last}"
        missing = f"; {kind} {number + len(found)} has no grid" if reached < count else ""
        raise ValueError(
            f"positions: row {row} has {count} {kind} tokens from its token {first} on but the grids need {reached} "
            f"({which}){missing}. Pass the grid of every {kind} in order, and do not cut prompts inside one."
        )
    return found
