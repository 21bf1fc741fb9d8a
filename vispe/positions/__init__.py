"""Where the tokens are. Knows grids and sequences; never channels, heads or parameters."""

from .camera import CameraPositions, camera_grid, with_cameras
from .grid import Positions, Resize, Units, custom_positions, full_grid, lattice, masked_grid, patch_grid, resize_option
from .image import ImagePositions, with_image
from .points import KeypointPositions, with_keypoints
from .video import video_grid

__all__ = [
    "CameraPositions",
    "ImagePositions",
    "KeypointPositions",
    "Positions",
    "Resize",
    "Units",
    "camera_grid",
    "custom_positions",
    "full_grid",
    "lattice",
    "masked_grid",
    "patch_grid",
    "resize_option",
    "video_grid",
    "with_cameras",
    "with_image",
    "with_keypoints",
]
