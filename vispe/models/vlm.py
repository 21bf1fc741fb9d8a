"""A small vision-language model: a vision tower of vispe, a projector, and a decoder with any scheme of position ids.

    model = VisionLanguageModel(64, scheme="vrope", vision="vit_ti_rope_axial", vision_kwargs={"patch_size": 8, "depth": 2})
    batch = Sequences(rows=((Text(1), Image(4, 4), Text(3)),), text=(ids,), pictures=((image,),))
    logits = model(batch)                                # (B, S, vocabulary), rows padded on the left
    answer = model.generate(batch, max_new_tokens=4)     # greedy, with a cache

Where tokens are comes from segments and the scheme alone (`vispe.positions.sequence`); schemes that differ by layer (PyPE,
Circle-RoPE) and those with a mask of their own (CCA, MCA, PyPE) are served as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.rope_sequence import SequenceRotary
from ..encodings.rotary import Rotation
from ..positions.schemes import Scheme, create_scheme
from ..positions.segments import Text
from ..positions.sequence import SequenceBatch, Side, build_ids
from .saved import SavedModel, arguments
from .vlm_parts import (
    DecoderBlock,
    LayerCache,
    Sequences,
    padded_mask,
    picture_of,
    place_tokens,
    row_mask,
)  # fmt: skip
from .vlm_vision import VisionTokens

__all__ = ["Sequences", "VisionLanguageModel"]


class VisionLanguageModel(SavedModel):
    """Pictures and text in one causal sequence.

    Args:
        vocab_size: of the text.
        scheme, scheme_kwargs: a name of `vispe.positions.schemes` and its options.
        vision, vision_kwargs: a vision transformer of vispe in timm, and its arguments.
        vision_window: px of the squares that the tower sees, each by itself; None for whole pictures. With one patch a window
            the decoder alone can tell where in a picture something is.
        merge: side of the square of tokens that become one token of the decoder.
        dim, depth, num_heads, kv_heads, mlp_ratio: of the decoder; kv_heads None for num_heads.
        theta: base of the decoder's frequencies.
        allocation, sections: how rotary pairs read the ids, in the place of the scheme's official rule (see SequenceRotary).
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        scheme: str = "rope1d",
        scheme_kwargs: dict[str, Any] | None = None,
        vision: str = "vit_ti_none",
        vision_kwargs: dict[str, Any] | None = None,
        vision_window: int | None = None,
        merge: int = 1,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        kv_heads: int | None = None,
        mlp_ratio: float = 3.0,
        theta: float = 1e4,
        allocation: str | None = None,
        sections: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.config = arguments(locals())
        kv_heads = num_heads if kv_heads is None else kv_heads
        if min(vocab_size, dim, depth, num_heads, kv_heads, merge) < 1 or dim % num_heads or num_heads % kv_heads:
            raise ValueError(
                f"VisionLanguageModel: sizes start at 1, dim={dim} must be a multiple of num_heads={num_heads} and that of "
                f"kv_heads={kv_heads}; got vocab_size={vocab_size}, depth={depth}, merge={merge}."
            )
        self.rotary = SequenceRotary(
            head_dim=dim // num_heads, scheme=create_scheme(scheme, **(scheme_kwargs or {})), theta=theta, kv_heads=kv_heads,
            allocation=allocation, sections=sections,
        )  # fmt: skip
        self.vision = VisionTokens(vision, dim, vision_kwargs=vision_kwargs, window=vision_window, merge=merge)
        self.embed = nn.Embedding(vocab_size, dim)
        hidden = int(dim * mlp_ratio)
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, num_heads=num_heads, kv_heads=kv_heads, hidden=hidden) for _ in range(depth)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, vocab_size, bias=False)
        for part in (self.vision.projector, self.blocks, self.head):
            part.apply(_init)

    @property
    def scheme(self) -> Scheme:
        return self.rotary.scheme

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that must not be decayed."""
        return {"embed.weight", *(f"vision.tower.{name}" for name in self.vision.tower.no_weight_decay())}

    # pictures and text to embeddings

    def _visual(self, batch: Sequences) -> list[list[Tensor]]:
        """Tokens (n, dim) of every visual segment of every row."""
        places = [(i, s) for i, row in enumerate(batch.rows) for s in row if not isinstance(s, Text)]
        pictures = [p for row in batch.pictures for p in row]
        if not pictures:
            return [[] for _ in batch.rows]
        pictures = [picture_of(i, s, p) for (i, s), p in zip(places, pictures)]
        out: list[list[Tensor]] = [[] for _ in batch.rows]
        for (i, segment), picture, tokens in zip(places, pictures, self.vision(pictures)):
            if tuple(tokens.shape[1:3]) != (segment.height, segment.width):
                raise ValueError(
                    f"VisionLanguageModel: row {i}: the {segment.kind} is {segment.height} x {segment.width} tokens in the "
                    f"segments, its pictures of {tuple(picture.shape[-2:])} px give {tokens.shape[1]} x {tokens.shape[2]}."
                )
            out[i].append(tokens.flatten(0, 2))
        return out

    def embeddings(self, batch: Sequences) -> list[Tensor]:
        """Embeddings of every row's tokens, (S_i, dim)."""
        batch.check()
        words = self.embed(torch.cat(batch.text)).split([len(t) for t in batch.text])
        return place_tokens(batch, words, self._visual(batch), self.embed.embedding_dim)

    # forward

    def forward(
        self,
        batch: Sequences,
        *,
        side: Side = "left",
        rates: Sequence[Sequence[float]] | None = None,
        generator: torch.Generator | None = None,
        last: bool = False,
    ) -> Tensor:
        """Logits of a padded batch.

        Args:
            side: where padding goes.
            rates, generator: of schemes with a rate a visual segment (V2PE, HoPE), see `build_ids`.
            last: only those of each row's last token, as (B, vocabulary).

        Returns:
            (B, S, vocabulary); rows of padding mean nothing.
        """
        x, ctxs, _, masks = self._padded(batch, side, rates, generator)
        x = self._decode(x, ctxs, masks, None)
        if last:
            ends = [-1 if side == "left" else n - 1 for n in batch.lengths]
            x = x[torch.arange(len(ends)), ends]
        return self.head(self.norm(x))

    def forward_packed(
        self, batch: Sequences, *, rates: Sequence[Sequence[float]] | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows one behind the other in one sequence without padding; none sees another, and each counts from 0.

        Returns:
            logits (S, vocabulary) and the row of each token (S,) int64.
        """
        x = torch.cat(self.embeddings(batch))
        layers = [self.scheme.for_layer(i, len(self.blocks)) for i in range(len(self.blocks))]
        state = None if generator is None else generator.get_state()
        made: dict[Scheme, tuple[Rotation, Tensor]] = {}
        for scheme in layers:
            if scheme in made:
                continue
            if state is not None:
                generator.set_state(state)  # every layer draws the same rates
            ids = [
                build_ids(row, scheme, rates=None if rates is None else rates[i], generator=generator, row=i)[0]
                for i, row in enumerate(batch.rows)
            ]
            seen = torch.block_diag(*(row_mask(row, scheme) for row in batch.rows)).bool()
            made[scheme] = self.rotary.prepare(torch.cat(ids, dim=1).to(x.device)), seen[None, None].to(x.device)
        x = self._decode(x[None], [made[s][0] for s in layers], [made[s][1] for s in layers], None)[0]
        owner = torch.arange(len(batch)).repeat_interleave(torch.tensor(batch.lengths))
        return self.head(self.norm(x)), owner.to(x.device)

    def _padded(
        self, batch: Sequences, side: Side, rates: Sequence[Sequence[float]] | None, generator: torch.Generator | None
    ) -> tuple[Tensor, list[Rotation], list[SequenceBatch], list[Tensor]]:
        """Embeddings (B, S, dim), and of every layer the context, the ids and the mask (B or 1, 1, S, S)."""
        rows = self.embeddings(batch)
        longest, depth = max(batch.lengths), len(self.blocks)
        pads = [(0, 0, longest - len(r), 0) if side == "left" else (0, 0, 0, longest - len(r)) for r in rows]
        x = torch.stack([nn.functional.pad(r, pad) for r, pad in zip(rows, pads)])
        ctxs, ids = self.rotary.prepare_rows(
            batch.rows, depth=depth, side=side, rates=rates, generator=generator, device=x.device
        )
        made: dict[Scheme, Tensor] = {}
        layers = [self.scheme.for_layer(i, depth) for i in range(depth)]
        for scheme in layers:
            if scheme not in made:
                made[scheme] = padded_mask(batch, scheme, side).to(x.device)
        return x, ctxs, ids, [made[s] for s in layers]

    def _decode(
        self, x: Tensor, ctxs: Sequence[Rotation], masks: Sequence[Tensor], caches: Sequence[LayerCache] | None
    ) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x, self.rotary, ctxs[i], masks[i], None if caches is None else caches[i])
        return x

    # generation

    @torch.no_grad()
    def generate(
        self,
        batch: Sequences,
        *,
        max_new_tokens: int,
        end: int | None = None,
        rates: Sequence[Sequence[float]] | None = None,
        return_logits: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The most probable continuation of every row, token by token, with a cache.

        A new token's ids are those of a text of one token at the row's next id, so they are what the whole sequence built at
        once would have.

        Args:
            end: a row stops behind this token and is filled up with it; None never stops.
            rates: see forward.

        Returns:
            (B, new) int64, and with `return_logits` the logits (B, new, vocabulary) that each was taken from.
        """
        if max_new_tokens < 1:
            raise ValueError(f"VisionLanguageModel: max_new_tokens must be at least 1, got {max_new_tokens}.")
        x, ctxs, ids, masks = self._padded(batch, "left", rates, None)
        caches = [LayerCache() for _ in self.blocks]
        schemes = [self.scheme.for_layer(i, len(self.blocks)) for i in range(len(self.blocks))]
        nexts = [list(b.next_ids) for b in ids]
        seen = ids[0].mask.to(x.device)
        logits = self.head(self.norm(self._decode(x, ctxs, masks, caches)[:, -1]))
        tokens, found = [], [logits]
        done = torch.zeros(len(batch), dtype=torch.bool, device=x.device)
        while True:
            token = logits.argmax(dim=-1)
            token = token if end is None else torch.where(done, end, token)
            tokens.append(token)
            done |= False if end is None else token == end
            if len(tokens) == max_new_tokens or bool(done.all()):
                break
            seen = torch.cat((seen, torch.ones_like(seen[:, :1])), dim=1)
            ctxs, nexts = self._step(schemes, nexts, x.device)
            x = self._decode(self.embed(token)[:, None], ctxs, [seen[:, None, None]] * len(caches), caches)
            logits = self.head(self.norm(x[:, -1]))
            found.append(logits)
        out = torch.stack(tokens, dim=1)
        return (out, torch.stack(found, dim=1)) if return_logits else out

    def _step(
        self, schemes: Sequence[Scheme], nexts: Sequence[Sequence[float]], device: torch.device
    ) -> tuple[list[Rotation], list[list[float]]]:
        """Contexts of one more text token in every row, and the ids that follow it."""
        made: dict[tuple[Scheme, tuple[float, ...]], tuple[Rotation, list[float]]] = {}
        keys = [(scheme, tuple(starts)) for scheme, starts in zip(schemes, nexts)]
        for scheme, starts in keys:
            if (scheme, starts) not in made:
                built = [build_ids([Text(1)], scheme, start=start, row=i) for i, start in enumerate(starts)]
                one = torch.stack([ids for ids, _ in built], dim=1)  # (axes, B, 1)
                made[scheme, starts] = self.rotary.prepare(one.to(device)), [following for _, following in built]
        return [made[k][0] for k in keys], [made[k][1] for k in keys]

    def grown(self, batch: Sequences, tokens: Tensor) -> Sequences:
        """The batch with tokens (B, n) behind every row: what `generate` saw when it went on from there."""
        rows = tuple((*row, Text(tokens.shape[1])) for row in batch.rows)
        return replace(batch, rows=rows, text=tuple(torch.cat(pair) for pair in zip(batch.text, tokens)))


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
