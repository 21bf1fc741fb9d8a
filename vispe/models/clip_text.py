"""Text towers of open_clip with rotary positions (TULIP) or a stretched table (Long-CLIP), for captions beyond 77 tokens.

    model = open_clip.create_model("ViT-B-32")
    clip_text.rotate_text(model)                  # or clip_text.stretch_text(model)
    features = model.encode_text(clip_text.tokenize(captions, 248))

TULIP: Najdenkoska et al., ICLR 2025, arXiv 2410.10034; code ivonajdenkoska/tulip at 132c174. Queries and keys of every layer
turn by p · 10000^(−2i/D) on channel pairs (2i, 2i+1), and no table is added. Its student uses GELU where OpenAI's teacher
uses QuickGELU; here the tower keeps its own activation. Long-CLIP: Zhang et al., ECCV 2024, arXiv 2403.15378; code
beichenzbc/Long-CLIP at 3966af9.
Both change a tower in place without touching open_clip: attention layers get a subclass, and every other parameter keeps its
name and value. Tokens beyond the context are refused, never cut off.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..encodings import create_encoding
from ..encodings.base import Encoding
from ..layers import attend
from ..positions import full_grid

try:
    from open_clip.transformer import Attention as ClipAttention
except ImportError as error:
    raise ImportError("vispe.models.clip_text needs open_clip: pip install 'vispe[clip]'") from error


def rotate_text(
    model: nn.Module, *, context_length: int = 248, encoding: str = "rope_axial", options: dict[str, Any] | None = None
) -> nn.Module:
    """TULIP's text tower, in place: rotary positions in every layer instead of the learned table.

    Args:
        model: open_clip's CLIP, CustomTextCLIP or TextTransformer.
        context_length: most tokens of a text; shorter ones need no padding.
        encoding, options: any encoding with one axis that acts on queries, keys, values or logits. The default with
            options=None is TULIP's (theta 10000); the table is then no part of the state dict any more.

    Returns:
        The same model.

    Raises:
        ValueError: a tower without a table, with an appended class token, or that was rotated before.
    """
    tower = text_tower(model)
    if getattr(tower, "cls_emb", None) is not None:
        raise ValueError("rotate_text: towers with an appended class token (CoCa) are not supported; use an argmax-pooled one.")
    if context_length < 1:
        raise ValueError(f"rotate_text: context_length must be at least 1 token, got {context_length}.")
    table = tower.positional_embedding
    if not isinstance(table, nn.Parameter):
        raise ValueError("rotate_text: this tower has no learned table any more; it was rotated or stretched before.")
    for block in tower.transformer.resblocks:
        _turn(block.attn, encoding, {"theta": 10000.0} if options is None and encoding == "rope_axial" else options or {})
    del tower.positional_embedding
    tower.register_buffer("positional_embedding", torch.zeros_like(table[:1]), persistent=False)  # open_clip adds it always
    _set_context(model, tower, context_length)
    return model


def stretch_text(model: nn.Module, *, keep: int = 20, ratio: int = 4, freeze_kept: bool = True) -> nn.Module:
    """Long-CLIP's text tower, in place: the table stretched (see `stretch_table`), 77 rows to 248.

    Args:
        freeze_kept: train the stretched rows only, as in Long-CLIP; `torch.nn.utils.parametrize.remove_parametrizations(
            tower, "positional_embedding")` makes one plain table of it again, for saving or for training everything.

    Returns:
        The same model; as in open_clip, texts come padded to the context.
    """
    tower = text_tower(model)
    table = tower.positional_embedding
    if not isinstance(table, nn.Parameter):
        raise ValueError("stretch_text: this tower has no learned table any more; it was rotated or stretched before.")
    with torch.no_grad():
        longer = stretch_table(table, keep=keep, ratio=ratio)
    tower.positional_embedding = nn.Parameter(longer.clone(), requires_grad=table.requires_grad)
    if freeze_kept:
        parametrize.register_parametrization(tower, "positional_embedding", FrozenRows(longer[:keep]), unsafe=True)
    _set_context(model, tower, longer.shape[0])
    return model


def stretch_table(table: Tensor, *, keep: int = 20, ratio: int = 4) -> Tensor:
    """Long-CLIP's knowledge-preserved stretching: (n, C) to (keep + ratio · (n − keep), C), 77 rows to 248.

    The first `keep` rows stay. Row keep + ratio · j is the old row keep + j, the ones between are linear interpolations, and
    the last ratio − 1 go on beyond the table at the pace of its last two rows.
    """
    if table.ndim != 2 or not 0 <= keep < table.shape[0] - 1 or ratio < 1:
        raise ValueError(
            f"stretch_table: needs a table (rows, channels) with at least keep + 2 rows and ratio >= 1, got "
            f"{tuple(table.shape)}, keep={keep}, ratio={ratio}."
        )
    old = table[keep:]
    step = torch.cat((old[1:] - old[:-1], old[-1:] - old[-2:-1]))  # (n - keep, C)
    share = torch.arange(ratio, device=table.device, dtype=table.dtype) / ratio
    return torch.cat((table[:keep], (old[:, None] + share[:, None] * step[:, None]).flatten(0, 1)))


class FrozenRows(nn.Module):
    """Parametrization of a table whose first rows are a buffer and whose others are trained."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows.clone())

    def forward(self, trained: Tensor) -> Tensor:
        return torch.cat((self.rows.to(trained.dtype), trained))

    def right_inverse(self, table: Tensor) -> Tensor:
        return table[self.rows.shape[0] :]


