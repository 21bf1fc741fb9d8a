"""timm's relative biases: RelPosBias (Swin's, or BEiT's with a class token), RelPosBiasTf, RelPosMlp."""

from __future__ import annotations

from vispe import create_encoding, patch_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    window, heads, prefix = tuple(c["window"]), c["heads"], c.get("prefix_tokens", 0)
    names = {"table": "relative_position_bias_table"}
    options = {"grid": window}
    if c["cls"] == "RelPosBias":
        name = "beit_bias" if prefix else "swin_bias"
        options |= {"prefix": prefix} if prefix else {}
    elif c["cls"] == "RelPosBiasTf":
        name = "timm_rel_tf"
    elif c["cls"] == "RelPosMlp":
        name = "timm_rel_mlp"
        names = {f"{layer}.{leaf}": f"mlp.{layer}.{leaf}" for layer in ("fc1", "fc2") for leaf in ("weight", "bias")}
        options = {"mode": c.get("mode", "cr"), "hidden": c.get("hidden_dim", 128), "hidden_drop": 0.125, "grid": window}
        options |= {"pretrained_window": tuple(c.get("pretrained_window_size", (0, 0)))}
    else:
        raise ValueError(f"no encoding for timm's {c['cls']!r}")
    p = leaves(case.params)
    encoding = create_encoding(name, dim=heads, num_heads=heads, **options)
    bind(encoding, **{ours: p[theirs] for ours, theirs in names.items() if theirs in p})
    bias = encoding.train(not c["eval_mode"]).prepare(patch_grid(*window, prefix=prefix)).pairs
    bias = bias.reshape(case.inputs["cotangent"].shape)  # RelPosBiasTf has no batch axis
    return {"out.bias": bias, **gradients((bias * case.inputs["cotangent"]).sum(), p, params=True)}
