"""Where the tokens are. Knows grids and sequences; never channels, heads or parameters."""

from .grid import Positions, Resize, Units, custom_positions, full_grid, lattice, masked_grid, patch_grid, resize_option
from .points import KeypointPositions, with_keypoints
from .video import video_grid

__all__ = [
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
    "with_keypoints",
]
