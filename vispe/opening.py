"""Opening a user's own model: a name of timm's registry, a folder that timm saved, or weights that name their model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from .convert import load
from .convert.files import SUFFIXES, read, unwrap
from .converting import create, stored_model
from .models.vit import EncodedVisionTransformer


def add_model_options(parser: Any) -> None:
    """MODEL and what belongs to it, on a subparser."""
    parser.add_argument("model", metavar="MODEL", help="a name (vit_b_comrope), a folder that timm saved, or a file of weights")
    parser.add_argument("--weights", type=Path, metavar="FILE", help=f"weights of the model ({', '.join(SUFFIXES)})")
    parser.add_argument("--model-kwargs", default="{}", metavar="JSON", help="its arguments, e.g. '{\"img_size\": 112}'")
    parser.add_argument("--pretrained", action="store_true", help="take the weights that timm knows for this name")


def open_model(
    source: str, *, weights: Path | None = None, kwargs: dict[str, Any] | None = None, pretrained: bool = False
) -> nn.Module:
    """The model in eval mode.

    Args:
        source: a name of timm's registry ("hf-hub:..." and "local-dir:..." too); a folder saved by timm's `save_for_hf`; a
            file of weights that says which model it is for (`vispe convert`, or a training checkpoint of ours).
        weights: a file of weights, which must fit completely.
        kwargs: arguments of the model, over those that a file names.
        pretrained: the weights behind the name; folders always bring theirs.

    Raises:
        ValueError, OSError: naming the model or the file.
    """
    kwargs, path = kwargs or {}, Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{source}: a folder that timm saved holds config.json, and this one does not.")
        model = create(f"local-dir:{source}", {"pretrained": weights is None, **kwargs})
    elif path.suffix in SUFFIXES and (path.is_file() or not _is_name(source)):
        name, known = named_model(path)
        model, weights = create(name, known | kwargs), weights or path
    else:
        model = create(source, {"pretrained": pretrained, **kwargs})
    if weights is not None:
        fill(model, weights)
    return model.eval()


def named_model(path: Path) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the model that a file of weights says it is for."""
    content = read(path)
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
        if "vispe.model" in notes:
            return notes["vispe.model"], json.loads(notes.get("vispe.model_kwargs", "{}"))
    found = stored_model(content)
    if found is None:
        raise ValueError(
            f"{path} does not say which model it is for; give the model's name, and this file as --weights."
        )
    return found


def fill(model: nn.Module, path: Path) -> None:
    """Load a file into one of our models or any other of timm's; every key must fit."""
    if isinstance(model, EncodedVisionTransformer):
        load(model, path)
        return
    state, _ = unwrap(read(path))
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(
            f"{path} does not fit {type(model).__name__}: {' '.join(lines[1:4])[:400]}; create the model with the arguments "
            f"that it was trained with (--model-kwargs)."
        ) from error


def _is_name(source: str) -> bool:
    import timm

    return ":" in source or timm.is_model(source.split(".")[0])
