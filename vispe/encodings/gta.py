"""GTA: queries, keys, values and outputs are moved between the frames of their cameras by block-diagonal matrices.

    o_i = ρ(g_i) Σ_j softmax(q_iᵀ ρ(g_i) ρ(g_j)⁻¹ k_j / √d) ρ(g_j)⁻¹ v_j,   ρ = triv ⊕ SE(3) ⊕ SO(3) ⊕ SO(2) ⊕ T(2)

Paper: Miyato et al., GTA: A Geometry-Aware Attention Mechanism, ICLR 2024, arXiv 2310.10375. Code: autonomousvision/gta at
1dcbd37. g holds world to camera and the token's (row, column) in [0, 1). SE(3) blocks scale translations by c, one learned
number a layer (0.01 at the start, which the paper does not mention). SO(2): angle 2π·max_freq·coordinate·2^(f + 1 − n),
frequencies outside, row and column inside. "euclidean": logits −|q' − k'|² / 2 with SE(3) on homogenised triples.

Different here: poses count from the first camera, in float64 (logits and outputs do not change; half precision far from the
origin does); Wigner matrices in closed form (the official ZYZ angles fail at R₂₂ = −1); configurations without SO(2) or SE(3)
run, and c exists only beside SE(3). Prefix tokens are left alone, which is the pose of the first camera.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding
from .functional import rotate
from .se3 import Views, apply_blocks, invert_rigid, move_frame, scale_translation, views_of, wigner


@dataclass(frozen=True)
class GtaContext:
    """Cameras, (c-scaled) poses and their inverses, Wigner matrices of Rᵀ, and tables of the image coordinates."""

    views: Views
    pose: Tensor
    inverse: Tensor
    turn: Tensor | None  # (B or 1, V, 3 or 8, 3 or 8)
    cos: Tensor  # (B or 1, 1, N, pairs)
    sin: Tensor
    coords: Tensor  # (B or 1, N, 2)


class Gta(Encoding):
    """Geometric transform attention.

    Args:
        triv, se3, so3, so2, t2: channels of a head for each kind of block, in this order; they add up to head_dim. All None:
            half SE(3), half SO(2).
        so3_degree: 1 (blocks of 3) or 2 (blocks of 3 + 5).
        trans_coeff: c at the start.
        learn_trans_coeff: whether it learns.
        max_freq: turns over the image of the top frequency, for rows and for columns.
        shared_freqs: every SO(2) frequency is `max_freq`.
        transforms: "qkvo", or "qk" for plain relative logits.
        similarity: "dot" or "euclidean".
        temperature: "fixed", or "learned": logits divided by one number a layer.
    """

    card = Card(
        title="GTA",
        family="camera",
        axes=(2,),
        injection=("qk", "v", "out"),
        formula="o_i = ρ(g_i) sum_j p_ij ρ(g_j)^-1 v_j",
        needs=("coords", "cameras"),
        paper="https://arxiv.org/abs/2310.10375",
        year=2024,
        code="autonomousvision/gta",
        licence="MIT",
        cases=16,
        relative=True,
    )
    per_layer = True
    no_decay = ("trans_coeff", "tau")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        triv: int | None = None,
        se3: int | None = None,
        so3: int | None = None,
        so2: int | None = None,
        t2: int | None = None,
        so3_degree: int = 2,
        trans_coeff: float = 0.01,
        learn_trans_coeff: bool = True,
        max_freq: tuple[float, float] = (1.0, 1.0),
        shared_freqs: bool = False,
        transforms: Literal["qkvo", "qk"] = "qkvo",
        similarity: Literal["dot", "euclidean"] = "dot",
        temperature: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        sizes = (triv, se3, so3, so2, t2)
        if all(n is None for n in sizes):
            if self.head_dim % 8:
                raise ValueError(
                    f"gta: a head of {self.head_dim} channels is not half SE(3) and half SO(2) blocks of 4; head_dim must be a "
                    f"multiple of 8, or choose the channels of each block (se3=..., so2=..., triv=...)."
                )
            sizes = (0, self.head_dim // 2, 0, self.head_dim // 2, 0)
        _choose("transforms", transforms, ("qkvo", "qk"))
        _choose("similarity", similarity, ("dot", "euclidean"))
        _choose("temperature", temperature, ("fixed", "learned"))
        _choose("so3_degree", so3_degree, (1, 2))
        self.sizes = tuple(n or 0 for n in sizes)
        self.so3_degree, self.max_freq, self.shared_freqs = so3_degree, tuple(max_freq), shared_freqs
        self.transforms, self.similarity, self.start = transforms, similarity, trans_coeff
        _check_sizes(self.sizes, self.head_dim, (1, 3 if similarity == "euclidean" else 4, (3, 8)[so3_degree - 1], 4, 3))
        if self.sizes[1]:
            self.trans_coeff = nn.Parameter(torch.empty(1), requires_grad=learn_trans_coeff)
        if temperature == "learned":
            self.tau = nn.Parameter(torch.empty(1))
        self.learned_tau = temperature == "learned"
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.sizes[1]:
            nn.init.constant_(self.trans_coeff, self.start)
        if self.learned_tau:
            nn.init.ones_(self.tau)

    @classmethod
    def prepare_layers(cls, layers: Sequence[Gta], pos: Positions) -> list[GtaContext]:
        """Cameras and tables once; only the scale of translations differs between layers."""
        first = layers[0]
        views = views_of("gta", pos)
        coords = pos.to("unit", "rescale")
        angle = first.angles(coords)[:, None]
        turn = first.wigner_of(views.pose)
        shared = GtaContext(views, views.pose, views.pose, turn, angle.cos(), angle.sin(), coords)
        return [layer.scaled(shared) for layer in layers]

    def prepare(self, pos: Positions) -> GtaContext:
        return self.prepare_layers([self], pos)[0]

    def angles(self, coords: Tensor) -> Tensor:
        """SO(2) angles (B or 1, N, pairs) of coordinates (B or 1, N, 2)."""
        n = self.sizes[3] // 4
        freqs = torch.ones(n, device=coords.device)
        if not self.shared_freqs:
            freqs = 2.0 ** (torch.arange(n, device=coords.device, dtype=torch.float32) + 1 - n)
        turns = torch.stack([coords[..., a] * self.max_freq[a] for a in (0, 1)], dim=-1)
        return (2 * math.pi * freqs[:, None] * turns[..., None, :]).flatten(-2)

    def wigner_of(self, pose: Tensor) -> Tensor | None:
        if not self.sizes[2]:
            return None
        blocks = wigner(pose[..., :3, :3].mT, self.so3_degree)
        if len(blocks) == 1:
            return blocks[0]
        one, two = blocks
        top = torch.cat((one, one.new_zeros(*one.shape[:-1], 5)), dim=-1)
        return torch.cat((top, torch.cat((two.new_zeros(*two.shape[:-1], 3), two), dim=-1)), dim=-2)

    def scaled(self, ctx: GtaContext) -> GtaContext:
        """The context with this layer's scale of translations."""
        pose = ctx.views.pose
        if self.sizes[1]:
            pose = scale_translation(pose, self.trans_coeff.float())
        return replace(ctx, pose=pose, inverse=invert_rigid(pose))

    def meet(self, ctx_q: GtaContext, ctx_k: GtaContext) -> tuple[GtaContext, GtaContext]:
        if ctx_q.views.frame is ctx_k.views.frame:
            return ctx_q, ctx_k
        views = move_frame(ctx_q.views, ctx_k.views.frame)
        return self.scaled(replace(ctx_q, views=views, turn=self.wigner_of(views.pose))), ctx_k

    def qk(self, q: Tensor, k: Tensor, ctx_q: GtaContext, ctx_k: GtaContext) -> tuple[Tensor, Tensor]:
        ctx_q, ctx_k = self.meet(ctx_q, ctx_k)
        q, k = self.act(q, ctx_q, "q"), self.act(k, ctx_k, "k")
        if self.similarity == "euclidean":  # q·k − |k|²/2, one channel more; |q|²/2 cancels in the softmax
            half = k.float().square().sum(-1, keepdim=True).mul(-0.5).to(k.dtype)
            q, k = torch.cat((q, torch.ones_like(q[..., :1])), dim=-1), torch.cat((k, half), dim=-1)
        if self.learned_tau:
            q = q / self.tau.to(q.dtype)
        return q, k

    def v(self, v: Tensor, ctx_k: GtaContext) -> Tensor:
        return self.act(v, ctx_k, "k") if self.transforms == "qkvo" else v

    def out(self, o: Tensor, ctx_q: GtaContext) -> Tensor:
        return self.act(o, ctx_q, "out") if self.transforms == "qkvo" else o

    def act(self, x: Tensor, ctx: GtaContext, role: Literal["q", "k", "out"]) -> Tensor:
        """Every block on x (B, H, prefix + N, D), in float32 at least, as queries, keys (and values) or output."""
        prefix, dtype = ctx.views.prefix, x.dtype
        with torch.autocast(x.device.type, enabled=False):
            body = (x[:, :, prefix:] if prefix else x).to(torch.promote_types(dtype, torch.float32))
            triv, se3, so3, so2, t2 = body.split(self.sizes, dim=-1)
            parts = [triv, self._se3(se3, ctx, role)]
            if ctx.turn is not None:
                parts.append(apply_blocks(so3, (ctx.turn if role == "out" else ctx.turn.mT).to(so3.dtype), ctx.views))
            if self.sizes[3]:
                parts.append(rotate(so2, ctx.cos.to(so2.dtype), (-ctx.sin if role == "out" else ctx.sin).to(so2.dtype)))
            parts.append(_shift(t2, ctx.coords, role))
            y = torch.cat([p for p in parts if p.shape[-1]], dim=-1).to(dtype)
        return torch.cat((x[:, :, :prefix], y), dim=2) if prefix else y

    def _se3(self, x: Tensor, ctx: GtaContext, role: str) -> Tensor:
        if not self.sizes[1]:
            return x
        pose, inverse = ctx.pose.to(x.dtype), ctx.inverse.to(x.dtype)
        if self.similarity == "dot":
            return apply_blocks(x, {"q": pose, "k": inverse.mT, "out": pose.mT}[role], ctx.views)
        matrix = (pose if role == "out" else inverse).mT
        triples = torch.nn.functional.pad(x.unflatten(-1, (-1, 3)), (0, 1), value=1.0).flatten(-2)
        return apply_blocks(triples, matrix, ctx.views).unflatten(-1, (-1, 4))[..., :3].flatten(-2)


