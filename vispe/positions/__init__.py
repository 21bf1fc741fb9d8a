"""Where the tokens are. Knows grids and sequences; never channels, heads or parameters."""

from .camera import CameraPositions, camera_grid, with_cameras
from .grid import Positions, Resize, Units, custom_positions, full_grid, lattice, masked_grid, patch_grid, resize_option
from .image import ImagePositions, with_image
from .points import KeypointPositions, with_keypoints
from .rays import canonical_poses, image_rays, look_at, project, token_rays
from .video import video_grid

__all__ = [
    "CameraPositions",
    "ImagePositions",
    "KeypointPositions",
    "Positions",
    "Resize",
    "Units",
    "camera_grid",
    "canonical_poses",
    "custom_positions",
    "full_grid",
    "image_rays",
    "lattice",
    "look_at",
    "masked_grid",
    "patch_grid",
    "project",
    "resize_option",
    "token_rays",
    "video_grid",
    "with_cameras",
    "with_image",
    "with_keypoints",
]
