"""kxhit/EscherNet, CaPE of 6 and 4 degrees of freedom, on whole widths and without a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe.encodings.cape import Cape, CapeContext
from vispe.encodings.se3 import Views

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, i = case.config, case.inputs
    encoding = Cape(dim=c["dim"], num_heads=1, dof={"cape_6dof": 6, "cape_4dof": 4}[c["kind"]])
    q, k = i["query"][:, None], i["key"][:, None]
    results = {}
    for suffix, change in (("", None), ("_after_change", i["global_change"])):
        sides = [context(encoding, i[f"{side}_pose"], change, c["tokens_per_view"]) for side in ("query", "key")]
        turned_q, turned_k = (t[:, 0] for t in encoding.qk(q, k, *sides))
        results[f"out.logits{suffix}"] = turned_q @ turned_k.mT
        if change is None:
            results |= {"out.query_encoded": turned_q, "out.key_encoded": turned_k}
    return results


def context(encoding: Cape, pose: Tensor, change: Tensor | None, count: int) -> CapeContext:
    """The context of given poses, as they are (`prepare` counts them from the first camera)."""
    view = torch.arange(pose.shape[1]).repeat_interleave(count)[None]
    if encoding.dof == 4:
        pose = pose if change is None else pose + change
        return CapeContext(None, encoding.rotation(pose.repeat_interleave(count, dim=1)))
    pose = pose if change is None else pose @ change
    return CapeContext(Views(pose, WORLD, view, count, 0), None)


WORLD = torch.eye(4, dtype=torch.float64)[None]
