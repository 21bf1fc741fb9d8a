"""`swap`: another encoding in a ViT from timm, with every pretrained weight."""

from __future__ import annotations

from typing import Any, Literal

import timm
from timm.models import VisionTransformer
from torch import nn

from ..convert import eva02, plain
from ..encodings import encoding_class
from . import sources
from .vispe_vit import AdoptedVisionTransformer

# Of a model's configuration: how to prepare its images, and which layers depend on the number of classes.
_KEPT = ("mean", "std", "interpolation", "crop_pct", "crop_mode", "classifier")


def swap(
    model: nn.Module,
    encoding: str,
    *,
    encoding_kwargs: dict[str, Any] | None = None,
    old: Literal["keep", "remove"] = "keep",
    start: Literal["identity", "init"] = "identity",
) -> AdoptedVisionTransformer:
    """A copy of a timm ViT with another encoding, as a model that saves and loads through timm (architecture `vispe_vit`).

    The copy owns its weights; the original does not change. Biases of the keys, which Eva and Beit do not have, start at zero.
    At other image sizes, the copy's old learned table is resampled as timm does with dynamic_img_size=True.

    Args:
        model: a VisionTransformer (DeiT, DINOv2, CLIP, SigLIP, ...), Eva (EVA, EVA-02, DINOv3, RoPE-ViT, PE) or Beit of timm.
        encoding: a name of the table, or several joined by "+".
        encoding_kwargs: its options; for several {name: options}.
        old: keep the model's own encoding ("learned", "beit_bias", "rope_timm") beside the new one, or remove it.
        start: "identity" sets the new encoding to where it changes nothing (`Encoding.set_identity`), so that the copy computes
            what the model does (with old="remove": what it does without its encoding). "init" leaves its initial values.

    Raises:
        ValueError: the model has a part that `vispe_vit` cannot represent, which is named; the new encoding has no identity
            setting; the model has that encoding already.
    """
    if old not in ("keep", "remove") or start not in ("identity", "init"):
        raise ValueError(f"swap: old is 'keep' or 'remove' and start 'identity' or 'init', got {old!r} and {start!r}.")
    sources.check_class(model)
    mine = sources.old_encoding(model) if old == "keep" else sources.Old()
    spec, options = _join(mine, encoding, encoding_kwargs or {})
    encoded = {"encoding": spec, "encoding_kwargs": options}
    host = timm.create_model("vispe_vit", pretrained_cfg_overlay=_configuration(model), **encoded, **sources.arguments(model))
    if lines := sources.differences(model, host):
        raise ValueError(f"swap: {type(model).__name__} has parts without a form here: {'; '.join(lines[:6])}.")
    device, dtype = sources.first_device(model)
    host.to(device=device, dtype=dtype)
    _fill(host, model, mine)
    if start == "identity":
        _set_identity(host, encoding)
    host.set_grad_checkpointing(bool(getattr(model, "grad_checkpointing", False)))
    return host.train(model.training)


def _join(mine: sources.Old, encoding: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The specification of the old and the new encoding together, and its options."""
    new = encoding.split("+")
    for name in new:
        encoding_class(name)
        if name in mine.names:
            raise ValueError(f"swap: the model has {name!r} already; take another encoding, or old='remove'.")
    by_name = {new[0]: options} if len(new) == 1 else options
    if unknown := by_name.keys() - set(new):
        raise ValueError(f"swap: encoding_kwargs of {encoding!r} go by member; got {sorted(unknown)}, which are no members.")
    names = mine.names + [name for name in new if name != "none"] or ["none"]
    given = {name: {**mine.options, **by_name}.get(name, {}) for name in names}
    return "+".join(names), given[names[0]] if len(names) == 1 else given


def _configuration(model: nn.Module) -> dict[str, Any]:
    known = getattr(model, "pretrained_cfg", None) or {}
    return {key: known[key] for key in _KEPT if known.get(key) is not None}


def _fill(host: AdoptedVisionTransformer, model: nn.Module, mine: sources.Old) -> None:
    """Every weight of the model into the host; anything left over on either side is an error."""
    layout = plain if isinstance(model, VisionTransformer) else eva02
    draft = layout.translate(sources.plain_weights(model), host, None)
    new, wanted = draft.new | mine.weights, host.state_dict()
    fresh = tuple(f"encoding.{name}." for name in host.encoding if name not in mine.names)
    problems = [*draft.left, *draft.report.unexpected, *draft.report.dropped]
    problems += [key for key in wanted if key not in new and not key.startswith(fresh)]
    problems += [key for key, value in new.items() if key not in wanted or value.shape != wanted[key].shape]
    if problems:
        raise ValueError(f"swap: no place for these weights of {type(model).__name__}: {problems[:6]}.")
    host.load_state_dict({key: value.detach() for key, value in new.items()}, strict=False)
    trained = {key: p.requires_grad for key, p in model.named_parameters()}
    for key, p in host.named_parameters():
        p.requires_grad_(trained.get(key, True) and p.requires_grad)


def _set_identity(host: AdoptedVisionTransformer, encoding: str) -> None:
    for name in encoding.split("+"):
        members = [layer for key, layer in host.encoding.encodings() if key.split(".")[0] == name]
        if not all([layer.set_identity() for layer in members]):
            raise ValueError(
                f"swap: {name} has no setting (with these options) at which it changes nothing, so the model would not start "
                f"from the same function; pass start='init' to accept that, or take one that has, e.g. rope_mixed or comrope."
            )
