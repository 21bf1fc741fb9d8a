"""STRING from its formulas: encoded queries and keys, logits, gradients of the parameters.

The circulant cases hold exp(x L) q itself; ours is that in the real Fourier basis, which scores do not see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vispe import create_encoding, patch_grid
from vispe.encodings.string_circulant import fourier_basis

from ..cases import Case
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    inputs = leaves({n: case.inputs[n] for n in "qk"} | case.params)
    pos = patch_grid(c["grid_h"], c["grid_w"])
    results = {"cayley": cayley, "circulant": circulant}[c["kind"]](c, inputs, pos)
    logits = results["out.q_encoded"] @ results["out.k_encoded"].mT
    results["out.logits_unscaled"] = logits
    return results | gradients((logits * case.inputs["cotangent"]).sum(), {n: inputs[n] for n in case.params})


def cayley(c: dict, inputs: dict[str, Tensor], pos) -> Results:
    encoding = create_encoding("string_cayley", dim=c["num_heads"] * c["head_dim"], num_heads=c["num_heads"])
    row, col = torch.triu_indices(c["head_dim"], c["head_dim"], 1)
    bind(encoding, skew=inputs["S_upper"][:, row, col], freqs=inputs["freqs"])
    ctx = encoding.prepare(pos)
    q, k = encoding.qk(inputs["q"], inputs["k"], ctx, ctx)
    return {"out.q_encoded": q, "out.k_encoded": k, "out.P": ctx.basis}


def circulant(c: dict, inputs: dict[str, Tensor], pos) -> Results:
    size, head_dim = c["block"], c["head_dim"]
    encoding = create_encoding(
        "string_circulant", dim=c["num_heads"] * head_dim, num_heads=c["num_heads"], block_size=size
    )
    first = inputs["circulant"]  # (H, axes, m, b), first columns
    pairs = encoding.pairs
    bind(encoding, odd=first[..., 1 : pairs + 1] - first[..., size - pairs :].flip(-1))
    ctx = encoding.prepare(pos)
    way_back = encoding.to_fourier(torch.eye(head_dim), fourier_basis(size)).mT  # (D, D)
    q, k = (x @ way_back for x in encoding.qk(inputs["q"], inputs["k"], ctx, ctx))
    step = (torch.arange(size)[:, None] - torch.arange(size)) % size
    return {"out.q_encoded": q, "out.k_encoded": k, "out.generators": first[..., step] - first[..., step].mT}
