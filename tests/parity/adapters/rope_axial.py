"""naver-ai/rope-vit, axial frequencies: tables, rotated queries and keys, whole DeiT-III ViTs."""

from __future__ import annotations

from vispe import create_encoding, patch_grid

from ..cases import Case
from .common import Results, gradients, leaves
from .rope_vit import vit


def run(case: Case) -> Results:
    return {"rotation": rotation, "vit": vit}[case.config["kind"]](case)


def rotation(case: Case) -> Results:
    c = case.config
    encoding = create_encoding("rope_axial", dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"], theta=c["theta"])
    ctx = encoding.prepare(patch_grid(c["grid_h"], c["grid_w"], prefix=c["prefix_tokens"]))
    inputs = leaves({n: case.inputs[n] for n in "qk"})
    q, k = encoding.qk(inputs["q"], inputs["k"], ctx, ctx)
    loss = (q * case.inputs["cotangent_q"]).sum() + (k * case.inputs["cotangent_k"]).sum()
    tables = {f"out.{n}": getattr(ctx, n)[0, 0, c["prefix_tokens"] :] for n in ("cos", "sin")}
    return {"out.q_rotated": q, "out.k_rotated": k, **tables, **gradients(loss, inputs)}
