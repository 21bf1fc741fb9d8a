"""Where the object is that a cell shows: a centre in the rig's frame for every token of every view, with any encoding.

    model = DenseHead("petr", {"depth_num": 16})
    centres = model(images, world_to_camera, intrinsics)     # (B, V, h, w, 3) metres

The smallest model that has to know where cameras look: without positions of rays or points in the rig's frame it can only
guess. It learns in a minute where detectors with queries take hours, which makes it the judge of 3-D embeddings here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .detector_parts import RigEncoder


class DenseHead(RigEncoder):
    """A centre for every token.

    Args:
        unit: metres that an output of 1 stands for.
        encoding, encoding_kwargs, views, image_size, stride, stem_width: see RigEncoder.
        embed_dim, depth, num_heads, mlp_ratio: see RigEncoder.
    """

    def __init__(
        self,
        encoding: str = "petr",
        encoding_kwargs: dict[str, Any] | None = None,
        *,
        unit: float = 5.0,
        views: int | None = 4,
        image_size: int | tuple[int, int] = (24, 48),
        stride: int = 4,
        stem_width: int = 24,
        embed_dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        in_channels: int = 3,
    ) -> None:
        super().__init__(
            encoding, encoding_kwargs, views=views, image_size=image_size, stride=stride, stem_width=stem_width,
            embed_dim=embed_dim, depth=depth, num_heads=num_heads, mlp_ratio=mlp_ratio, in_channels=in_channels,
        )  # fmt: skip
        self.unit = unit
        self.norm, self.head = nn.LayerNorm(embed_dim), nn.Linear(embed_dim, 3)

    def forward(
        self, images: Tensor, world_to_camera: Tensor, intrinsics: Tensor | None = None, *, depth: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Centres (B, V, h, w, 3) in metres.

        Args:
            images: (B, V, C, H, W) in [0, 1]. world_to_camera: (B, V, 4, 4) from the rig. intrinsics: (B, V, 3, 3) pixels.
            depth: (B, V, h, w) metres at every cell, for encodings that ask for it; 0 where it is not known.
            valid: (B, V) bool, views that are there. Missing ones need a pose and a lens too, of any camera.
        """
        _, x, _ = self.encode(images, world_to_camera, intrinsics, depth, valid)
        grid = self._grid(tuple(images.shape[-2:]))
        return (self.head(self.norm(x)) * self.unit).unflatten(1, (images.shape[1], *grid))
