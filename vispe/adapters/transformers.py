"""Position schemes in vision-language models of transformers: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, InternVL, LLaVA.

    model = vispe.swap(qwen2_vl, "vrope")                  # forward, generate, beams, caches, padding: as before
    vispe.adapters.transformers.save(model, "folder"); model = vispe.adapters.transformers.load("folder")
    batch |= positions(model, batch, generator=g)          # explicit ids and the mask that they need, e.g. for a collator
    logits = model(**packed(model, [one, other])).logits   # several documents in one row

No class is forked. A hook ahead of the model reads segments from token ids and grids, once, and passes `position_ids`
(1 + rows, B, S): the count of tokens, then the scheme's rows. The rotary module is replaced. Where a sequence goes on is kept
with its cache, never in the model, and every forward gets a mask, without which transformers takes ids that do not step by one
for packed samples.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

try:
    import transformers
except ImportError as error:
    raise ImportError("The adapter for transformers' models needs transformers: pip install vispe[vlm]") from error

from ..encodings.rope_sequence import SequenceRotary, scaling_of
from ..positions.schemes import Scheme, create_scheme
from ..positions.schemes.line import V2PE, Line, TadRope
from ..positions.schemes.tiles import RopeDHR
from ..positions.segments import Segment, Tiles
from ..positions.sequence import Side, build_ids
from .transformers_hooks import (
    AfterForward,
    BeforeForward,
    GenerationIds,
    HeadTurn,
    LayerHook,
    RopeIndex,
    SlotRotary,
    slot_of,
)  # fmt: skip
from .transformers_segments import Reader

__all__ = ["load", "packed", "place", "positions", "save", "swap"]

FILE = "vispe.json"
GRIDS = {"qwen2_vl": "chunked", "qwen2_5_vl": "chunked", "qwen3_vl": "interleaved"}  # and how their rotary reads ids
DECODERS = ("llama", "mistral", "qwen2", "qwen3")  # of models with one id a token: they turn pairs (k, k + P)


@dataclass(frozen=True)
class Setup:
    """What `swap` made of a model, in plain values."""

    encoding: str
    encoding_kwargs: dict[str, Any] = field(default_factory=dict)
    allocation: str | None = None
    sections: tuple[int, ...] | None = None
    image_grid: tuple[int, int] | None = None


def swap(
    model: nn.Module,
    encoding: str,
    *,
    encoding_kwargs: dict[str, Any] | None = None,
    allocation: str | None = None,
    sections: Sequence[int] | None = None,
    image_grid: Sequence[int] | None = None,
    into: Literal["copy", "model"] = "copy",
) -> nn.Module:
    """A vision-language model with another position scheme; no parameter is added or changed.

    The text's frequencies (base, YaRN, ...) stay those of the configuration. Sections of the configuration hold where the
    scheme's rotary pairs are laid out as the model's own; else the published shares of the head's width.

    Args:
        model: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, or a model that gives each token one id and has a Llama, Mistral, Qwen2 or Qwen3
            decoder (InternVL, LLaVA).
        encoding: a scheme of `vispe.positions.schemes`.
        encoding_kwargs: its options.
        allocation, sections: see `SequenceRotary`.
        image_grid: (rows, columns) in tokens of a tile or an image, of models that do not say.
        into: "copy" leaves the model alone; "model" changes it, without a second set of weights.

    Raises:
        ValueError: another model or decoder, an unknown scheme, sections that do not fit.
    """
    if into not in ("copy", "model"):
        raise ValueError(f"swap: into must be one of ('copy', 'model'), got {into!r}.")
    inner, text = parts(model)
    if hasattr(inner, "vispe_adapter"):
        raise ValueError(f"swap: this model has {inner.vispe_adapter.setup.encoding!r} already; start from the loaded model.")
    setup = Setup(
        encoding, dict(encoding_kwargs or {}), allocation, None if sections is None else tuple(sections),
        None if image_grid is None else tuple(image_grid),
    )  # fmt: skip
    adapter = Adapter.of(inner, text, setup)
    model = copy.deepcopy(model) if into == "copy" else model
    inner, text = parts(model)
    text.rotary_emb = SlotRotary(adapter)
    inner.vispe_adapter = adapter
    inner.register_forward_pre_hook(BeforeForward(adapter), with_kwargs=True)
    inner.register_forward_hook(AfterForward(adapter), with_kwargs=True)
    for number, layer in enumerate(text.layers):
        layer.register_forward_pre_hook(LayerHook(adapter.owner[number]), with_kwargs=True)
        if adapter.rotaries[0].map.heads > 1:
            HeadTurn().attach(layer.self_attn)
    model._prepare_position_ids_for_generation = GenerationIds(adapter)
    inner.get_rope_index = RopeIndex(adapter)
    inner.rope_deltas = None  # never read again
    return model


def parts(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The model below the head, and its decoder."""
    inner = model if hasattr(model, "language_model") else getattr(model, "model", None)
    text = getattr(inner, "language_model", None)
    if not isinstance(model, transformers.PreTrainedModel) or not hasattr(text, "rotary_emb") or not hasattr(text, "layers"):
        raise ValueError(
            f"swap: a vision-language model of transformers with a rotary decoder is expected (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, "
            f"InternVL, LLaVA), got {type(model).__name__}."
        )
    return inner, text


