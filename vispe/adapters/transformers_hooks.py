"""What a swapped model of transformers runs: its rotary module, and the hooks around the model and its layers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ..encodings.functional import rotate
from ..encodings.rope_sequence import full_tables
from ..positions.masks import document_mask, sees_rings
from ..positions.schemes import Scheme
from ..positions.schemes.rings import Rings
from ..positions.segments import Text
from ..positions.sequence import build_ids

if TYPE_CHECKING:
    from .transformers import Adapter


class SlotRotary(nn.Module):
    """In the place of a decoder's rotary module: tables of a slot. Without buffers, so that `.bfloat16()` rounds nothing."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor] | list[tuple[Tensor, Tensor]]:
        """cos, sin (B, S, D) in the dtype of x, by key-value heads (B, H, S, D); a list where layers differ."""
        rows = self.adapter.rows
        if position_ids.ndim == 2:
            ids = position_ids.expand(rows, -1, -1)
        elif position_ids.shape[0] in (rows, rows + 1):
            ids = position_ids[-rows:]
        elif (position_ids == position_ids[:1]).all():  # text, from a decoder called by itself
            ids = position_ids[:1].expand(rows, -1, -1)
        else:
            raise ValueError(f"positions: {self.adapter.setup.encoding!r} has {rows} rows of ids, got {position_ids.shape[0]}.")
        made = []
        for rotary, own in zip(self.adapter.rotaries, self.adapter.split(ids)):
            made.append(tuple(table.to(x.dtype) for table in full_tables(rotary.prepare(own.to(x.device)))))
        return made[0] if len(made) == 1 else made


@dataclass
class BeforeForward:
    """Ahead of the model: ids where none are given, a mask always."""

    adapter: Adapter

    @torch.compiler.disable  # python over segments
    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        names = list(inspect.signature(type(module).forward).parameters)[1:]
        call = dict(zip(names, args)) | kwargs
        tokens = call.get("input_ids") if call.get("input_ids") is not None else call.get("inputs_embeds")
        if tokens is None:
            return args, kwargs  # the model says what is missing
        past, shape = cached(call), tuple(tokens.shape[:2])
        given = call.get("position_ids")
        if given is None:
            made = slot_of(self.adapter, call, past, shape)
            call["position_ids"] = made.to(tokens.device)
            call["position_ids"].next_ids = made.next_ids
        else:
            call["position_ids"] = checked_slot(self.adapter, given, call, past, shape)
        refuse_growing(self.adapter, call["position_ids"], past)
        mask = call.get("attention_mask")
        if mask is None:
            mask = call["attention_mask"] = torch.ones(shape[0], past + shape[1], dtype=torch.int64, device=tokens.device)
        sees = special_mask(self.adapter, call, mask, past, shape[1])
        if sees is not None:
            refuse_pairs(module.language_model.config)
            call["attention_mask"] = additive(sees, module.dtype).to(mask.device)
        if "second_per_grid_ts" not in names:
            call.pop("second_per_grid_ts", None)
        return (), call


@dataclass
class AfterForward:
    """Behind the model: the cache learns where its sequence goes on."""

    adapter: Adapter

    @torch.compiler.disable
    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        cache = cache_in(output) if isinstance(output, Mapping) else None
        if isinstance(output, tuple):
            cache = next((o for o in output if isinstance(o, Cache)), None)
        if cache is None:
            return
        slot, mask = kwargs["position_ids"], kwargs.get("attention_mask")
        following = getattr(slot, "next_ids", None)
        new = slot.shape[-1]
        valid = torch.ones(slot.shape[1:], dtype=torch.bool) if not plain(mask) else mask[:, -new:].bool().cpu()
        before = getattr(cache, "vispe_state", None)
        if following is None:
            following = derived(self.adapter, kwargs, slot, valid, before)
        count = valid.sum(-1) + (before.counts if before is not None and len(before.counts) == len(valid) else 0)
        cache.vispe_state = CacheState(int(cache.get_seq_length()), following, count)


@dataclass(frozen=True)
class CacheState:
    """Of a cache: tokens, next ids (schemes, B) float64 (NaN where unknown), and tokens of each row without padding."""

    length: int
    next_ids: Tensor
    counts: Tensor


