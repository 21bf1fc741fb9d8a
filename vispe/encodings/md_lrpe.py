"""MD-LRPE: the linearized relative encoding on several axes, in its cosine and its rotation form.

    cosine:  q' = [q cos Θ, q sin Θ] (2d channels),  Θ = concat_a(x_a · θ)[:d];  then q'·k' = Σ_i q_i k_i cos(Θ_q,i − Θ_k,i)
    rotate:  channel pairs (2i, 2i+1) turn, d / (2 axes) pairs an axis; every axis has the same θ

Paper: Qin et al., LightNet, 2024, arXiv 2405.21022; LRPE: Qin et al., TMLR 2023, arXiv 2307.09270. Code:
Doraemonzzz/xopes at 1dfa3df, xmixers at a3e8681 (LightNet's own repository is gone). θ_j = base^(−2j/(H·d)) runs on
over the heads in the older code ("heads"), and starts again in each ("head") in the newer. Prefix tokens: [q, 0], or
not rotated.
Chosen here: cosine form with learned θ, as in that code; `learn_theta=False` keeps it. The queries and keys are twice
as wide, at the scale of the unchanged width; no weight decay.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..positions import Resize
from .base import Card
from .extrapolation import Series
from .rotary import Rotary, Rotation, positive, split_pairs


class MdLrpe(Rotary):
    """Cosine or rotary positions with frequencies that all axes share.

    Args:
        form: "cosine" doubles the channels of q and k, "rotate" turns pairs.
        base: base of the frequencies, in units of one patch.
        spread: frequencies run on from head to head ("heads") or are the same in each ("head").
        learn_theta: frequencies are parameters, one set a layer.
        resize: see RopeAxial.

    Attributes:
        theta: (H, e) radians per patch, e = ⌈d / axes⌉ (cosine) or d / (2 axes) (rotate); None when not learned.
    """

    card = Card(
        title="MD-LRPE",
        family="rotary",
        axes=(1, 2, 3),
        injection=("qk",),
        formula="[q cos Θ, q sin Θ], Θ = concat_a x_a θ",
        paper="https://arxiv.org/abs/2405.21022",
        year=2024,
        code="Doraemonzzz/xopes",
        licence="Apache-2.0 (setup.py)",
        cases=2,
        relative=True,
    )
    no_decay = ("theta",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        form: Literal["cosine", "rotate"] = "cosine",
        base: float = 10000.0,
        spread: Literal["heads", "head"] = "heads",
        learn_theta: bool = True,
        resize: Resize | None = None,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes, resize=resize)
        if form not in ("cosine", "rotate") or spread not in ("heads", "head"):
            raise ValueError(
                f"md_lrpe: form must be 'cosine' or 'rotate' and spread 'heads' or 'head', got {form!r} and {spread!r}."
            )
        self.form, self.spread, self.base = form, spread, positive("md_lrpe", "base", base)
        self.per_axis = -(-self.head_dim // axes) if form == "cosine" else split_pairs("md_lrpe", self.head_dim, axes)
        self.per_layer = learn_theta
        self.theta = nn.Parameter(torch.empty(num_heads, self.per_axis)) if learn_theta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.theta is not None:
            with torch.no_grad():
                self.theta.copy_(self.initial_theta())

    @torch.no_grad()
    def set_identity(self) -> bool:
        if self.theta is None or self.form == "cosine":  # the cosine is flat at 0: no gradient would lead away
            return False
        nn.init.zeros_(self.theta)
        return True

    def initial_theta(self) -> Tensor:
        """(H, e) float32: the leading frequencies of each head."""
        own = self.head_dim if self.form == "cosine" else self.head_dim // 2  # frequencies of a head on one axis
        place = torch.arange(self.per_axis, dtype=torch.float32).expand(self.num_heads, -1)
        if self.spread == "head":
            return self.base ** (-2 / self.head_dim * place)
        return self.base ** (-2 / self.dim * (place + own * torch.arange(self.num_heads)[:, None]))

    def frequencies(self) -> Tensor:
        theta = self.initial_theta() if self.theta is None else self.theta.float()
        axis = torch.eye(self.axes, device=theta.device)[..., None]
        freqs = (theta[:, None, None] * axis).flatten(-2)  # (H, axes, axes · e)
        return freqs[..., : self.head_dim] if self.form == "cosine" else freqs

    def series(self) -> tuple[Series, ...] | None:
        if self.theta is not None:
            return None
        wide = self.head_dim if self.spread == "head" else self.dim
        series = Series(self.base**2, wide) if self.form == "cosine" else Series(self.base, wide // 2)
        return (series,) * self.axes

    def qk(self, q: Tensor, k: Tensor, ctx_q: Rotation, ctx_k: Rotation) -> tuple[Tensor, Tensor]:
        if self.form == "rotate":
            return super().qk(q, k, ctx_q, ctx_k)
        return ctx_q.weigh(cosine(q, ctx_q)), ctx_k.weigh(cosine(k, ctx_k))


def cosine(x: Tensor, ctx: Rotation) -> Tensor:
    """[x cos, x sin], (B, H, N, 2D) in x's dtype."""
    return torch.cat((x * ctx.cos, x * ctx.sin), dim=-1).type_as(x)
