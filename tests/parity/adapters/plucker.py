"""Ray maps of SPAD, CameraCtrl and LVSM, GBT's ray distance and SRT's sines, SPAD's cameras."""

from __future__ import annotations

import torch

from vispe.encodings.plucker import ray_channels
from vispe.encodings.ray_distance import line_distance
from vispe.encodings.ray_fourier import gbt_features, srt_features
from vispe.positions import image_rays
from vispe.positions.camera_formats import (
    from_camera_to_world,
    from_field_of_view,
    make_intrinsics,
    to_opengl,
)
from vispe.positions.rays import orbit, plucker

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    kinds = {
        "spad": spad, "spad_spherical": spherical, "cameractrl": cameractrl, "lvsm": lvsm, "gbt": gbt,
        "srt_ray_encoding": srt,
    }  # fmt: skip
    return kinds[case.config["kind"]](case)


def spad(case: Case) -> Results:
    c, i = case.config, case.inputs
    rays = image_rays(i["w2c"], i["K"], (c["height"], c["width"]))
    return {"out.plucker": ray_channels(*rays, "spad").movedim(-1, -3)}


def spherical(case: Case) -> Results:
    c, i = case.config, case.inputs
    pose = orbit(i["azimuth"], i["polar_angle_from_z"], c["radius"])
    size = (c["size"], c["size"])
    k = from_field_of_view(torch.tensor(c["fov"], dtype=torch.float64), size).float().expand(len(pose), 3, 3)
    rays = image_rays(pose, k, size)
    return {
        "out.K": k, "out.blender_c2w": to_opengl(pose), "out.opencv_R": pose[:, :3, :3], "out.opencv_T": pose[:, :3, 3],
        "out.plucker": ray_channels(*rays, "spad").movedim(-1, -3),
    }  # fmt: skip


def cameractrl(case: Case) -> Results:
    c, i = case.config, case.inputs
    k = make_intrinsics(*i["fx_fy_cx_cy"].unbind(-1))
    rays = image_rays(from_camera_to_world(i["c2w"]), k, (c["height"], c["width"]))
    return {"out.plucker": ray_channels(*rays, "cameractrl")}


def lvsm(case: Case) -> Results:
    c, i = case.config, case.inputs
    down, pose = c["downscale"], from_camera_to_world(i["c2w"])
    k = i["K"] / i["K"].new_tensor([down, down, 1])[:, None]
    size = (c["height"] // down, c["width"] // down)
    rays, own = image_rays(pose, k, size), image_rays(torch.eye(4).expand_as(pose), k, size)
    return {
        "out.plucker": ray_channels(*rays, "lvsm"), "out.raymap": ray_channels(*rays, "raymap"),
        "out.camray": ray_channels(*own, "camray"),
    }  # fmt: skip


def gbt(case: Case) -> Results:
    c = case.config
    lines = {}
    for name in "ab":
        origins, directions = case.inputs[f"rays_{name}_origin_direction"].chunk(2, dim=-1)
        lines[name] = plucker(origins, directions / directions.norm(dim=-1, keepdim=True))
    features = gbt_features(lines["a"], num_freqs=c["num_freqs"], start=c["start_freq"])
    distance = line_distance(lines["a"], lines["b"], c["eps"])
    return {f"out.plucker_{n}": line for n, line in lines.items()} | {"out.distance": distance, "out.fourier_a": features}


def srt(case: Case) -> Results:
    c, i = case.config, case.inputs
    return {"out.encoding": srt_features(
        i["position"], i["direction"], position_octaves=c["pos_octaves"], position_start=c["pos_start_octave"],
        ray_octaves=c["ray_octaves"], ray_start=c.get("ray_start_octave", 0),
    )}  # fmt: skip
