"""3DPPE: fused depth, points, embeddings of keys and queries, in the world (V2, true depth) and in camera view (V3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from vispe.encodings.frustum import cell_pixels, invert_projection, out_of_range, pad_mask
from vispe.encodings.petr_3dppe import Petr3dppe, PointContext, expected_depth, known_depth
from vispe.encodings.petr_3dppe_view import ViewPointEncoder, project_queries, view_points
from vispe.positions import lattice

from ..cases import Case
from .common import Results, gradients, leaves
from .petr import _Call, load


def run(case: Case) -> Results:
    return camera_view(case) if case.config["kind"] == "3dppe_v3" else world(case)


def frame(c: dict) -> tuple[tuple[int, int], tuple[int, int], Tensor]:
    """Cells and pixels of a view, and the pixels (HW, 2) of the cells' corners."""
    grid, size = (c["feature_height"], c["feature_width"]), (c["pad_height"], c["pad_width"])
    return grid, size, cell_pixels(lattice(grid), grid, size, "corner")


def world(case: Case) -> Results:
    c, x = case.config, case.inputs
    (h, w), size, pixels = frame(c)
    b, v, given = c["batch"], c["cameras"], c["kind"] == "3dppe_gt"
    encoding = Petr3dppe(
        dim=c["embed_dims"], num_heads=1, depth_source="given" if given else "predicted", depth_num=c.get("depth_bins", 16),
        depth_start=c.get("depth_start", 1.0), position_range=c["position_range"],
    )  # fmt: skip
    params, inputs = leaves(case.params), leaves({k: x[k] for k in ("depth_logits", "direct_depth") if k in x})
    state = load(encoding, params)
    keys = {f"m.{k}": t for k, t in state.items()}
    shared = c.get("shared_encoder", True)
    own = {k.replace("query_embedding", "position_encoder"): t for k, t in params.items() if "query" in k}
    side = keys if shared else {f"m.{k}": t for k, t in own.items()}
    call, out = _Call(encoding), {}
    if given:
        depth = known_depth(x["depth"], x["depth_valid"], encoding.position_range[3])
    else:
        logits, direct = inputs["depth_logits"].movedim(1, -1), inputs["direct_depth"][:, 0]  # (BV, h, w, K), (BV, h, w)
        depth = functional_call(call, keys, ("depth_of", direct, logits)).unflatten(0, (b, v))
        out["out.fused_depth"] = depth
        out["out.probabilistic_depth"] = expected_depth(logits, encoding.bins()).unflatten(0, (b, v))
    ctx = PointContext(invert_projection(x["lidar2img"])[:, :, None], pixels, None, 0)
    points = encoding.points(ctx, depth.flatten(2))
    embedded = functional_call(call, keys, ("queries", points)).unflatten(2, (h, w)).movedim(-1, 2)
    space = "unit" if given else "logit"
    outside = out_of_range(points[..., None, :]).unflatten(2, (h, w))
    if "image_shapes_hw" in x:
        outside = outside | pad_mask(x["image_shapes_hw"], size, (h, w))
    out |= {
        "out.coords3d_normalised": points.unflatten(2, (h, w)),
        "out.coords_out_of_range_mask": outside,
        "out.position_embedding": embedded,
        "out.query_embedding": _query(call, side, x["reference_points"], space),
    }
    if "cotangent" in x:
        sources = inputs | {k: t for k, t in params.items() if k != "project"}
        out |= gradients((embedded * x["cotangent"]).sum(), sources)
    return out


def _query(call: _Call, state: dict[str, Tensor], points: Tensor, space: str) -> Tensor:
    return functional_call(_Space(call.m, space), state, (points,))


class _Space(torch.nn.Module):
    """`queries` in one of its spaces, as a forward."""

    def __init__(self, m: Petr3dppe, space: str) -> None:
        super().__init__()
        self.m, self.space = m, space

    def forward(self, points: Tensor) -> Tensor:
        return self.m.queries(points, space=self.space)


@torch.no_grad()
def camera_view(case: Case) -> Results:
    c, x = case.config, case.inputs
    (h, w), size, pixels = frame(c)
    far = c["position_range"][3]
    keys, queries = (ViewPointEncoder(c["embed_dims"]).eval() for _ in range(2))
    for net, name in ((keys, "pe_encoder_3d_1."), (queries, "pe_encoder_3d_2.")):
        net.load_state_dict({k.removeprefix(name): t for k, t in case.params.items() if k.startswith(name)}, strict=False)
    low, high = (torch.tensor(c["pc_range"][i : i + 3]) for i in (0, 3))
    where, inside = project_queries(x["reference_points"] * (high - low) + low, x["lidar2img"], size, far)
    return {
        "out.position_embedding": keys(view_points(pixels.unflatten(0, (h, w)), x["depth"], size, far)),
        "out.cross_query_embedding": queries(where),
        "out.on_the_image": inside.flatten(0, 1),
    }