def text_tower(model: nn.Module) -> nn.Module:
    """The module that holds the text's table, mask and blocks: `model.text`, or a CLIP that has them in itself."""
    for place in (getattr(model, "text", None), model):
        if hasattr(place, "token_embedding") and hasattr(place, "positional_embedding") and hasattr(place, "transformer"):
            if hasattr(place.transformer, "resblocks"):
                return place
    raise ValueError(
        f"clip_text: {type(model).__name__} has no open_clip text transformer; expected CLIP, CustomTextCLIP (not with a "
        f"Hugging Face text model) or TextTransformer."
    )


def tokenize(texts: str | list[str], context_length: int = 77, *, tokenizer: Any = None) -> Tensor:
    """Token ids (texts, context_length) int64, padded with 0; texts that do not fit are refused.

    Args:
        tokenizer: of open_clip, with `encode`, `sot_token_id` and `eot_token_id`; None takes CLIP's own vocabulary.

    Raises:
        ValueError: the text that is too long, by number, its tokens, and what would be cut off.
    """
    if tokenizer is None:
        from open_clip.tokenizer import _tokenizer as tokenizer  # the vocabulary inside open_clip's wheel
    if not all(hasattr(tokenizer, name) for name in ("encode", "sot_token_id", "eot_token_id")):
        raise ValueError(
            f"tokenize: {type(tokenizer).__name__} does not say where a text begins and ends (encode, sot_token_id, "
            f"eot_token_id); pass a SimpleTokenizer of open_clip."
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    ids = torch.zeros(len(texts), context_length, dtype=torch.long)
    for row, text in enumerate(texts):
        tokens = [tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id]
        if len(tokens) > context_length:
            rest = tokenizer.decode(tokens[context_length - 1 : -1]) if hasattr(tokenizer, "decode") else "..."
            raise ValueError(
                f"tokenize: text {row} has {len(tokens)} tokens with start and end, the context is {context_length}; "
                f"{rest[:80]!r} would be lost. Shorten it, or use a tower with a longer context (rotate_text, stretch_text)."
            )
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return ids


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """TULIP's first stage: the mean over texts of 1 − cosine of the features (B, C); the teacher gets no gradient."""
    return (1 - F.cosine_similarity(student.float(), teacher.detach().float(), dim=-1)).mean()


def student_of(teacher: nn.Module, *, context_length: int = 248) -> nn.Module:
    """A rotary copy of a text tower to be distilled from it; its token embedding is frozen, as in TULIP."""
    student = rotate_text(copy.deepcopy(text_tower(teacher)), context_length=context_length)
    student.requires_grad_(True)
    student.token_embedding.requires_grad_(False)
    return student


# ---- attention ------------------------------------------------------------------------------------------------------


class RotaryText:
    """What the attention layers of a rotated tower have in common. `positions` is their encoding."""

    positions: Encoding
    context: int

    def attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, drop: float) -> Tensor:
        """q, k, v (B, L, C) to (B, H, L, D)."""
        batch, length, _ = q.shape
        if length > self.context:
            raise ValueError(
                f"text of {length} tokens: longer than the context of {self.context} tokens of this tower; shorten it, or "
                f"rotate the tower with a larger context_length."
            )
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))  # (B, H, L, D)
        if mask is not None:
            mask = mask.reshape(batch, self.num_heads, *mask.shape[1:]) if mask.ndim == 3 else mask
            mask = mask[..., :length, :length]
            mask = ~mask if mask.dtype == torch.bool else mask  # open_clip: true hides
        with torch.autocast(q.device.type, enabled=False):
            ctx = self.positions.prepare(full_grid((length,), device=q.device))
        dropout = nn.Dropout(drop).train(self.training)
        return attend(q, k, v, self.positions, ctx, ctx, scale=scale, mask=mask, drop=dropout)


