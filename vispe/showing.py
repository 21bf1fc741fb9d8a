"""What `vispe show` prints and draws."""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .encodings import Encoding, encoding_class
from .encodings import table as tables
from .plots import decay_plot, signal_kind, similarity_plot, wavelength_plot
from .positions import patch_grid


def show_command(args: argparse.Namespace) -> int:
    cls = encoding_class(args.name)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    _card(console, args.name, cls)
    _options(console, cls)
    torch.manual_seed(args.seed)
    try:
        stack = tables.example_stack(args.name)
    except ValueError as error:
        console.print(f"\nIt needs options of its own, so there are no parameters and plots to show: {escape(str(error))}")
        return 0
    _parameters(console, args.name, stack)
    if not args.no_plots:
        _write(console, args, cls, stack)
    return 0


def _card(console: Console, name: str, cls: type[Encoding]) -> None:
    card = cls.card
    console.print(f"[bold]{name}[/bold]: {escape(card.title)}" + (f" ({card.year})" if card.year else ""))
    console.print(f"  {escape(card.formula)}\n")
    facts = {
        "family": card.family,
        "acts through": ", ".join(card.injection) or "nothing",
        "accepts": f"positions with {' or '.join(map(str, card.axes))} axes"
        + ("" if "grid" not in card.needs else ", full grids only"),
        "needs": ", ".join(card.needs) or "nothing",
        "relative": "yes: a common shift of all coordinates changes no logit" if card.relative else "no",
        "layers": "one instance for each layer" if cls.per_layer else "one instance for all layers",
        "no weight decay": ", ".join(cls.no_decay) or "-",
        "paper": card.paper or "-",
        "code": f"https://github.com/{card.code}" if card.code else "none published",
        "licence": card.licence or "-",
        "parity cases": str(card.cases),
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    for key, value in facts.items():
        table.add_row(key, escape(value))
    console.print(table)
    module = sys.modules[cls.__module__].__doc__
    if module:
        console.print("\n" + escape(inspect.cleandoc(module)), soft_wrap=True)


def _options(console: Console, cls: type[Encoding]) -> None:
    found = tables.options(cls)
    if not found:
        console.print("\nNo options.")
        return
    console.print("\n[italic]options[/italic]")
    table = Table()
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    for option in found:
        default = "required" if option.default is inspect.Parameter.empty else repr(option.default)
        table.add_row(option.name, escape(default), escape(option.text))
    console.print(table)


def _parameters(console: Console, name: str, stack) -> None:
    found = [(key, p.detach().float()) for key, p in stack.named_parameters()]
    total = sum(p.numel() for _, p in found)
    console.print()
    if not found:
        console.print("No parameters.")
        return
    # layers repeat the same tensors: show those of the first
    lead = f"{name}.0."
    first = [item for item in found if item[0].startswith(lead)] or found
    count = len(found) // len(first)
    each = f"of each of {count} layers" if count > 1 else "of all layers"
    console.print(f"[italic]parameters {each} in a ViT-B ({total:,} numbers in all)[/italic]")
    table = Table()
    for column in ("name", "shape", "initial mean", "initial std"):
        table.add_column(column)
    for key, p in first:
        short = key.removeprefix(lead).removeprefix(f"{name}.")
        table.add_row(short, str(tuple(p.shape)), f"{p.mean():.4g}", f"{p.std(unbiased=False):.4g}")
    console.print(table)


def _write(console: Console, args: argparse.Namespace, cls: type[Encoding], stack) -> None:
    if 2 not in cls.card.axes or any(need not in ("coords", "grid") for need in cls.card.needs):
        console.print("\nNo plots: it does not act on plain image grids.")
        return
    grid = tuple(args.grid)
    if min(grid) < 1:
        raise ValueError(f"show: --grid needs two numbers of at least 1, got {grid}.")
    row, col = args.query or (grid[0] // 2, grid[1] // 2)
    if not (0 <= row < grid[0] and 0 <= col < grid[1]):
        raise ValueError(f"show: --query {row} {col} lies outside the grid of {grid[0]} x {grid[1]} patches.")
    layers = [encoding for _, encoding in stack.encodings()]
    if not 0 <= args.layer < 12:
        raise ValueError(f"show: --layer must be 0 to 11, got {args.layer}.")
    encoding = layers[args.layer].eval() if len(layers) > 1 else layers[0].eval()
    pos, query = patch_grid(*grid, train=(14, 14)), row * grid[1] + col
    figures: dict[str, Figure] = {}
    if encoding.wavelengths(grid) is not None:
        figures["wavelengths.png"] = wavelength_plot(encoding, grid)
    figures["similarity.png"] = similarity_plot(encoding, pos, query)
    figures["decay.png"] = decay_plot(encoding, pos, query)
    folder = args.out or Path("vispe-plots") / args.name
    existing = [name for name in figures if (folder / name).exists()]
    if existing and not args.overwrite:
        raise FileExistsError(f"show: {folder / existing[0]} exists; pass --overwrite, another --out, or --no-plots.")
    folder.mkdir(parents=True, exist_ok=True)
    console.print()
    for name, figure in figures.items():
        figure.savefig(folder / name)
        console.print(f"wrote {folder / name}")
    if signal_kind(encoding) == "impulse":
        console.print("similarity depends on content here; the plots show the response to one raised token")
