"""ghrua/seqpe (image_seqpe): `pe_model.*`, a GPT-2 over digits, and `model.*`, a timm ViT with `pe_qk` in its attentions.

The network's Conv1D weights are (in, out) and are transposed. `pe_qk` is one a layer ("multi", in the attentions) or one for
all. The model is a 'seqpe' with the source's method, heads and projection and, where they are not its defaults, net_width,
net_layers and net_heads; its grid plays no part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid

ENCODINGS = ("seqpe",)  # whose weights these are
_NET = "pe_model."
_PE_QK = re.compile(r"(?:blocks\.(\d+)\.attn\.)?(?:\w+\.)*?pe_qk\.(weight|bias)")
_TOP = {
    "token_of_seqpe_embed.weight": "digit", "pos_of_seqpe_embed.weight": "place", "dim_token_embed": "axis",
    "cls_token_embed": "close",
}  # fmt: skip
_INNER = {
    "attn.c_attn": "qkv", "attn.c_proj": "proj", "layernorm_1": "norm1", "layernorm_2": "norm2", "mlp.c_fc": "fc1",
    "mlp.c_proj": "fc2",
}  # fmt: skip


def matches(keys: Iterable[str]) -> bool:
    return any(key.startswith(_NET) for key in keys)


def network_name(key: str) -> str | None:
    """The name in our DigitEncoder of an official one (behind `pe_model.`); None for an unknown one."""
    if key in _TOP:
        return _TOP[key]
    if found := re.fullmatch(r"transformers\.(\d+)\.(.+)\.(weight|bias)", key):
        return f"blocks.{found[1]}.{_INNER[found[2]]}.{found[3]}" if found[2] in _INNER else None
    found = re.fullmatch(r"(layernorm|out_proj)\.(weight|bias)", key)
    return f"{'norm' if found[1] == 'layernorm' else 'proj'}.{found[2]}" if found else None


def network_tensor(key: str, tensor: Tensor) -> Tensor:
    """An official tensor in the shape of ours."""
    if key == "dim_token_embed":
        return tensor[:, 0]
    if key == "cls_token_embed":
        return tensor[0]
    return tensor.T if key.endswith(".weight") and ".c_" in key else tensor


def network(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The official network (names behind `pe_model.`) as the state dict of our DigitEncoder; unknown keys keep theirs."""
    return {network_name(key) or key: network_tensor(key, tensor) for key, tensor in params.items()}


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "seqpe")
    draft.rename({key: key.removeprefix("model.") for key in state})
    stack = getattr(model, "encoding", {})
    layered = "seqpe" in stack and isinstance(stack["seqpe"], nn.ModuleList)
    first = "encoding.seqpe.0." if layered else "encoding.seqpe."
    ours = set(model.state_dict())
    for key in list(draft.left):
        found, new = _PE_QK.fullmatch(key), None
        if key.startswith(_NET):
            new = f"{first}net.{network_name(key.removeprefix(_NET))}"
        elif key == "cls_token_pos_embed":
            new = f"{first}prefix_embed"
        elif found:
            new = f"encoding.seqpe.{f'{found[1]}.' if found[1] else ''}pe_qk.{found[2]}"
        if new is None:
            continue
        if new in ours:
            draft.put(new, network_tensor(key.removeprefix(_NET), draft.left[key]), key)
        else:
            draft.refuse(key, f"the model has no {new}; create it with encoding='seqpe' and the source's options")
    plain.finish(draft, model, source_grid)
    return draft