class RotaryMultihead(RotaryText, nn.MultiheadAttention):
    """torch's MultiheadAttention in self-attention, with positions; same parameters."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if key is not query or value is not query or key_padding_mask is not None or need_weights:
            raise ValueError("RotaryMultihead: self-attention without padding mask or returned weights only.")
        x = query if self.batch_first else query.transpose(0, 1)
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        o = self.attended(q, k, v, attn_mask, scale=self.head_dim**-0.5, drop=self.dropout)
        o = self.out_proj(o.transpose(1, 2).flatten(2))
        return (o if self.batch_first else o.transpose(0, 1)), None


class RotaryClipAttention(RotaryText, ClipAttention):
    """open_clip's Attention (its block_type="custom") with positions; same parameters."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k = (norm(t.unflatten(-1, (self.num_heads, -1))) for norm, t in ((self.ln_q, q), (self.ln_k, k)))
        scale = self.scale
        if self.logit_scale is not None:  # cosine attention, which open_clip 3.3 cannot run
            q, k, scale = F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.0
            q = q * self.logit_scale.clamp(max=self.logit_scale_max).exp().view(-1, 1)
        o = self.attended(q.flatten(2), k.flatten(2), v, attn_mask, scale=scale, drop=self.attn_drop.p)
        if self.head_scale is not None:
            o = o * self.head_scale
        return self.out_drop(self.out_proj(self.ln_inner(o.transpose(1, 2).flatten(2))))


def _turn(attn: nn.Module, encoding: str, options: dict[str, Any]) -> None:
    """Give one attention layer positions."""
    classes = {nn.MultiheadAttention: RotaryMultihead, ClipAttention: RotaryClipAttention}
    if type(attn) not in classes:
        known = [c.__name__ for c in classes]
        raise ValueError(f"rotate_text: cannot put positions into {type(attn).__name__}; expected one of {known}.")
    weight = attn.in_proj_weight
    positions = create_encoding(encoding, dim=weight.shape[1], num_heads=attn.num_heads, axes=1, **options)
    attn.positions = positions.to(weight.device)
    attn.__class__ = classes[type(attn)]


def _set_context(model: nn.Module, tower: nn.Module, length: int) -> None:
    """Every place where open_clip keeps the length, and the causal mask of that length."""
    for module in (model, tower):
        if hasattr(module, "context_length"):
            module.context_length = length
    if hasattr(tower, "num_pos"):
        tower.num_pos = length
    for block in tower.transformer.resblocks:
        if isinstance(block.attn, RotaryText):
            block.attn.context = length
    if tower.attn_mask is not None:
        mask = torch.full((length, length), float("-inf"), device=tower.attn_mask.device).triu_(1)
        tower.attn_mask = mask.to(tower.attn_mask.dtype)
