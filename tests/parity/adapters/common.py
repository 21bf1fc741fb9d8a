"""What adapters share: gradients by autograd through the converter, parameters bound into modules, whole models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vispe.convert import convert
from vispe.models import EncodedVisionTransformer

from ..cases import Case

Results = dict[str, Tensor]


def leaves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies that collect gradients (the floating ones)."""
    return {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in tensors.items()}


def bind(module: nn.Module, **tensors: Any) -> nn.Module:
    """Put tensors in the place of parameters, so that gradients reach where the tensors came from. "a.b" binds in a
    child."""
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        target = module.get_submodule(owner)
        delattr(target, leaf)
        setattr(target, leaf, tensor)
    return module


def gradients(loss: Tensor, sources: dict[str, Tensor], *, params: bool = False) -> Results:
    """Gradients as "grad.<name>", for parameters as "grad.param.<name>" too (official files use either)."""
    wanted = {k: v for k, v in sources.items() if v.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, retain_graph=True)
    named = {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(wanted.items(), found)}
    out = {f"grad.{k}": g for k, g in named.items()}
    return out | ({f"grad.param.{k}": g for k, g in named.items()} if params else {})


def size(value: int | list[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def vision_transformer(
    *, encoding: str, options: dict[str, Any] | None, dim: int, heads: int, depth: int, patch: Any, image: Any, classes: int,
    mlp_ratio: float, eps: float = 1e-6, cls: type[EncodedVisionTransformer] = EncodedVisionTransformer, **more: Any,
) -> EncodedVisionTransformer:  # fmt: skip
    """Our ViT in eval mode."""
    return cls(
        encoding=encoding, encoding_kwargs=options, embed_dim=dim, num_heads=heads, depth=depth,
        patch_size=size(patch) if not isinstance(patch, int) else patch, img_size=size(image), num_classes=classes,
        mlp_ratio=mlp_ratio, norm_layer=partial(nn.LayerNorm, eps=eps), **more,
    ).eval()  # fmt: skip


def run_model(
    case: Case, model: nn.Module, source: str, call: Callable[..., Results], params: dict[str, Tensor]
) -> Results:
    """Outputs of the model with the official parameters, through `vispe.convert`, and gradients with respect to those.

    Args:
        call: gives the outputs, from a function that runs the model (or a method `name` of it) on arguments.
        params: the official state dict, with gradients switched on.
    """
    state, report = convert(params, model, source)
    assert report.complete, report.problems()

    def forward(*args: Any) -> Tensor:
        return functional_call(model, state, args)

    results = call(forward)
    if "cotangent" in case.inputs and "out.logits" in results:
        results |= gradients((results["out.logits"] * case.inputs["cotangent"]).sum(), params, params=True)
    return results
