"""What `vispe convert` does: official weights in, a .safetensors file of one of our models out."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import timm.layers
from safetensors.torch import save_file
from torch import Tensor, nn

from .convert import SOURCES, Report, load, recognise
from .convert.files import GRID_NOTE, noted_grid, read, unwrap
from .convert.guess import guess
from .models.create import create_model


def add_parser(commands: Any) -> None:
    """The command's options, under the subparsers of `vispe`."""
    one = commands.add_parser("convert", help="official weights to a .safetensors file for one of our models")
    one.add_argument("source", choices=("auto", "vispe", *SOURCES), metavar="SOURCE", help=f"auto, vispe, {', '.join(SOURCES)}")
    one.add_argument("weights", type=Path, metavar="IN", help=".pth, .pt, .ckpt, .bin or .safetensors; no code in it is run")
    one.add_argument("out", type=Path, metavar="OUT", help="a .safetensors file")
    one.add_argument("--model", help="name of the model (default: as far as the file tells it)")
    one.add_argument("--model-kwargs", default="{}", metavar="JSON", help="its arguments; layers by their name in timm.layers")
    one.add_argument("--source-grid", type=int, nargs=2, metavar=("ROWS", "COLUMNS"), help="patches that its tables are for")
    one.add_argument("--partial", action="store_true", help="write what fits, and report the rest")
    one.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    one.set_defaults(run=convert_command)


def convert_command(args: argparse.Namespace) -> int:
    _check_out(args.out, args.overwrite)
    given = parse_kwargs(args.model_kwargs)
    content = read(args.weights)
    try:
        state, _ = unwrap(content)
        source = recognise(state) if args.source == "auto" else args.source
        name, kwargs = (args.model, {}) if args.model else stored_model(content) or guess(state, source)
        kwargs |= given
        model = create(name, kwargs)
        grid = noted_grid(args.weights) if args.source_grid is None else tuple(args.source_grid)
        report = load(model, content, source, strict=not args.partial, source_grid=grid)
    except ValueError as error:
        raise ValueError(f"{args.weights}: {error}") from error
    write(args.out, model, report, name=name, kwargs=kwargs)
    print(report.full())
    print(f"{args.out}: {len(report.used)} tensors of {name} {json.dumps(kwargs)}")
    return 0


def stored_model(content: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of the model that one of our training checkpoints holds; None for anything else."""
    settings = content.get("hyper_parameters")
    if not isinstance(settings, Mapping) or not isinstance(settings.get("model"), str):
        return None
    return settings["model"], dict(settings.get("model_kwargs") or {})


def create(name: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """A model by its name from JSON arguments; classes of layers by their names in `timm.layers`."""
    given = dict(kwargs)
    for key in ("mlp_layer", "embed_layer"):
        if isinstance(given.get(key), str):
            layer = getattr(timm.layers, given[key], None)
            if layer is None:
                raise ValueError(f"timm.layers has no {given[key]!r} for {key}; e.g. 'SwiGLU'.")
            given[key] = layer
    try:
        return create_model(name, **given).eval()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # no such name or argument
        raise ValueError(f"cannot create {name!r} with {json.dumps(dict(kwargs))}: {error}") from error


def write(out: Path, model: nn.Module, report: Report, *, name: str, kwargs: Mapping[str, Any]) -> None:
    """The converted entries with where they came from; the file appears whole or not at all."""
    state: dict[str, Tensor] = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items() if k in report.used}
    notes = {
        "format": "pt",
        "vispe.source": report.source,
        "vispe.model": name,
        "vispe.model_kwargs": json.dumps(dict(kwargs)),
        "vispe.report": report.full(),
    }
    if hasattr(model, "own_grid"):  # diffusion transformers
        notes[GRID_NOTE] = "x".join(map(str, model.own_grid))
    elif hasattr(model, "encoding"):
        embed = model.patch_embed
        size = (embed.num_frames, *embed.img_size) if hasattr(embed, "num_frames") else embed.img_size
        notes[GRID_NOTE] = "x".join(map(str, embed.dynamic_feat_size(size)))
    unfinished = out.with_name(out.name + ".unfinished")
    try:
        save_file(state, unfinished, metadata=notes)
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)


def _check_out(out: Path, overwrite: bool) -> None:
    if out.suffix != ".safetensors":
        raise ValueError(f"convert: OUT must end in .safetensors, got {out}.")
    if not out.parent.is_dir():
        raise ValueError(f"convert: the folder of OUT does not exist: {out.parent}.")
    if out.exists() and not overwrite:
        raise ValueError(f"convert: {out} exists; pass --overwrite to replace it.")


def parse_kwargs(text: str) -> dict[str, Any]:
    """A JSON object of arguments."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--model-kwargs is no JSON: {error}.") from error
    if not isinstance(given, dict):
        raise ValueError(f"--model-kwargs must be a JSON object, e.g. '{{\"img_size\": 384}}', got {text}.")
    return given
