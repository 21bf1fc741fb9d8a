"""byeongjun-park/ReDirector: self-attention over a source and a target video with phases from camera tokens."""

from __future__ import annotations

import torch.nn.functional as F

from vispe.encodings.roce_phases import camera_phases, rope_angles, turn_heads
from vispe.positions import lattice

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, i, p = case.config, case.inputs, case.params
    assert c["kind"] == "roce", c["kind"]
    heads = c["heads"]
    one = lattice((c["frames"], c["height"], c["width"])).double()
    angle = rope_angles(one, c["axis_dims"], c["theta"])
    angle = angle.repeat(i["q"].shape[1] // len(angle), 1)  # both videos have the same indices
    qk = camera_phases(i["camera_tokens"], p["rope_phase_qk.1.weight"])
    vo = camera_phases(i["camera_tokens"], p["rope_phase_vo.1.weight"])
    q, k = (turn_heads(i[n], angle, qk, heads=heads) for n in "qk")
    v = turn_heads(i["v"], None, vo, heads=heads, sign=-1.0)
    split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v)]
    o = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    y = turn_heads(F.linear(o, p["o.weight"], p.get("o.bias")), None, vo, heads=heads)
    return {"out.phase_qk": qk, "out.phase_vo": vo, "out.q_encoded": q, "out.v_encoded": v, "out.y": y}
