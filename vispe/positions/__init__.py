"""Where the tokens are. Knows grids and sequences; never channels, heads or parameters."""

from .grid import Positions, Resize, Units, custom_positions, full_grid, lattice, masked_grid, patch_grid, resize_option
from .image import ImagePositions, with_image
from .points import KeypointPositions, with_keypoints
from .video import video_grid

__all__ = [
    "ImagePositions",
    "KeypointPositions",
    "Positions",
    "Resize",
    "Units",
    "custom_positions",
    "full_grid",
    "lattice",
    "masked_grid",
    "patch_grid",
    "resize_option",
    "video_grid",
    "with_image",
    "with_keypoints",
]
