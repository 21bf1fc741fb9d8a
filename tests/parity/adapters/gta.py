"""autonomousvision/gta, main branch: attention on multi-view tokens, its module, and the parts of its representation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vispe.encodings.gta import Gta
from vispe.encodings.se3 import wigner
from vispe.layers import attend
from vispe.positions import CameraPositions, patch_grid

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    kinds = {
        "core": core, "module": module, "frame_invariance": frame_invariance, "grid_coordinates": grid_coordinates,
        "so2_matrices": so2_matrices, "so3_wigner": so3_wigner,
    }  # fmt: skip
    return kinds[case.config["kind"]](case)


def encoding_of(c: dict, params: dict[str, Tensor]) -> Gta:
    parts = c["feature_dims_in_order_triv_se3_so3_so2_t2"]
    encoding = Gta(
        dim=c["heads"] * c["head_dim"], num_heads=c["heads"],
        **{p: parts.get(p, 0) for p in ("triv", "se3", "so3", "so2", "t2")},
        so3_degree=c.get("max_so3_degree") or 2, trans_coeff=c.get("translation_coefficient", 0.01),
        max_freq=(c["max_freq_h"], c["max_freq_w"]), shared_freqs=c.get("shared_freqs", False),
        transforms="qkvo" if c.get("transform_values", True) else "qk",
        similarity="euclidean" if c.get("euclidean_similarity") else "dot",
        temperature="learned" if c.get("adjustable_temperature") else "fixed",
    )  # fmt: skip
    for own, official in (("trans_coeff", "trans_coeff"), ("tau", "attend.tau")):
        if official in params and hasattr(encoding, own):
            delattr(encoding, own)
            setattr(encoding, own, params[official])
    return encoding


def places(coords: Tensor, w2c: Tensor) -> CameraPositions:
    """Positions of coordinates (B, V, T, 2) in [0, 1): cells of a frame of one cell, p + ½ being the coordinate."""
    batch, views, count, _ = coords.shape
    return CameraPositions(
        (coords - 0.5).flatten(1, 2), extent=(1, 1), train=(1, 1), world_to_camera=w2c, full_views=True,
        view=torch.arange(views).repeat_interleave(count)[None],
    )  # fmt: skip


def contexts(case: Case, encoding: Gta, suffix: str = ""):
    i = case.inputs
    ctx_k = encoding.prepare(places(i["input_coord_hw"], i["input_transforms_w2c" + suffix]))
    if not case.config.get("cross_attention"):
        return ctx_k, ctx_k
    return encoding.prepare(places(i["target_coord_hw"], i["target_transforms_w2c"])), ctx_k


def core(case: Case) -> Results:
    sources = leaves({n: case.inputs[n] for n in "qkv"} | case.params)
    encoding = encoding_of(case.config, sources)
    q, k, v = (sources[n] for n in "qkv")
    o = attend(q, k, v, encoding, *contexts(case, encoding), scale=q.shape[-1] ** -0.5)
    return {"out.attention_output": o, **gradients((o * case.inputs["cotangent"]).sum(), sources, params=True)}


def module(case: Case) -> Results:
    sources = leaves({n: case.inputs[n] for n in ("x", "z") if n in case.inputs} | case.params)
    encoding, heads = encoding_of(case.config, sources), case.config["heads"]
    x = sources["x"]
    if "to_qkv.weight" in sources:
        parts = F.linear(x, sources["to_qkv.weight"]).chunk(3, dim=-1)
    else:
        parts = (F.linear(x, sources["to_q.weight"]), *F.linear(sources["z"], sources["to_kv.weight"]).chunk(2, dim=-1))
    q, k, v = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in parts)
    o = attend(q, k, v, encoding, *contexts(case, encoding), scale=q.shape[-1] ** -0.5).transpose(1, 2).flatten(2)
    y = F.linear(o, sources["to_out.0.weight"], sources["to_out.0.bias"])
    return {"out.y": y, **gradients((y * case.inputs["cotangent"]).sum(), sources, params=True)}


def frame_invariance(case: Case) -> Results:
    encoding, results = encoding_of(case.config, case.params), {}
    q, k, v = (case.inputs[n] for n in "qkv")
    for suffix in ("", "_changed"):
        o = attend(q, k, v, encoding, *contexts(case, encoding, suffix), scale=q.shape[-1] ** -0.5)
        results[f"out.attention_output{suffix}"] = o
    return results


def so2_matrices(case: Case) -> Results:
    c = case.config
    encoding = Gta(
        dim=4 * c["nfreqs"], num_heads=1, so2=4 * c["nfreqs"], max_freq=(c["max_freq_h"], c["max_freq_w"]),
        shared_freqs=c["shared"],
    )  # fmt: skip
    angle = encoding.angles(case.inputs["coord_hw"])
    cos, sin = angle.cos(), angle.sin()
    return {"out.matrices": torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)}


def so3_wigner(case: Case) -> Results:
    rotation = case.inputs["R"]
    found = wigner(rotation, case.config["max_degree"])
    one = torch.ones(*rotation.shape[:-2], 1, 1, dtype=rotation.dtype)
    return {f"out.D{i}": d for i, d in enumerate([one, *found])}


def grid_coordinates(case: Case) -> Results:
    c = case.config
    size, step, sub = (c["height"], c["width"]), c["token_stride"], c["full_subsample"]
    tokens = patch_grid(size[0] // step, size[1] // step)
    pixels = patch_grid(*size).to("unit", "rescale") - 0.5 / torch.tensor(size)  # corners of the pixels
    pixels = pixels.unflatten(1, size)[0, :: sub[0], :: sub[1]]
    return {"out.full_resolution_hw": pixels, "out.token_hw": tokens.to("unit", "rescale").unflatten(1, tokens.grid)[0]}
