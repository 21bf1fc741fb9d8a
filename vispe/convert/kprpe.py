"""mk-minchul/CVLface KP-RPE: a face ViT whose blocks are plain, with one `keypoint_linear` for all layers.

Its rows run over layers, then heads, then buckets, as far as `ctx_type` has layers ("unshared") and heads ("splithead")
apart; in "_v2" it is an MLP whose first layers serve all layers. Keys may stand behind the prefix of a wrapper ("net.").
The face head (`feature.*`) reads all tokens and belongs to the training code; the model is "learned+kprpe" with
class_token=False, global_pool="", num_classes=0, qkv_bias=False, ReLU6 and LayerNorm's eps 1e-5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid

ENCODINGS = ("kprpe",)  # whose weights these are
_LINEAR = re.compile(r"(.*?)keypoint_linear\.(?:0\.)?weight")
_TRUNK = {"first.weight": "0.weight", "first.bias": "0.bias", "norm.weight": "2.weight", "norm.bias": "2.bias"}


def matches(keys: Iterable[str]) -> bool:
    return any(_LINEAR.fullmatch(key) for key in keys)


def encoding_layers(params: dict[str, Tensor], depth: int) -> list[dict[str, Tensor]]:
    """The tensors of `keypoint_linear` (names behind that) as parameters of one encoding for each of `depth` layers.

    Raises:
        ValueError: rows that cannot be shared out.
    """
    last = "3." if "3.weight" in params else ""
    rows = params[f"{last}weight"].shape[0]
    if depth < 1 or rows % depth:
        raise ValueError(
            f"convert: keypoint_linear has {rows} rows, which are not the same number for each of {depth} layers; create the "
            f"model with the source's depth and per_layer."
        )
    parts = zip(params[f"{last}weight"].chunk(depth), params[f"{last}bias"].chunk(depth))
    trunk = {new: params[old] for new, old in _TRUNK.items() if last}
    return [{"fc.weight": weight, "fc.bias": bias} | trunk for weight, bias in parts]


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "kprpe")
    prefix = next((m[1] for m in map(_LINEAR.fullmatch, state) if m), "")
    if prefix:
        draft.rename({key: key[len(prefix) :] for key in state if key.startswith(prefix)})
        draft.report.notes.append(f"the prefix {prefix!r} taken off")
    _linear(draft, model)
    ours = set(model.state_dict())
    for key in list(draft.left):
        if key.startswith("feature.") and key not in ours and not any(k.startswith("head.") for k in ours):
            draft.drop(key, "the face head, which reads all tokens of the encoder; the model has no classifier")
    plain.finish(draft, model, source_grid)
    return draft


def _linear(draft: Draft, model: nn.Module) -> None:
    params = {key.removeprefix("keypoint_linear."): t for key, t in draft.left.items() if key.startswith("keypoint_linear.")}
    if "kprpe" not in getattr(model, "encoding", {}):
        for name in params:
            draft.refuse(f"keypoint_linear.{name}", "the model has no key points; create it with encoding='learned+kprpe'")
        return
    layered = isinstance(model.encoding["kprpe"], nn.ModuleList)
    last = "3." if "3.weight" in params else ""
    origin = {new: f"keypoint_linear.{old}" for new, old in _TRUNK.items()}
    origin |= {f"fc.{kind}": f"keypoint_linear.{last}{kind}" for kind in ("weight", "bias")}
    for i, tensors in enumerate(encoding_layers(params, len(model.encoding["kprpe"]) if layered else 1)):
        for name, tensor in tensors.items():
            draft.put(f"encoding.kprpe.{f'{i}.' if layered else ''}{name}", tensor, origin[name])
