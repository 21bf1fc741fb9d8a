"""Doraemonzzz/xopes: the cosine form on two and three axes, with given frequencies."""

from __future__ import annotations

from vispe import create_encoding
from vispe.positions import full_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    inputs = leaves(case.inputs)
    encoding = create_encoding(
        "md_lrpe", dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"], axes=len(c["shape"]), form=c["kind"]
    )
    bind(encoding, theta=inputs["theta"])
    ctx = encoding.prepare(full_grid(tuple(c["shape"]), prefix=c["prefix_tokens"]))
    y, _ = encoding.qk(inputs["x"], inputs["x"], ctx, ctx)
    loss = (y * case.inputs["cotangent"]).sum()
    return {"out.y": y, **gradients(loss, {n: inputs[n] for n in ("x", "theta")})}
