"""KP-RPE: a relative bias that depends on where a patch lies from the key points of its image.

    logit_ij += T_i[bucket(i − j)],   T_i = W (centre_i − P_1, ..., centre_i − P_K) + b

Paper: Kim et al., KeyPoint Relative Position Encoding for Face Recognition, CVPR 2024, arXiv 2403.14852. Code:
mk-minchul/CVLface at d3d09c9, vit_kprpe. Buckets are iRPE's "product" ones at ratio 1.9. Differences x before y, in
fractions of the image; no gradient flows to the key points; W and b start at zero. The bias is neither multiplied by
the query nor divided by √d (the paper's equation 5 divides). Official `ctx_type`: heads="split" and per_layer (default,
rel_keypoint_splithead_unshared); heads="shared" drops "splithead", per_layer=False drops "unshared", network="mlp" is
"_v2" (in rel_keypoint_unshared_v2 one first layer serves all layers; here each has its own, and weights load by
copying). `keypoint`, a constant in the released code, is left out.
Chosen here: any grid (official: square), exactly `num_keypoints` points (official: more are cut silently), 0 for pairs
with prefix tokens, dropped tokens and cross-attention. Layers are computed in one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..positions import Positions
from .base import Card, Encoding, at_least_float32
from .irpe import bucket_ids, table_size


@dataclass(frozen=True)
class KeypointContext:
    """Cells, the features T (B, H or 1, N, buckets) of one layer, and the bucket ids (1 or B, N, N) of a side with itself."""

    coords: Tensor
    prefix: int
    features: Tensor
    ids: Tensor


def relative_keypoints(pos: Positions) -> Tensor:
    """Patch centre minus key point, (B, N, 2K) in fractions of the image: x and y of the first point, of the second, ..."""
    centres = pos.to("unit", "rescale").flip(-1)  # (1 or B, N, 2), x first
    delta = centres[:, :, None] - pos.keypoints.flip(-1)[:, None]  # (B, N, K, 2)
    return delta.flatten(2).detach()


class KPRPE(Encoding):
    """Key-point conditioned relative bias.

    Args:
        num_keypoints: K, points of each image.
        heads: "split" (a bias a head) or "shared".
        per_layer: a network for each layer, or one for all.
        network: "linear", or "mlp" (2K → 256, ReLU, LayerNorm → buckets).
        method, ratio: iRPE's buckets ("cross" excepted).

    Attributes:
        fc: (2K or 256 → heads · buckets), head-major rows.
        first, norm: first layer and norm of the mlp.
    """

    card = Card(
        title="KP-RPE",
        family="bias",
        axes=(2,),
        injection=("bias",),
        formula="q_i·k_j + (W (i - keypoints))[bucket(i-j)]",
        needs=("grid", "keypoints"),
        paper="https://arxiv.org/abs/2403.14852",
        year=2024,
        code="mk-minchul/CVLface",
        licence="MIT",
        cases=7,
    )
    neutral_zeros = ("fc",)

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        axes: int = 2,
        num_keypoints: int = 5,
        heads: Literal["split", "shared"] = "split",
        per_layer: bool = True,
        network: Literal["linear", "mlp"] = "linear",
        method: Literal["product", "euclidean", "quant"] = "product",
        ratio: float = 1.9,
    ) -> None:
        super().__init__(dim=dim, num_heads=num_heads, axes=axes)
        for option, value, known in (
            ("heads", heads, ("split", "shared")), ("network", network, ("linear", "mlp")),
            ("method", method, ("product", "euclidean", "quant")),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"kprpe: {option} must be one of {known}, got {value!r}.")
        if num_keypoints < 1:
            raise ValueError(f"kprpe: needs at least one key point, got num_keypoints={num_keypoints}.")
        self.num_keypoints, self.per_layer, self.method, self.ratio = num_keypoints, per_layer, method, ratio
        self.buckets = table_size(method, ratio)
        width = 2 * num_keypoints if network == "linear" else 256
        self.first = nn.Linear(2 * num_keypoints, 256) if network == "mlp" else None
        self.norm = nn.LayerNorm(256) if network == "mlp" else None
        self.fc = nn.Linear(width, self.buckets * (num_heads if heads == "split" else 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)
        for layer in (self.first, self.norm):
            if layer is not None:
                layer.reset_parameters()

    @classmethod
    def prepare_layers(cls, layers: Sequence[KPRPE], pos: Positions) -> list[KeypointContext]:
        one = layers[0]
        one.check_positions(pos)
        delta = relative_keypoints(pos)
        features = _features(layers, delta.to(at_least_float32(one.fc.weight.dtype)))
        ids = bucket_ids(pos.coords, pos.coords, one.method, one.ratio)[0]
        return [KeypointContext(pos.coords, pos.prefix, f, ids) for f in features]

    def prepare(self, pos: Positions) -> KeypointContext:
        return self.prepare_layers([self], pos)[0]

    def check_positions(self, pos: Positions) -> None:
        """Refuse positions without a grid or without the right number of key points."""
        self.check_axes(pos)
        if pos.units == "custom" or pos.extent is None:
            raise ValueError(
                "kprpe: needs grid positions (patch_grid), whose cells have centres in the image, got custom coordinates."
            )
        points = getattr(pos, "keypoints", None)
        if points is None:
            raise ValueError("kprpe: these positions carry no key points; add them with with_keypoints(pos, keypoints).")
        if points.shape[1] != self.num_keypoints:
            raise ValueError(
                f"kprpe: made for {self.num_keypoints} key points, got {points.shape[1]}; choose the right ones, or create it "
                f"with num_keypoints={points.shape[1]}."
            )

    def bias(self, q: Tensor, k: Tensor, ctx_q: KeypointContext, ctx_k: KeypointContext) -> Tensor:
        ids = ctx_q.ids if ctx_q is ctx_k else bucket_ids(ctx_q.coords, ctx_k.coords, self.method, self.ratio)[0]
        features = ctx_q.features
        batch = max(ids.shape[0], features.shape[0])
        ids = ids[:, None].expand(batch, features.shape[1], -1, -1)
        return F.pad(features.expand(batch, -1, -1, -1).gather(-1, ids), (ctx_k.prefix, 0, ctx_q.prefix, 0))


def _features(layers: Sequence[KPRPE], delta: Tensor) -> list[Tensor]:
    """T of every layer, (B, H or 1, N, buckets): one product when the networks are linear."""
    if layers[0].first is None:
        weight, bias = (torch.cat([getattr(layer.fc, n) for layer in layers]).to(delta.dtype) for n in ("weight", "bias"))
        parts = F.linear(delta, weight, bias).chunk(len(layers), dim=-1)
    else:
        parts = [_mlp(layer, delta) for layer in layers]
    return [t.unflatten(-1, (-1, layers[0].buckets)).transpose(1, 2) for t in parts]


def _mlp(layer: KPRPE, x: Tensor) -> Tensor:
    x = F.linear(x, layer.first.weight.to(x.dtype), layer.first.bias.to(x.dtype)).relu()
    x = F.layer_norm(x, x.shape[-1:], layer.norm.weight.to(x.dtype), layer.norm.bias.to(x.dtype), layer.norm.eps)
    return F.linear(x, layer.fc.weight.to(x.dtype), layer.fc.bias.to(x.dtype))
