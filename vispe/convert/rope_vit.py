"""naver-ai/rope-vit (and DeiT-III, whose layout it shares), and the same weights as timm's hub holds them.

`freqs` is (2 [column, row], depth, heads · head_dim / 2) there and `rope.freqs` (2, depth, heads, head_dim / 2) in
timm; ours is (heads, 2 [row, column], head_dim / 2) for each layer. `freqs_t_x` and `freqs_t_y` are coordinates of the
train grid, saved.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from . import plain
from .report import Draft
from .tables import Grid

ENCODINGS = ("rope_axial", "rope_mixed")  # whose weights these are


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    return "blocks.0.gamma_1" in keys or "freqs" in keys or "rope.freqs" in keys


def layer_frequencies(freqs: Tensor, num_heads: int) -> list[Tensor]:
    """Official (2 [x, y], depth, H · P) or (2, depth, H, P) to one (H, 2 [row, column], P) a layer."""
    if freqs.ndim not in (3, 4) or freqs.shape[0] != 2 or (freqs.ndim == 3 and freqs.shape[2] % num_heads):
        raise ValueError(
            f"convert: freqs must be (2, depth, {num_heads} heads · pairs) or (2, depth, {num_heads}, pairs), got "
            f"{tuple(freqs.shape)}; create the model with the source's number of heads."
        )
    freqs = freqs.reshape(2, freqs.shape[1], num_heads, -1)
    return list(freqs.flip(0).permute(1, 2, 0, 3))


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    draft = Draft(state, "rope_vit")
    ours = set(model.state_dict())
    for key in list(draft.left):
        if key in ("freqs_t_x", "freqs_t_y"):
            draft.drop(key, "coordinates of the train grid, recomputed for every image")
        elif key in ("freqs", "rope.freqs"):
            place_frequencies(draft, model, key)
        elif key.startswith("blocks.") and key.endswith((".gamma_1", ".gamma_2")):
            stem, number = key.rsplit(".gamma_", 1)
            new = f"{stem}.ls{number}.gamma"
            if new in ours:
                draft.move(key, new)
            else:
                draft.refuse(key, "the model has no LayerScale; create it with init_values=1e-4")
    plain.finish(draft, model, source_grid)
    return draft


def place_frequencies(draft: Draft, model: nn.Module, key: str) -> None:
    """Put learned frequencies of all layers at the model's rope_mixed, or at its rope_timm of that kind."""
    ours = set(model.state_dict())
    name = next((n for n in ("rope_mixed", "rope_timm") if f"encoding.{n}.0.freqs" in ours), None)
    if name is None:
        draft.refuse(key, "the model has no rope_mixed; create it with encoding='rope_mixed'")
        return
    member, freqs = model.encoding.first(name), draft.left[key]
    if name == "rope_timm" and member.settings.indexing == "ij":  # rows come first in such files
        freqs = freqs.flip(0)
    for i, layer in enumerate(layer_frequencies(freqs, member.num_heads)):
        draft.put(f"encoding.{name}.{i}.freqs", layer, key)
