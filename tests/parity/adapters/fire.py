"""FIRE on a sequence: the bias and its gradients."""

from __future__ import annotations

from vispe import create_encoding
from vispe.positions import full_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves

NAMES = {
    "fc1.weight": "mlp.0.weight", "fc1.bias": "mlp.0.bias", "fc2.weight": "mlp.2.weight", "fc2.bias": "mlp.2.bias",
    "c": "c", "multiplier": "L_multiplier",
}  # fmt: skip


def run(case: Case) -> Results:
    c = case.config
    p = leaves(case.params)
    encoding = create_encoding(
        "fire", dim=c["heads"], num_heads=c["heads"], axes=1, hidden=c["mlp_width"], threshold=c["init_L"], eps=c["eps"]
    )
    bind(encoding, **{ours: p[theirs] for ours, theirs in NAMES.items()})
    bias = encoding.prepare(full_grid((c["length"],))).pairs
    return {"out.bias": bias, **gradients((bias * case.inputs["cotangent"]).sum(), p, params=True)}
