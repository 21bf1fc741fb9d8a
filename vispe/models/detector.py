"""Multi-view 3-D detection as PETR: object queries look at the features of all cameras, which carry 3-D positions.

    model = Detector("petr", num_classes=4)
    found = model(images, world_to_camera, intrinsics)       # {"logits": (B, L, Q, 4), "boxes": (B, L, Q, 8)}

A decoder layer: queries attend to each other, then to the tokens of all views, keys with positions and values without, then
an MLP; each layer's class scores and boxes are trained. Queries start from learned anchors in the range, embedded by sines
(`ReferencePoints`). Liu et al., PETR, ECCV 2022, arXiv 2203.05625 (megvii-research/PETR@f7525f9, Apache-2.0); DETR, Carion et
al., ECCV 2020, arXiv 2005.12872. Any encoding of the table that positions of cameras suffice for: what it adds to the tokens
reaches the keys; what it does inside attention, the `depth` blocks of self-attention over all views ahead of the decoder
(none in PETR), whose output is then key and value both. `detector_loss` matches and trains it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from ..encodings.frustum import check_range, inverse_sigmoid
from ..encodings.petr import ReferencePoints
from .detector_parts import RigEncoder

BOX = 8  # centre, logarithms of the sides, sine and cosine of the yaw


class DecoderLayer(nn.Module):
    """Self-attention of queries, cross-attention, MLP; pre-norm. Embeddings of queries are added to queries and keys alone."""

    def __init__(self, dim: int, num_heads: int, *, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.own = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.cross = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor, place: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
        """x, place (B, Q, C); keys, values (B, N, C); hidden (B, N) bool, tokens not to look at."""
        y = self.norm1(x)
        x = x + self.own(y + place, y + place, y, need_weights=False)[0]
        y = self.norm2(x) + place
        x = x + self.cross(y, keys, values, key_padding_mask=hidden, need_weights=False)[0]
        return x + self.mlp(self.norm3(x))


class Detector(RigEncoder):
    """PETR's detector.

    Args:
        num_classes: of objects.
        num_queries: objects that can be found at most.
        decoder_depth: layers of the decoder.
        position_range: minima and maxima of x, y, z in metres that anchors and centres lie in.
        encoding, encoding_kwargs, views, image_size, stride, stem_width: see RigEncoder.
        embed_dim, depth, num_heads, mlp_ratio: see RigEncoder.
    """

    def __init__(
        self,
        encoding: str = "petr",
        encoding_kwargs: dict[str, Any] | None = None,
        *,
        num_classes: int = 4,
        num_queries: int = 64,
        decoder_depth: int = 3,
        position_range: tuple[float, ...] = (-12.0, -12.0, -3.0, 12.0, 12.0, 6.0),
        views: int | None = 4,
        image_size: int | tuple[int, int] = (24, 48),
        stride: int = 4,
        stem_width: int = 24,
        embed_dim: int = 64,
        depth: int = 0,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        in_channels: int = 3,
    ) -> None:
        super().__init__(
            encoding, encoding_kwargs, views=views, image_size=image_size, stride=stride, stem_width=stem_width,
            embed_dim=embed_dim, depth=depth, num_heads=num_heads, mlp_ratio=mlp_ratio, in_channels=in_channels,
        )  # fmt: skip
        if num_classes < 1 or num_queries < 1 or decoder_depth < 1:
            raise ValueError(
                f"Detector: num_classes, num_queries and decoder_depth must be at least 1, got {num_classes}, {num_queries} "
                f"and {decoder_depth}."
            )
        low_high = torch.tensor(check_range("Detector", position_range)).unflatten(0, (2, 3))
        self.register_buffer("range", low_high, persistent=False)
        self.queries = ReferencePoints(embed_dim, num_queries)
        self.decoder = nn.ModuleList(DecoderLayer(embed_dim, num_heads, mlp_ratio=mlp_ratio) for _ in range(decoder_depth))
        self.norm = nn.LayerNorm(embed_dim)
        self.classes = nn.Linear(embed_dim, num_classes)
        self.boxes = nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.ReLU(), nn.Linear(embed_dim, BOX))
        nn.init.constant_(self.classes.bias, -4.6)  # a prior of 0.01, as focal losses want

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"queries.reference_points.weight"}

    def forward(
        self, images: Tensor, world_to_camera: Tensor, intrinsics: Tensor | None = None, *, depth: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Class scores and boxes of every decoder layer; arguments as in DenseHead.

        Returns:
            "logits" (B, L, Q, classes) and "boxes" (B, L, Q, 8): centre in metres, log of the sides, sine, cosine of the yaw.
        """
        features, keys, mask = self.encode(images, world_to_camera, intrinsics, depth, valid)
        values, hidden = (keys if len(self.blocks) else features), None if mask is None else ~mask
        anchors, place = self.queries()
        place = place.to(keys.dtype).expand(images.shape[0], -1, -1)
        x, logits, boxes = torch.zeros_like(place), [], []
        for layer in self.decoder:
            x = self._run(layer, x, place, keys, values, hidden)
            y = self.norm(x)
            logits.append(self.classes(y))
            boxes.append(self.place_boxes(self.boxes(y), anchors))
        return {"logits": torch.stack(logits, dim=1), "boxes": torch.stack(boxes, dim=1)}

    def place_boxes(self, raw: Tensor, anchors: Tensor) -> Tensor:
        """Raw outputs (B, Q, 8) as boxes: centres count from the anchors (Q, 3), in logits of the range."""
        raw = raw.float()
        low, high = self.range
        centre = low + (high - low) * (raw[..., :3] + inverse_sigmoid(anchors.float())).sigmoid()
        return torch.cat((centre, raw[..., 3:6], F.normalize(raw[..., 6:], dim=-1, eps=1e-6)), dim=-1)


def decode(found: dict[str, Tensor], *, most: int = 16) -> dict[str, Tensor]:
    """The best (query, class) pairs of the last layer: scores (B, K), labels (B, K), boxes (B, K, 7) with sides and yaw."""
    scores = found["logits"][:, -1].float().sigmoid()
    best, index = scores.flatten(1).topk(min(most, scores[0].numel()), dim=1)
    raw = found["boxes"][:, -1].gather(1, (index // scores.shape[-1])[..., None].expand(-1, -1, BOX))
    yaw = torch.atan2(raw[..., 6:7], raw[..., 7:8])
    boxes = torch.cat((raw[..., :3], raw[..., 3:6].exp(), yaw), dim=-1)
    return {"scores": best, "labels": index % scores.shape[-1], "boxes": boxes}
