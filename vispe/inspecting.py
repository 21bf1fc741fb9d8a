"""What `vispe inspect` does: a diagnosis of one model, printed and drawn."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .converting import parse_kwargs
from .diagnostics import NAMES, Diagnosis, as_host, diagnose, load_folder
from .diagnostics.diagnosis import refuse_existing
from .extrapolating import checked_device, parse_size
from .opening import add_model_options, open_model


def add_parser(commands: Any) -> None:
    """The command's options, under the subparsers of `vispe`."""
    one = commands.add_parser("inspect", help="what a model does with positions: eight diagnoses, with pictures")
    add_model_options(one)
    one.add_argument("--out", type=Path, help="folder of the pictures and diagnosis.json (default: vispe-inspect/MODEL)")
    one.add_argument("--images", type=Path, metavar="DIR", help="folder of images (default: textures alike everywhere)")
    one.add_argument("--limit", type=int, default=16, help="images that are read from --images (16)")
    one.add_argument("--size", help="pixels: 224, or HEIGHTxWIDTH (the model's own)")
    one.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)}")
    one.add_argument("--three-cell", choices=("probe", "train"), default="probe", help="probe it, or train a copy (probe)")
    one.add_argument("--three-cell-images", type=int, default=768, help="images of the probe (768)")
    one.add_argument("--three-cell-steps", type=int, default=500, help="steps of --three-cell train (500)")
    one.add_argument("--target", type=int, help="class that the relevance is for (the predicted one)")
    one.add_argument("--seed", type=int, default=0, help="of textures and three-cell images (0)")
    one.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (cpu)")
    one.set_defaults(run=inspect_command)


def inspect_command(args: argparse.Namespace) -> int:
    name = Path(args.model).stem if Path(args.model).exists() else args.model.replace("/", "_").replace(":", "_")
    folder = args.out or Path("vispe-inspect") / name
    refuse_existing([folder / "diagnosis.json", *(folder / f"{n}.png" for n in args.only)])
    model = open_model(
        args.model, weights=args.weights, kwargs=parse_kwargs(args.model_kwargs), pretrained=args.pretrained
    ).to(checked_device(args.device))
    host = as_host(model)
    size = parse_size(args.size) if args.size else tuple(host.patch_embed.img_size)
    images = None if args.images is None else load_folder(args.images, model, size, limit=args.limit)
    with Console(stderr=True).status("") as status:
        found = diagnose(
            host, images, only=tuple(args.only), size=size, three_cell_mode=args.three_cell, target=args.target,
            three_cell_images=args.three_cell_images, three_cell_steps=args.three_cell_steps, seed=args.seed,
            progress=lambda step: status.update(step.replace("_", " ")), title=name,
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(summary(found))
    for file in found.save(folder):
        print(f"wrote {file}")
    return 0


def summary(found: Diagnosis) -> Table:
    """A line a result."""
    table = Table(title=found.title, show_header=False)
    for name in found.names:
        table.add_row(name.replace("_", " "), LINES[name](getattr(found, name)))
    return table


def _changes(found: Any) -> str:
    lines = []
    for name, change in found.items():
        scores = "" if change.scores is None else f", attention logits {change.scores:.2g}"
        lines.append(f"{name}: patch features {change.features:.2g}, output {change.logits:.2g}{scores}")
    return "\n".join(lines)


def _waves(found: Any) -> str:
    lines = []
    for name, w in found.items():
        turning = w.patches[w.patches.isfinite()]
        share = f"{100 * w.longer.mean():.0f} % of pairs make less than one turn over {max(w.grid)} patches"
        lines.append(f"{name}: {turning.min():.3g} to {turning.max():.3g} patches; {share}")
    return "\n".join(lines)


def _slope(found: Any) -> str:
    layers = found.slope.mean(1)
    return f"slope {layers.mean():.3g} a patch (layers {layers.min():.3g} to {layers.max():.3g})"


def _decodability(found: Any) -> str:
    mean = found.r2.mean(1)
    blocks = f"best block {mean[2:].max():.2f}, last {mean[-1]:.2f}"
    return f"R² of row and column: patches {mean[0]:.2f}, input {mean[1]:.2f}, {blocks}"


def _relevance(found: Any) -> str:
    parts = f"content {found.content.sum():.3g}, position {sum(found.ways.values()):.3g} of {found.total:.3g}"
    return f"{parts} (conserved up to {100 * found.error:.2g} %)"


LINES = {
    "three_cell": lambda f: f"{100 * f.accuracy.mean():.1f} % right of six questions, guessing 50 % ({f.mode})",
    "equivariance": _changes,
    "logit_decay": _slope,
    "wavelengths": _waves,
    "attention_distance": lambda f: (
        f"{f.distance.mean():.2f} patches (heads {f.distance.min():.2f} to {f.distance.max():.2f}); all alike {f.uniform:.2f}"
    ),
    "decodability": _decodability,
    "padding": lambda f: f"strength {f.strength.max():.2g} at {f.places[int(f.strength.argmax())]}, last {f.strength[-1]:.2g}",
    "relevance": _relevance,
}