@dataclass
class Adapter:
    """What the hooks of one model share; nothing in it changes in a forward.

    Attributes:
        schemes: the different schemes of layers, mostly one.
        owner: which of them each layer has.
        rotaries: one for each scheme.
    """

    setup: Setup
    reader: Reader
    schemes: list[Scheme]
    owner: list[int]
    rotaries: list[SequenceRotary]

    @classmethod
    def of(cls, inner: nn.Module, text: nn.Module, setup: Setup) -> Adapter:
        scheme = create_scheme(setup.encoding, **setup.encoding_kwargs)
        layers = [scheme.for_layer(i, len(text.layers)) for i in range(len(text.layers))]
        schemes = list(dict.fromkeys(layers))
        rotaries = [rotary_of(inner.config, text.config, s, setup) for s in schemes]
        return cls(setup, reader_of(inner.config, setup.image_grid), schemes, [schemes.index(s) for s in layers], rotaries)

    @property
    def rows(self) -> int:
        """Rows of ids of all schemes."""
        return sum(s.axes for s in self.schemes)

    @property
    def by_count(self) -> bool:
        return all(type(s) in (Line, V2PE, TadRope) for s in self.schemes)

    def split(self, ids: Tensor) -> list[Tensor]:
        """Rows (R, B, S) of every scheme."""
        return list(ids.split([s.axes for s in self.schemes]))

    def read(self, call: dict[str, Any], valid: Tensor) -> list[list[Segment]]:
        rows = self.reader.rows(call, valid=valid, by_count=self.by_count)
        if isinstance(self.schemes[0], RopeDHR):
            for i, row in enumerate(rows):
                if any(isinstance(s, Tiles) for s in row):
                    raise ValueError(
                        f"positions: row {i} has an image of several tiles; {self.setup.encoding!r} must know how they lie; "
                        f"give segments with Tiles to `place`, and pass the position_ids that it makes."
                    )
        return rows

    def place(
        self,
        rows: Sequence[Sequence[Segment]],
        valid: Tensor,
        *,
        starts: Tensor | None = None,
        counts: Tensor | None = None,
        rates: Sequence[Sequence[float]] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The slot (1 + R, B, S): count of tokens, then ids; its attribute `next_ids` (schemes, B) says where to go on.

        Args:
            valid: (B, S) bool.
            starts: (schemes, B) float64, next ids of what a cache holds.
            counts: (B,) tokens that it holds.
        """
        float_ids = any(s.floating for s in self.schemes)
        slot = torch.zeros(1 + self.rows, *valid.shape, dtype=torch.float32 if float_ids else torch.int64)
        count = valid.cumsum(-1) - 1 + (0 if counts is None else counts[:, None])
        slot[0] = count.masked_fill(~valid, 0)
        following = torch.zeros(len(self.schemes), len(rows), dtype=torch.float64)
        state = None if generator is None else generator.get_state()
        first = 1
        for s, scheme in enumerate(self.schemes):
            if state is not None:
                generator.set_state(state)  # all layers draw alike
            slot[first : first + scheme.axes] = scheme.pad
            for b, row in enumerate(rows):
                start = 0.0 if starts is None else float(starts[s, b])
                own = None if rates is None else rates[b]
                ids, following[s, b] = build_ids(row, scheme, start=start, rates=own, generator=generator, row=b)
                if ids.shape[1] != int(valid[b].sum()):
                    raise ValueError(f"place: row {b} has {int(valid[b].sum())} tokens, its segments {ids.shape[1]}.")
                slot[first : first + scheme.axes, b, valid[b]] = ids.to(slot.dtype)
            first += scheme.axes
        slot.next_ids = following
        return slot


def rotary_of(config: Any, text: Any, scheme: Scheme, setup: Setup) -> SequenceRotary:
    """The rotary of a decoder under a scheme."""
    told = dict(text.rope_parameters)
    if "rope_theta" not in told or told.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"swap: a decoder that turns all channels of all layers by one base is expected, got {told}.")
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    rule = setup.allocation or scheme.allocation
    sections = setup.sections
    if sections is None and rule == GRIDS.get(config.model_type):
        sections = told.get("mrope_section")
    told |= {"max_position_embeddings": text.max_position_embeddings}
    return SequenceRotary(
        head_dim=head_dim, scheme=scheme, allocation=setup.allocation, sections=sections, theta=told["rope_theta"],
        kv_heads=text.num_key_value_heads if rule == "heads" else None, scaling=scaling_of(told),
    )  # fmt: skip


def reader_of(config: Any, image_grid: tuple[int, int] | None) -> Reader:
    """How the model of a configuration writes images into its sequences."""
    image, video = getattr(config, "image_token_id", None), getattr(config, "video_token_id", None)
    vision, kind = config.vision_config, config.model_type
    if kind in GRIDS:
        return Reader(image, video, "frames" if kind == "qwen3_vl" else "grids", vision.spatial_merge_size)
    if config.text_config.model_type not in DECODERS:
        raise ValueError(
            f"swap: no adapter for {kind!r} with a decoder {config.text_config.model_type!r}; there are {tuple(GRIDS)}, and "
            f"models of one id a token with a decoder of {DECODERS}."
        )
    if image_grid is not None and (len(image_grid) != 2 or min(image_grid) < 1):
        raise ValueError(f"swap: image_grid is (rows, columns) of an image in tokens, got {image_grid}.")
    if image_grid is None and kind in ("internvl", "llava") and hasattr(vision, "image_size"):
        sides = [_pair(vision.image_size), _pair(vision.patch_size)]
        ratio = config.downsample_ratio if kind == "internvl" else 1
        image_grid = tuple(int(n // p * ratio) for n, p in zip(*sides))
    return Reader(image, None, "tiles" if kind == "internvl" else "images", 1, image_grid)


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


def adapter_of(model: nn.Module, who: str) -> Adapter:
    """The adapter of a swapped model."""
    adapter = getattr(parts(model)[0], "vispe_adapter", None)
    if adapter is None:
        raise ValueError(f"{who}: this {type(model).__name__} was not swapped; call vispe.swap(model, 'vrope') first.")
    return adapter


def positions(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    rates: Sequence[Sequence[float]] | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """position_ids and attention_mask of a batch, for a collator; the model makes the same by itself where none are passed.

    Args:
        batch: input_ids, and where there are any: attention_mask, image_grid_thw, video_grid_thw, second_per_grid_ts,
            mm_token_type_ids.
        rates: for each row one number for each visual segment (V2PE's delta, HoPE's scale).
        generator: draws them, as V2PE and HoPE do in training.
    """
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    slot = slot_of(adapter_of(model, "positions"), {**batch, "attention_mask": mask}, 0, tuple(ids.shape), rates=rates,
                   generator=generator)  # fmt: skip
    return {"position_ids": slot, "attention_mask": mask}


def place(model: nn.Module, rows: Sequence[Sequence[Segment]], *, side: Side = "left") -> dict[str, Tensor]:
    """position_ids and attention_mask of rows of segments, where token ids do not tell all (tiles, timestamps, boxes)."""
    if side not in ("left", "right"):
        raise ValueError(f"place: side must be 'left' or 'right', got {side!r}.")
    lengths = torch.tensor([sum(s.length for s in row) for row in rows])
    column = torch.arange(int(lengths.max()))
    valid = column >= (len(column) - lengths)[:, None] if side == "left" else column < lengths[:, None]
    return {"position_ids": adapter_of(model, "place").place(rows, valid), "attention_mask": valid.long()}


def packed(
    model: nn.Module, documents: Sequence[Mapping[str, Tensor]], *, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Arguments of a forward with several documents in one row, which do not see each other.

    Their counts of tokens begin again, by which the model knows them, with a cache or without; grids and pixels follow each
    other.

    Args:
        documents: each the arguments of one row without padding: input_ids (1, S), grids, pixels, ...
    """
    if not documents:
        raise ValueError("packed: needs at least one document.")
    slots = []
    for i, document in enumerate(documents):
        if document["input_ids"].shape[0] != 1 or not document.get("attention_mask", torch.ones(1)).all():
            raise ValueError(f"packed: document {i} must be one row without padding, got {tuple(document['input_ids'].shape)}.")
        slots.append(positions(model, document, generator=generator)["position_ids"])
    along = {"input_ids": 1, "mm_token_type_ids": 1, "labels": 1}
    names = [k for k in dict.fromkeys(k for d in documents for k in d) if k not in ("attention_mask", "position_ids")]
    out = {k: torch.cat([d[k] for d in documents if k in d], dim=along.get(k, 0)) for k in names}
    return {**out, "position_ids": torch.cat(slots, dim=-1), "attention_mask": torch.ones_like(out["input_ids"])}


def save(model: nn.Module, folder: str | Path, **save_pretrained: Any) -> None:
    """Write a swapped model as `save_pretrained` does, and `vispe.json` beside."""
    told = {"model": type(model).__name__, **asdict(adapter_of(model, "save").setup)}
    text = json.dumps(told, indent=2)  # an option that is no plain value fails here, ahead of any file
    model.save_pretrained(folder, **save_pretrained)
    (Path(folder) / FILE).write_text(text + "\n")


def load(folder: str | Path, **from_pretrained: Any) -> nn.Module:
    """A model that `save` wrote, through `from_pretrained`, and swapped again."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"load: {folder} has no {FILE}; `save` writes it. Other folders go to from_pretrained.")
    told = json.loads(path.read_text())
    cls = getattr(transformers, told.pop("model"), None)
    if cls is None:
        raise ValueError(f"load: {path} is of a class that transformers {transformers.__version__} does not have.")
    return swap(cls.from_pretrained(folder, **from_pretrained), into="model", **plain_options(told))


def plain_options(told: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where options of schemes have tuples."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in told["encoding_kwargs"].items()}
    return {**told, "encoding_kwargs": options}
