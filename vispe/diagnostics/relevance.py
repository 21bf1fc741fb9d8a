"""What a prediction owes to the content of each token and to its position: integrated gradients over both.

    R_n = (x_n − x⁰) · ∫ ∂F/∂x_n dλ          P_n = ∫ ∂F/∂a_n dλ

The path of λ from 0 to 1 fades in the patch tokens (from those of the mean colour) together with the encoding: every hook
gives identity + a · (what it does − identity), with an amount a_n of each token that is λ. At 0 the model sees an empty image
without positions, at 1 it is itself, and the relevances sum to the difference of both outputs (completeness), which is checked.
An encoding of any kind gets its share in this way, tables as well as rotations, biases and convolutions.

Source: Sundararajan et al., Axiomatic Attribution for Deep Networks, arXiv 1703.01365; that positions must have a share
of their own: Bakish et al., arXiv 2506.02138. To fade the hooks of an encoding is ours. A bias that masks (LookHere) acts at
any amount above 0, so that no path is smooth there; `error` tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.vit import EncodedVisionTransformer
from ..positions import Positions
from .faded import Faded, fade
from .host import outputs, patches_of


@dataclass(frozen=True)
class Relevance:
    """Of one image.

    Attributes:
        target: the class (None for a model without a classifier).
        content: (H, W) relevance of what each patch shows.
        position: (H, W) relevance of where it is.
        ways: {"tokens", "scores", "bias", "values", "between", "mlp": its sum over all tokens}, of the position's relevance;
            the class token's part, which is in no map, included.
        total: F(image) − F(nothing).
        error: |sum of all relevance − total| / |total|, of the quadrature.
    """

    target: int | None
    content: Tensor
    position: Tensor
    ways: dict[str, float]
    total: float
    error: float


def relevance(
    host: EncodedVisionTransformer, image: Tensor, *, target: int | None = None, steps: int = 24, tolerance: float = 0.005
) -> Relevance:
    """Relevance for the logit of one class (eval mode; the gradients of parameters stay as they are).

    Args:
        image: (1, C, height, width).
        target: the class; None for the predicted one. A model without a classifier is explained along its own features.
        steps: nodes of the Gauss-Legendre quadrature.
        tolerance: the nodes are doubled, three times at most, while `error` is above; not in half precision, whose
            rounding alone is above.
    """
    if image.shape[0] != 1:
        raise ValueError(f"relevance: explains one image, got a batch of {image.shape[0]}.")
    with torch.no_grad():
        patches, pos = patches_of(host, image)
        empty, _ = patches_of(host, torch.zeros_like(image))
        ones = Faded.amounts(pos.prefix + patches.shape[1], patches)
        output = forward(host, patches, pos, ones)[0]
    if host.num_classes > 0:
        target = int(output.argmax()) if target is None else target
        if not 0 <= target < len(output):
            raise ValueError(f"relevance: target must be a class from 0 to {len(output) - 1}, got {target}.")
        direction = torch.zeros_like(output)
        direction[target] = 1.0
    else:
        target, direction = None, output / output.norm().clamp_min(1e-12)
    with torch.no_grad():
        nothing = forward(host, empty, pos, {way: 0 * a for way, a in ones.items()})[0]
    total = float(((output - nothing) * direction).sum())
    for doubled in range(4):
        content, ways = _integrate(host, patches, empty, pos, direction, steps * 2**doubled)
        every = sum(ways.values())  # (T,)
        error = abs(float(content.sum() + every.sum()) - total) / max(abs(total), 1e-12)
        if error <= tolerance or torch.finfo(patches.dtype).bits < 32:
            break
    return Relevance(
        target,
        content.reshape(pos.grid).float(),
        every[pos.prefix :].reshape(pos.grid).float(),
        {way: float(r.sum()) for way, r in ways.items()},
        total,
        error,
    )


def _integrate(
    host: EncodedVisionTransformer, patches: Tensor, empty: Tensor, pos: Positions, direction: Tensor, steps: int
) -> tuple[Tensor, dict[str, Tensor]]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    step = (patches - empty).detach()
    content: Tensor = torch.zeros(patches.shape[1], dtype=torch.float64, device=patches.device)
    ways: dict[str, Tensor] = {}
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        x = (empty + float(node) * step).detach().requires_grad_()
        amounts = Faded.amounts(pos.prefix + patches.shape[1], patches, float(node), grad=True)
        with torch.enable_grad():
            value = (forward(host, x, pos, amounts)[0] * direction).sum()
            slopes = torch.autograd.grad(value, [x, *amounts.values()], allow_unused=True)
        if slopes[0] is not None:
            content += float(weight) * (slopes[0] * step).sum(-1)[0].double()
        for way, amount, slope in zip(amounts, amounts.values(), slopes[1:]):
            gained = torch.zeros_like(amount) if slope is None else slope
            ways[way] = ways.get(way, 0) + float(weight) * gained[:, 0].double()
    return content.detach(), {way: r.detach() for way, r in ways.items()}


def forward(
    host: EncodedVisionTransformer, patches: Tensor, pos: Positions, amounts: dict[str, Tensor]
) -> Tensor:
    """Logits (B, classes) with the encoding at these amounts; with 1 everywhere, the model's own."""
    lead = [t.expand(patches.shape[0], -1, -1) for t in (host.cls_token, host.reg_token) if t is not None]
    x = torch.cat([*lead, patches], dim=1)
    stack = host.encoding
    ctx = stack.prepare(pos)
    x = host.norm_pre(host.pos_drop(fade(x, stack.tokens(x, ctx), amounts["tokens"])))
    x = fade(x, stack.between(x, ctx, -1), amounts["between"])
    for i, block in enumerate(host.blocks):
        encoding, own = stack.layer(ctx, i)
        x = block(x, Faded(encoding, amounts), own, None)
        x = fade(x, stack.between(x, ctx, i), amounts["between"])
    return outputs(host, x)[1]
