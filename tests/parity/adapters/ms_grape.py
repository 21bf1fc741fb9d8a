"""model-architectures/GRAPE: the commuting multi-subspace rotation of a sequence."""

from __future__ import annotations

from vispe import create_encoding
from vispe.positions import full_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "1d", c["kind"]
    encoding = create_encoding(
        "ms_grape", dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"], axes=1, log_scale=c["log_freq_scale"],
        heads="shared" if c["share_across_heads"] else "per_head",
    )  # fmt: skip
    inputs = leaves({n: case.inputs[n] for n in "qk"} | case.params)
    bind(encoding, log_freq=inputs["log_freq"].view(-1, 1, encoding.pairs))
    ctx = encoding.prepare(full_grid((c["tokens"],)))
    q, k = encoding.qk(inputs["q"].transpose(1, 2), inputs["k"].transpose(1, 2), ctx, ctx)  # officially (B, T, H, D)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    loss = ((q + k) * case.inputs["cotangent"]).sum()
    return {"out.q_rotated": q, "out.k_rotated": k, **gradients(loss, inputs)}