def derived(adapter: Adapter, call: dict[str, Any], slot: Tensor, valid: Tensor, before: CacheState | None) -> Tensor:
    """Next ids behind ids that came from outside: one text step behind the last token; NaN behind an image."""
    last = valid.shape[1] - 1 - valid.flip(-1).int().argmax(-1)
    ids = slot.detach().cpu().double()[1:]
    rows = torch.arange(len(last))
    out = torch.stack([own[0, rows, last] + s.step for s, own in zip(adapter.schemes, adapter.split(ids))])
    if call.get("input_ids") is not None or call.get("mm_token_type_ids") is not None:
        kinds = adapter.reader.kinds(call, valid)
        out[:, kinds[rows, last] > 0] = torch.nan
    idle = ~valid.any(-1)  # a row of padding only stays where it was
    if idle.any() and before is not None:
        out[:, idle] = before.next_ids[:, idle]
    return out


def plain(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.ndim == 2


def cached(call: dict[str, Any]) -> int:
    """Tokens in the cache of a call."""
    cache = cache_in(call)
    return 0 if cache is None else int(cache.get_seq_length())


def cache_in(call: Mapping[str, Any]) -> Cache | None:
    """Under the name of transformers 5.24, or that of those before."""
    return call.get("cache") if call.get("cache") is not None else call.get("past_key_values")


def slot_of(adapter: Adapter, call: dict[str, Any], past: int, shape: tuple[int, int], **draw: Any) -> Tensor:
    """The slot of a call's tokens, which follow `past` ones in its cache."""
    mask = call.get("attention_mask")
    if mask is not None and not plain(mask):
        raise ValueError("positions: a mask of pairs does not say which tokens are padding; pass position_ids (see `packed`).")
    valid = torch.ones(shape, dtype=torch.bool) if mask is None else mask[:, -shape[1] :].bool().cpu()
    rows = adapter.read(call, valid)
    if not past:
        return adapter.place(rows, valid, **draw)
    state = getattr(cache_in(call), "vispe_state", None)
    if state is None or state.length != past or state.next_ids.shape[1] != shape[0]:
        held = "nothing" if state is None else f"{state.length} tokens of {state.next_ids.shape[1]} rows"
        raise ValueError(
            f"positions: the cache has {past} tokens for {shape[0]} rows, and this model knows of {held}: it was filled by "
            f"another model, cut or expanded. Pass position_ids (`place` makes them), or begin a new cache."
        )
    if state.next_ids.isnan().any():
        row = int(state.next_ids.isnan().any(0).nonzero()[0])
        raise ValueError(f"positions: row {row} of the cache ends in an image with position_ids from outside; pass the next.")
    return adapter.place(rows, valid, starts=state.next_ids, counts=state.counts)


def checked_slot(adapter: Adapter, ids: Tensor, call: dict[str, Any], past: int, shape: tuple[int, int]) -> Tensor:
    """Ids from outside as a slot."""
    rows, name = adapter.rows, adapter.setup.encoding
    if ids.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"positions: {ids.dtype} cannot hold position_ids; keep them int64 or float32 (some trainers cast).")
    if ids.ndim == 2 and rows == 1:
        ids = ids[None]
    if ids.ndim != 3 or ids.shape[0] not in (rows, rows + 1) or ids.shape[2] != shape[1] or ids.shape[1] not in (1, shape[0]):
        raise ValueError(
            f"positions: position_ids of {name!r} are ({rows + 1} or {rows}, {shape[0]}, {shape[1]}): a count of tokens and "
            f"the scheme's rows; got {tuple(ids.shape)}."
        )
    if ids.shape[0] == rows + 1 and ids.shape[1] == shape[0]:
        return ids
    following = getattr(ids, "next_ids", None)
    ids = ids.expand(-1, shape[0], -1)
    if ids.shape[0] == rows:
        ids = torch.cat((torch.arange(past, past + shape[1], device=ids.device).expand(1, shape[0], -1).to(ids.dtype), ids))
    if following is not None:
        ids.next_ids = following
    return ids


