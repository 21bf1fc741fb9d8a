"""ivonajdenkoska/tulip: the student's text tower, as open_clip's TextTransformer with rotary positions."""

from __future__ import annotations

from open_clip.transformer import QuickGELU, TextTransformer
from torch import nn
from torch.func import functional_call

from vispe.models.clip_text import rotate_text

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    quick = c.get("activation", "").lower().startswith("quick")
    tower = TextTransformer(
        context_length=min(c["context_length"], 8), vocab_size=c["vocab"], width=c["width"], heads=c["heads"],
        layers=c["layers"], output_dim=c["output_dim"], act_layer=QuickGELU if quick else nn.GELU,
        no_causal_mask=not c.get("causal", True), pool_type=c.get("pooling", "argmax").split()[0],
    )  # fmt: skip
    rotate_text(tower.eval(), context_length=c["context_length"], options={"theta": float(c["theta"])})
    params = leaves(case.params)
    assert set(params) == set(tower.state_dict()), "the tower must have exactly the student's parameters"
    features = functional_call(tower, params, (case.inputs["text"],))
    return {"out.features": features, **gradients((features * case.inputs["cotangent"]).sum(), params)}
