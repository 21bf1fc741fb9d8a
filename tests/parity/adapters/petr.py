"""PETR, PETRv2's gate, and StreamPETR: positions, networks, queries and their gradients."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vispe.encodings.frustum import (
    augmentation_matrix,
    cell_pixels,
    invert_projection,
    normalise_points,
    out_of_range,
    pad_mask,
    point_sine,
    ray_points,
    stride_pixels,
    view_counts,
    view_sine,
)
from vispe.encodings.petr import Petr, ReferencePoints
from vispe.encodings.streampetr import StreamMemory, StreamPetr, ego_motion, token_focals
from vispe.positions import lattice
from vispe.positions.rays import frustum_depths

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    kinds = {
        "depth_bins": bins, "ida": augmentation, "petr": petr, "petrv2": petr, "pos2posemb3d": sine, "streampetr": stream,
        "streampetr_temporal": temporal,
    }  # fmt: skip
    with torch.set_grad_enabled("cotangent" in case.inputs):
        return kinds[case.config["kind"]](case)


def spacing(c: dict) -> str:
    return "lid" if c["linear_increasing_discretisation"] else "uniform"


def load(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a module has, as Linear weights (1x1 convolutions lose their last axes)."""
    own = {n for n, _ in module.named_parameters()}
    return {n: t.flatten(1) if t.ndim > 2 else t for n, t in tensors.items() if n in own}


def bins(case: Case) -> Results:
    return {
        f"out.{kind}_{name}": frustum_depths(c["depth_num"], c["depth_start"], c["range_max_x"], spacing=kind)
        for name, c in case.config.items() if isinstance(c, dict)
        for kind in ("lid", "uniform")
    }  # fmt: skip


def sine(case: Case) -> Results:
    c = case.config
    return {"out.embedding": point_sine(case.inputs["points"], c["num_pos_feats"], temperature=c["temperature"])}


def augmentation(case: Case) -> Results:
    rows = case.inputs["resize_crop_flip_rotdeg"].tolist()
    found = [augmentation_matrix(r[0], tuple(r[1:5]), flip=bool(r[5]), rotate=r[6]) for r in rows]
    return {"out.ida": torch.stack(found)}


def scale(value: float | str) -> float:
    """A number, or "2*pi" and the like."""
    if not isinstance(value, str):
        return float(value)
    factor = re.fullmatch(r"(?:([\d.]+)\*)?pi", value.replace(" ", ""))
    return float(factor[1] or 1) * math.pi


def petr(case: Case) -> Results:
    c, x = case.config, case.inputs
    b, v, h, w = (c[n] for n in ("batch", "cameras", "feature_height", "feature_width"))
    frame, dim = (c["pad_height"], c["pad_width"]), c["embed_dims"]
    encoding = Petr(
        dim=dim, num_heads=1, depth_num=c["depth_num"], depth_start=c["depth_start"], spacing=spacing(c),
        position_range=c["position_range"], guided=c["kind"] == "petrv2",
    )  # fmt: skip
    back = invert_projection(x["lidar2img"])[:, :, None]  # (B, V, 1, 4, 4)
    pixels = cell_pixels(lattice((h, w)), (h, w), frame, "corner")
    points = ray_points(back, pixels, encoding.depths(), encoding.position_range)  # (B, V, HW, D, 3)
    mask = pad_mask(x["image_shapes_hw"], frame, (h, w))
    counts, lasts = (t.flatten(1, 3) for t in view_counts(mask))
    params = leaves(case.params)
    state = load(encoding, params)
    features = x.get("image_features", torch.zeros(b, v, dim, h, w)).flatten(3).mT.flatten(1, 2)

    def maps(t: Tensor) -> Tensor:
        return t.unflatten(1, (v, h, w)).movedim(-1, 2)

    module = _Call(encoding)
    ctx = functional_call(module, {f"m.{k}": t for k, t in state.items()}, ("context", points.flatten(1, 2), counts, lasts))
    whole = functional_call(module, {f"m.{k}": t for k, t in state.items()}, ("embedding", features, ctx))
    anchors = ReferencePoints(dim, len(x["reference_points"]))
    query = functional_call(
        _Call(anchors), {f"m.{k}": t for k, t in load(anchors, params).items()}, ("embed", x["reference_points"])
    )
    sine3d = view_sine(
        counts, lasts, c["sine_num_feats"], normalise=c["sine_normalise"], temperature=c["temperature"],
        scale=scale(c["sine_scale"]), eps=c["sine_eps"],
    )  # fmt: skip
    out = {
        "out.coords3d_normalised": points.unflatten(2, (h, w)).permute(0, 1, 4, 5, 2, 3),
        "out.coords_out_of_range_mask": out_of_range(points).unflatten(2, (h, w)) | mask,
        "out.padding_mask": mask,
        "out.position_encoder": maps(ctx.points),
        "out.adapted_sine3d": maps(ctx.views),
        "out.sine3d": maps(sine3d),
        "out.position_embedding": maps(whole),
        "out.query_embedding": query,
        "out.query_sine": point_sine(x["reference_points"], c["sine_num_feats"], temperature=c["temperature"]),
        "out.feature_guided_pe": maps(whole - ctx.views),
    }
    return out | gradients((out["out.position_embedding"] * x["cotangent"]).sum(), params)


class _Call(nn.Module):
    """A method of a module as the forward that functional_call runs."""

    def __init__(self, m: nn.Module) -> None:
        super().__init__()
        self.m = m

    def forward(self, method: str, *args):
        return getattr(self.m, method)(*args)


def stream(case: Case) -> Results:
    c, x = case.config, case.inputs
    h, w, stride = c["feature_height"], c["feature_width"], c["stride"]
    encoding = StreamPetr(
        dim=c["embed_dims"], num_heads=1, depth_num=c["depth_num"], depth_start=c["depth_start"], spacing=spacing(c),
        position_range=c["position_range"], preset="streampetr_compat",
    )  # fmt: skip
    pixels = stride_pixels(h, w, stride)
    points = ray_points(invert_projection(x["lidar2img"])[:, :, None], pixels, encoding.depths(), encoding.position_range)
    points = points.flatten(1, 2)
    focal = x["intrinsics"][..., [0, 1], [0, 1]]
    encoding.load_state_dict(load(encoding, case.params), strict=True)
    features = x["image_features"].flatten(3).mT.flatten(1, 2)
    ctx = encoding.stream_context(points, token_focals(focal, h * w, encoding.preset))
    memory = encoding.memory(features, ctx)
    places = (pixels / pixels.new_tensor([c["pad_width"], c["pad_height"]])).unflatten(0, (h, w))
    return {
        "out.coords3d_normalised": points.flatten(-2),
        "out.cone": ctx.cone,
        "out.locations": places,
        "out.memory": memory,
        "out.position_encoder": ctx.points,
        "out.position_embedding": encoding.embedding(memory, ctx),
    }


def temporal(case: Case) -> Results:
    x = case.inputs
    module = StreamMemory(case.config["embed_dims"])
    module.load_state_dict(case.params, strict=True)
    motion = (x["memory_velocity"], x["memory_timestamp"], x["memory_egopose"])
    points = normalise_points(x["memory_reference_point"], tuple(x["pc_range"].tolist()))
    position, memory = module(x["memory_embedding"], points, motion[1], motion[2], motion[0])
    return {"out.motion_encoding": ego_motion(*motion), "out.temporal_memory": memory, "out.temporal_position": position}