def refuse_growing(adapter: Adapter, slot: Tensor, past: int) -> None:
    """Frequencies that change with the length do not fit keys that a cache holds."""
    scaling = adapter.rotaries[0].scaling
    if past and scaling is not None and scaling.method == "dynamic" and slot[1:].max() + 1 > scaling.trained:
        raise ValueError(
            f"positions: dynamic scaling changes all frequencies beyond {scaling.trained} ids, and keys in the cache keep "
            f"their old ones; generate with use_cache=False, or use yarn or linear."
        )


def special_mask(adapter: Adapter, call: dict[str, Any], mask: Any, past: int, new: int) -> Tensor | None:
    """What tokens see, (B, 1 or schemes, new, past + new) bool, of ring schemes and packed samples; None for causal."""
    rings = isinstance(adapter.schemes[0], Rings)
    if past and (new == 1 or not rings):
        return None  # a step of generation: no look at the device's numbers
    if rings and not (plain(mask) and mask.shape[1] == past + new):
        raise ValueError(
            f"positions: {adapter.setup.encoding!r} makes a mask of its own from one of {past + new} tokens a row; other "
            f"masks, and static caches, which bring theirs, have no place beside it."
        )
    if not plain(mask):
        return None
    seen, sees = mask.bool().cpu(), None
    if rings:
        sees = ring_masks(adapter, call, seen, new)
    if past or mask.shape[1] != new:
        return sees
    count = call["position_ids"][0].cpu()
    again = (count.diff(prepend=count[:, :1] - 1, dim=-1) != 1) & seen & seen.roll(1, -1)
    if not again[:, 1:].any():
        return sees
    documents = again.cumsum(-1)
    if sees is not None:
        return sees & (documents[:, None, :, None] == documents[:, None, None])
    return document_mask(documents)[:, None] & seen[:, None, None] | torch.eye(new, dtype=torch.bool)


def refuse_pairs(config: Any) -> None:
    """A mask of pairs goes to every layer as it is."""
    if "flash" in str(config._attn_implementation):
        raise ValueError("positions: rings and packed samples need a mask of pairs; use sdpa or eager, not flash attention.")
    kinds = getattr(config, "layer_types", None)
    if getattr(config, "sliding_window", None) and (kinds is None or "sliding_attention" in kinds):
        raise ValueError("positions: rings and packed samples need a mask of pairs, in which a sliding window would be lost.")


def ring_masks(adapter: Adapter, call: dict[str, Any], seen: Tensor, new: int) -> Tensor:
    """`ring_mask` of rows, (B, schemes, new, past + new), from their ids."""
    visual = adapter.reader.kinds(call, seen[:, -new:]) > 0
    sees = seen[:, None, None].repeat(1, len(adapter.schemes), new, 1)
    itself = torch.eye(new, dtype=torch.bool)
    for s, own in enumerate(adapter.split(call["position_ids"][1:].cpu())):
        inside = sees_rings(own[0], visual) & seen[:, None, -new:]
        sees[:, s, :, -new:] = inside | itself  # padding sees itself: no softmax over nothing
    return sees


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, torch.finfo(dtype).min)


