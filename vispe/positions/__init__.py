"""Where the tokens are. Knows grids and sequences; never channels, heads or parameters."""

from .camera import CameraPositions, camera_grid, with_cameras
from .crop_condition import NO_CROP, Crop, draw_crop, resize_and_crop
from .grid import Positions, Resize, Units, custom_positions, full_grid, lattice, masked_grid, patch_grid, resize_option
from .image import ImagePositions, with_image
from .noise import NoisyPositions, with_noise
from .points import KeypointPositions, with_keypoints
from .random import RandomPositions, step_generator
from .rays import canonical_poses, image_rays, look_at, project, token_rays
from .time_shift import shift_ddpm, shift_factor, shift_flow, shift_flow_to_data
from .video import video_grid

__all__ = [
    "CameraPositions",
    "Crop",
    "ImagePositions",
    "KeypointPositions",
    "NO_CROP",
    "NoisyPositions",
    "Positions",
    "RandomPositions",
    "Resize",
    "Units",
    "camera_grid",
    "canonical_poses",
    "custom_positions",
    "draw_crop",
    "full_grid",
    "image_rays",
    "lattice",
    "look_at",
    "masked_grid",
    "patch_grid",
    "project",
    "resize_and_crop",
    "resize_option",
    "shift_ddpm",
    "shift_factor",
    "shift_flow",
    "shift_flow_to_data",
    "step_generator",
    "token_rays",
    "video_grid",
    "with_cameras",
    "with_image",
    "with_keypoints",
    "with_noise",
]
