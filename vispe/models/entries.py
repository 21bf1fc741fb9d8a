"""What the name tables of timm share: the default configuration, and the function that timm registers for a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import build_model_with_cfg
from torch import nn


def untrained_cfg() -> dict[str, Any]:
    """The pretrained configuration of a name without weights."""
    return dict(
        url="",
        input_size=(3, 224, 224),
        fixed_input_size=False,
        first_conv="patch_embed.proj",
        classifier="head",
        mean=IMAGENET_INCEPTION_MEAN,
        std=IMAGENET_INCEPTION_STD,
        interpolation="bicubic",
        crop_pct=0.9,
    )


def make_entry(
    name: str,
    model_cls: type[nn.Module],
    arguments: Callable[[], dict[str, Any]],
    filter_fn: Callable[..., dict[str, Any]],
    *,
    module: str,
    doc: str,
) -> Callable[..., nn.Module]:
    """The function behind a name, for `register_model`.

    Args:
        arguments: the model's own, ahead of the caller's.
        filter_fn: timm's hook for pretrained weights.
        module: where the function will be an attribute; timm reads `default_cfgs` there.
    """

    def entry(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        merged = {**arguments(), **kwargs}
        out_indices = merged.pop("out_indices", 3)
        return build_model_with_cfg(
            model_cls,
            name,
            pretrained,
            pretrained_filter_fn=filter_fn,
            feature_cfg=dict(out_indices=out_indices, feature_cls="getter"),
            **merged,
        )

    # timm keys its registry by __name__, and a function that is not a module attribute cannot be pickled.
    entry.__name__ = entry.__qualname__ = name
    entry.__module__, entry.__doc__ = module, doc
    return entry