@dataclass
class LayerHook:
    """Ahead of a decoder layer: its own tables and mask, and plain counts where kernels look for packed samples."""

    number: int

    def __call__(self, layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        tables, mask, ids = (kwargs.get(k) for k in ("position_embeddings", "attention_mask", "position_ids"))
        if isinstance(tables, list):
            kwargs["position_embeddings"] = tables[self.number]
        if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[1] > 1:
            kwargs["attention_mask"] = mask[:, self.number : self.number + 1]
        if isinstance(ids, Tensor) and ids.ndim == 3:
            kwargs["position_ids"] = ids[0].long()
        return args, kwargs


class HeadTurn:
    """Tables that differ by head (MHRoPE), for an attention that knows none: it turns queries and keys where they are made, and
    hands tables of ones and zeros on."""

    def __init__(self) -> None:
        self.tables: tuple[Tensor, Tensor] | None = None  # of the running call

    def attach(self, attention: nn.Module) -> None:
        names = ("q_norm", "k_norm") if hasattr(attention, "q_norm") else ("q_proj", "k_proj")
        attention.register_forward_pre_hook(self.take, with_kwargs=True)
        attention.register_forward_hook(self.drop, always_call=True)
        for name in names:
            getattr(attention, name).register_forward_hook(self.turn)

    def take(self, attention: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        self.tables = kwargs["position_embeddings"]
        cos = self.tables[0][:, 0]
        return args, kwargs | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(cos))}

    def drop(self, attention: nn.Module, args: tuple, output: Any) -> None:
        self.tables = None

    def turn(self, module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        """(B, S, H · D) or (B, S, H, D)."""
        cos, sin = self.tables
        heads = out.reshape(*out.shape[:2], -1, cos.shape[-1]).transpose(1, 2)
        each, pairs = heads.shape[1] // cos.shape[1], cos.shape[-1] // 2
        cos, sin = (t[..., :pairs].repeat_interleave(each, dim=1) for t in (cos, sin))
        return rotate(heads, cos, sin, "half").transpose(1, 2).reshape(out.shape)


@dataclass
class GenerationIds:
    """`_prepare_position_ids_for_generation` of a model: ids of the prompt, or of what is new behind a cache."""

    adapter: Adapter

    def __call__(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        call = dict(model_kwargs)
        tokens = call.get("input_ids")
        if tokens is None or not tokens.shape[1]:
            tokens = inputs_tensor
        past, mask = cached(call), call.get("attention_mask")
        total = mask.shape[1] if plain(mask) else max(tokens.shape[1], past + 1)
        tokens = tokens[:, past - total :]
        call |= {"input_ids": None, "inputs_embeds": tokens} if tokens.is_floating_point() else {"input_ids": tokens}
        shape = (tokens.shape[0], total - past)
        if tuple(tokens.shape[:2]) != shape or total <= past:
            raise ValueError(f"generate: the cache has {past} tokens, mask and input_ids have {total} and {tokens.shape[1]}.")
        slot = slot_of(self.adapter, call, past, shape)
        refuse_steps(self.adapter, slot, None if mask is None else mask[:, -1].bool().cpu())
        slot = torch.cat((torch.zeros(*slot.shape[:2], past, dtype=slot.dtype), slot), dim=-1) if past else slot
        return slot.to(inputs_tensor.device)


def refuse_steps(adapter: Adapter, slot: Tensor, ends: Tensor | None) -> None:
    """`generate` adds 1 to every row of the last column. Refuse where that is not where the sequence goes on."""
    for scheme in adapter.schemes:
        reason = cannot_step(scheme)
        if reason:
            raise ValueError(f"generate: {adapter.setup.encoding!r} {reason}; call the model in a loop of your own.")
    if ends is not None and not ends.all():
        row = int((~ends).nonzero()[0])
        raise ValueError(f"generate: row {row} ends in padding, whose ids do not lead on; pad on the left.")
    for own, following in zip(adapter.split(slot[1:]), slot.next_ids):
        wrong = ((own[..., -1].double() + 1 - following).abs() > 1e-3).any(0)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"generate: row {row} ends in an image or a video, behind which {adapter.setup.encoding!r} goes on at "
                f"{float(following[row]):g} and not at its last ids {own[:, row, -1].tolist()} + 1; end the prompt with text."
            )


def cannot_step(scheme: Scheme) -> str | None:
    """Why `generate` cannot continue text in a scheme; None where it can."""
    ids = build_ids([Text(2)], scheme, start=5)[0].double()
    step = (ids[:, 1] - ids[:, 0]).tolist()
    return None if all(s == 1 for s in step) else f"moves its ids by {step} a token of text, and generate adds 1 to each"


@dataclass
class RopeIndex:
    """`get_rope_index` of a model: the slot, and next id − number of tokens of each row."""

    adapter: Adapter

    def __call__(
        self, input_ids: Tensor, mm_token_type_ids: Tensor | None = None, *, attention_mask: Tensor | None = None, **grids: Any
    ) -> tuple[Tensor, Tensor]:
        call = {**grids, "input_ids": input_ids, "mm_token_type_ids": mm_token_type_ids, "attention_mask": attention_mask}
        slot = slot_of(self.adapter, call, 0, tuple(input_ids.shape))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        deltas = (slot.next_ids[0] - mask.sum(-1).cpu()).to(slot.dtype)[:, None]
        return slot.to(input_ids.device), deltas.to(input_ids.device)
