"""baaivision/EVA: tables and rotated queries of VisionRotaryEmbeddingFast, at the pre-training grid and at another."""

from __future__ import annotations

from vispe import create_encoding, patch_grid

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "rope", c["kind"]
    encoding = create_encoding(
        "rope_eva02", dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"], theta=c["theta"],
        pretrain_grid=c["pretrain_grid"],
    )  # fmt: skip
    prefix = c["prefix_tokens"]
    ctx = encoding.prepare(patch_grid(c["grid"], c["grid"], prefix=prefix))
    inputs = leaves({"q": case.inputs["q"]})
    q, _ = encoding.qk(inputs["q"], inputs["q"], ctx, ctx)
    tables = {f"out.{n}": getattr(ctx, n)[0, 0, prefix:].repeat_interleave(2, -1) for n in ("cos", "sin")}  # by channel
    return {"out.q_rotated": q, **tables, **gradients((q * case.inputs["cotangent"]).sum(), inputs)}