def _shift(x: Tensor, coords: Tensor, role: str) -> Tensor:
    """The T(2) blocks: M = [[1, 0, 0], [0, 1, 0], [h, w, 1]] on keys and values, M⁻ᵀ on queries, M⁻¹ on the output."""
    if not x.shape[-1]:
        return x
    a, b, c = x.unflatten(-1, (-1, 3)).unbind(-1)
    h, w = (t[:, None, :, None].to(x.dtype) for t in coords.unbind(-1))
    if role == "q":
        a, b = a - h * c, b - w * c
    else:
        c = c + (h * a + w * b if role == "k" else -h * a - w * b)
    return torch.stack((a, b, c), dim=-1).flatten(-2)


def _choose(option: str, value: object, among: Sequence[object]) -> None:
    if value not in among:
        raise ValueError(f"gta: {option} must be one of {tuple(among)}, got {value!r}.")


def _check_sizes(sizes: tuple[int, ...], head_dim: int, units: tuple[int, ...]) -> None:
    for name, size, unit in zip(("triv", "se3", "so3", "so2", "t2"), sizes, units):
        if size < 0 or size % unit:
            raise ValueError(f"gta: {name}={size} channels must be a multiple of {unit}, the size of its blocks.")
    if sum(sizes) != head_dim:
        raise ValueError(f"gta: triv, se3, so3, so2 and t2 add up to {sum(sizes)} and must be the head's {head_dim} channels.")
