"""Attention processors of each class of models, in the place of diffusers' own: the same projections, norms and outputs.

`__call__` names its arguments, since diffusers drops those that it does not find in the signature.
"""

from __future__ import annotations

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor2_0, JointAttnProcessor2_0
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from diffusers.models.transformers.transformer_lumina2 import Lumina2AttnProcessor2_0
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from torch import Tensor, nn

from .attention import Placed, Processor, heads, joint_qkv, normed, project


class FluxProcessor(Processor):
    stock = FluxAttnProcessor

    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
        vispe: Placed | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = joint_qkv(attn, hidden_states, encoder_hidden_states, attn.head_dim)

        def turn(x: Tensor) -> Tensor:
            return apply_rotary_emb(x, image_rotary_emb, sequence_dim=2)

        o = self.attend(q, k, v, vispe, turn=None if image_rotary_emb is None else turn, mask=attention_mask)
        if encoder_hidden_states is None:  # single-stream blocks project the output themselves
            return o
        text = encoder_hidden_states.shape[1]
        image = attn.to_out[1](attn.to_out[0](o[:, text:].contiguous()))
        return image, attn.to_add_out(o[:, :text].contiguous())


class SD3Processor(Processor):
    stock = JointAttnProcessor2_0

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        vispe: Placed | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        width = attn.to_q.out_features // attn.heads
        q, k, v = joint_qkv(attn, hidden_states, encoder_hidden_states, width)
        o = self.attend(q, k, v, vispe, mask=attention_mask)
        text = 0 if encoder_hidden_states is None else encoder_hidden_states.shape[1]
        image = attn.to_out[1](attn.to_out[0](o[:, text:]))
        if encoder_hidden_states is None:
            return image
        words = o[:, :text]  # the last block does not use them
        return image, words if attn.context_pre_only else attn.to_add_out(words)


class SelfProcessor(Processor):
    """Self-attention of DiT and PixArt."""

    stock = AttnProcessor2_0

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        vispe: Placed | None = None,
    ) -> Tensor:
        if attention_mask is not None:
            count = hidden_states.shape[1]
            attention_mask = attn.prepare_attention_mask(attention_mask, count, hidden_states.shape[0])
            attention_mask = attention_mask.unflatten(0, (-1, attn.heads))
        q, k, v = (heads(x, attn.to_q.out_features // attn.heads) for x in project(attn, hidden_states))
        q, k = normed(q, k, attn.norm_q, attn.norm_k)
        o = attn.to_out[1](attn.to_out[0](self.attend(q, k, v, vispe, mask=attention_mask)))
        return (o + hidden_states if attn.residual_connection else o) / attn.rescale_output_factor


class CrossProcessor(AttnProcessor2_0):
    """The stock processor of a cross-attention, which takes no notice of positions: they would be refused with a warning."""

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        vispe: Placed | None = None,
    ) -> Tensor:
        return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, temb)


class Lumina2Processor(Processor):
    stock = Lumina2AttnProcessor2_0

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Placed | None = None,
    ) -> Tensor:
        width = attn.to_q.out_features // attn.heads
        q, k, v = (heads(x, width) for x in project(attn, hidden_states))
        dtype = q.dtype
        q, k = normed(q, k, attn.norm_q, attn.norm_k)
        repeats = attn.heads // k.shape[2]  # keys of fewer heads, before an encoding that differs from head to head
        k, v = k.repeat_interleave(repeats, dim=2), v.repeat_interleave(repeats, dim=2)
        table = image_rotary_emb.table if isinstance(image_rotary_emb, Placed) else None

        def turn(x: Tensor) -> Tensor:
            return apply_rotary_emb(x.transpose(1, 2), table, use_real=False).transpose(1, 2).to(dtype)

        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        o = self.attend(q.to(dtype), k.to(dtype), v, image_rotary_emb, turn=turn, mask=mask, scale=attn.scale)
        return attn.to_out[1](attn.to_out[0](o))


class WanProcessor(Processor):
    stock = WanAttnProcessor

    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Placed | None = None,
    ) -> Tensor:
        q, k, v = project(attn, hidden_states)
        q, k = attn.norm_q(q), attn.norm_k(k)
        q, k, v = (heads(x, attn.inner_dim // attn.heads) for x in (q, k, v))

        def turn(x: Tensor) -> Tensor:
            cos, sin = (t.transpose(1, 2)[..., ::2] for t in rotary_emb.table)  # (1, 1, N, D / 2)
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).type_as(x)

        o = self.attend(q, k, v, rotary_emb, turn=turn, mask=attention_mask)
        return attn.to_out[1](attn.to_out[0](o))
