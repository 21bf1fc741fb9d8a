"""V-DETR's cross-attention of boxes to points, whose keys and values have one head, with 3DV-RPE."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vispe import create_encoding
from vispe.positions import custom_positions
from vispe.positions.boxes import box_positions

from ..cases import Case
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    c, x = case.config, case.inputs
    limit, entries = c["quantisation"].split("_")[1:]
    encoding = create_encoding(
        "v_detr_3dvrpe", dim=c["dim"], num_heads=c["heads"], axes=3, hidden=c["mlp_hidden"], entries=int(entries),
        limit=float(limit), log_scale=c["log_scale"], boxes="turned" if c["object_coords"] else "axis", cell=None,
    )  # fmt: skip
    p = leaves(case.params | {k: x[k] for k in ("query", "key")})
    bind(encoding, **{k: t for k, t in p.items() if k.startswith("cpb_mlps.")})
    boxes = encoding.prepare(box_positions(x["reference_vertices"], x.get("reference_angle")))
    points = encoding.prepare(custom_positions(x["xyz"]))

    def project(name: str, source: str, heads: int) -> torch.Tensor:
        found = F.linear(p[source], p[f"{name}.weight"], p.get(f"{name}.bias"))  # (N, B, heads · d)
        return found.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)  # (B, heads, N, d)

    q, k, v = project("q", "query", c["heads"]), project("k", "key", 1), project("v", "key", 1)
    bias = encoding.bias(q, k, boxes, points)
    attention = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)
    y = F.linear((attention @ v).permute(2, 0, 1, 3).flatten(-2), p["proj.weight"], p["proj.bias"])
    out = {"out.attention": attention, "out.bias_minus_row_logsumexp": bias.log_softmax(-1), "out.y": y}
    return out | gradients((y * x["cotangent"]).sum(), p)
