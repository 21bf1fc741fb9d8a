"""yashkant/spad: epipolar masks of one view in another."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe.encodings.epipolar_lines import spad_mask
from vispe.positions.camera_formats import from_field_of_view
from vispe.positions.rays import orbit

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, i = case.config, case.inputs
    assert c["kind"] == "spad_epipolar_soft", c["kind"]
    size = c["size"]
    pose = orbit(i["azimuth"], i["polar_angle_from_z"], c["radius"])
    k = from_field_of_view(torch.tensor(c["fov"], dtype=torch.float64), (size, size)).float()
    results = {}
    for a in range(len(pose)):
        for b in range(len(pose)):
            if a != b:
                for name in ("plain", "dilated"):
                    mask = spad_mask(pose[a], pose[b], k, size, dilated=name == "dilated")
                    results[f"out.mask_{a}_to_{b}_{name}"] = mask.to(torch.uint8)
    return results


def compare(key: str, actual: Tensor, expected: Tensor) -> None:
    """Ends of lines are cut to whole pixels: one rounding in float32 moves a line by a cell, so a few rows may differ."""
    different = (actual != expected).any(dim=1).float().mean().item()
    assert actual.shape == expected.shape and different <= 0.05, f"{key}: {different:.1%} of the lines differ"
