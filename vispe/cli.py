"""The command `vispe`: list and show encodings, measure what they cost, convert weights, inspect a model, draw its curves."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import bench as benching
from . import converting, extrapolating, inspecting, showing
from .contenders import parse_contender, timm_contenders
from .encodings import table as tables


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code is 0, or 2 with a message on the error stream for anything the user can mend."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"vispe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vispe: stopped", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vispe", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    one = commands.add_parser("list", help="all encodings with their cards")
    one.add_argument("--family", help="only one family, e.g. rotary")
    one.add_argument("--axes", type=int, help="only encodings that accept this many coordinate axes")
    one.add_argument("--injection", help="only encodings that use this hook, e.g. qk or bias")
    one.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    one.set_defaults(run=list_command)

    one = commands.add_parser("show", help="one encoding: formula, options, parameters, plots")
    one.add_argument("name", help="a name of `vispe list`")
    one.add_argument("--out", type=Path, help="folder of the plots (default: vispe-plots/NAME)")
    one.add_argument("--grid", type=int, nargs=2, default=(14, 14), metavar=("ROWS", "COLUMNS"), help="patches (14 14)")
    one.add_argument("--query", type=int, nargs=2, metavar=("ROW", "COLUMN"), help="the patch that maps start from (middle)")
    one.add_argument("--layer", type=int, default=0, help="layer whose parameters are shown (0)")
    one.add_argument("--seed", type=int, default=0, help="seed of the initial parameters (0)")
    one.add_argument("--no-plots", action="store_true", help="write no files")
    one.add_argument("--overwrite", action="store_true", help="replace plots that exist")
    one.set_defaults(run=showing.show_command)

    one = commands.add_parser("bench", help="time and memory against no encoding", description=parse_contender.__doc__)
    one.add_argument("names", nargs="*", metavar="NAME", help="name[:option=value,...][@fold|@jitter], see `vispe list`")
    one.add_argument("--against", choices=("timm",), help="also run timm's rotary models, against timm's model without rope")
    one.add_argument("--size", default="b", help="ViT size: ti, s, b, l (b)")
    one.add_argument("--img", type=int, default=224, help="pixels a side (224)")
    one.add_argument("--batch", type=int, default=4, help="images (4)")
    one.add_argument("--depth", type=int, help="blocks, to explore faster (the size's own)")
    one.add_argument("--threads", type=int, default=1, help="processor threads (1)")
    one.add_argument("--mode", choices=("eager", "compiled", "both"), default="eager")
    one.add_argument("--repeats", type=int, default=10, help="rounds (10)")
    one.add_argument("--warmup", type=int, default=2, help="untimed passes of each model (2)")
    one.add_argument("--dtype", default="float32", help="float32, bfloat16 or float64 (float32)")
    one.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (cpu)")
    one.add_argument("--clock", default="wall", help="wall, or cpu: processor time, steadier on a busy machine (wall)")
    one.add_argument("--json", type=Path, help="also write everything to this file")
    one.set_defaults(run=bench_command)

    converting.add_parser(commands)
    inspecting.add_parser(commands)
    extrapolating.add_parser(commands)
    return parser


def list_command(args: argparse.Namespace) -> int:
    found = tables.rows(family=args.family, axes=args.axes, injection=args.injection)
    if args.format == "json":
        print(json.dumps([tables.as_json(row) for row in found], indent=2))
    elif args.format == "markdown":
        print(tables.markdown(found))
    else:
        table = Table(title=f"{len(found)} positional encodings")
        for column in tables.COLUMNS:
            right = column.startswith(("parameters", "year", "parity"))
            table.add_column(column, justify="right" if right else "left", style="bold" if column == "name" else None)
        for row in found:
            table.add_row(*tables.cells(row))
        Console(width=None if sys.stdout.isatty() else 180).print(table)
    return 0


def bench_command(args: argparse.Namespace) -> int:
    if not args.names and not args.against:
        raise ValueError("bench: name at least one encoding (see `vispe list`), or pass --against timm.")
    fields = ("size", "img", "batch", "depth", "threads", "repeats", "warmup", "dtype", "device", "clock")
    settings = benching.Settings(**{name: getattr(args, name) for name in fields})
    contenders = [parse_contender(name, args.size, args.depth) for name in args.names]
    if args.against == "timm":
        contenders += timm_contenders(args.size, args.depth)
    if args.json is not None and not args.json.parent.is_dir():
        raise ValueError(f"bench: the folder of --json does not exist: {args.json.parent}.")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory profiler reports every start and stop otherwise
    modes = ("eager", "compiled") if args.mode == "both" else (args.mode,)
    results = []
    with Console(stderr=True).status("") as status:
        for mode in modes:
            results += benching.bench(contenders, settings, mode=mode, progress=status.update)
    for mode in modes:
        Console(width=None if sys.stdout.isatty() else 160).print(bench_table(results, settings, mode))
    if args.json is not None:
        args.json.write_text(json.dumps(benching.report(results, settings), indent=2) + "\n")
    return 0


def bench_table(results: list[benching.Result], settings: benching.Settings, mode: str) -> Table:
    """Ratios as median [quartiles], of one mode."""
    title = (
        f"ViT-{settings.size.upper()}/16, {settings.img} px, batch {settings.batch}, {settings.dtype}, {settings.device}, "
        f"{settings.threads} thread(s), {mode}: {settings.clock} time over the baseline, {settings.repeats} rounds"
    )
    caption = "median \\[quartiles]; a baseline's own line is the noise of this run; memory: peak of a step"
    table = Table(title=title, caption=caption)
    for column in ("encoding", "baseline", "forward", "ms", "forward+backward", "ms", "peak memory", "MiB"):
        table.add_column(column, justify="left" if column in ("encoding", "baseline") else "right")

    def cell(spread: benching.Spread | None) -> tuple[str, str]:
        if spread is None:
            return "-", "-"
        return f"{spread.median:.3f} [{spread.low:.3f}, {spread.high:.3f}]", f"{spread.seconds * 1e3:.1f}"

    for r in results:
        if r.mode == mode:
            own = r.baseline if r.baseline != r.label else "(itself)"
            memory = (f"{r.memory_ratio:.3f}", f"{r.memory / 2**20:.0f}")
            table.add_row(r.label, own, *cell(r.forward), *cell(r.train), *memory)
    return table
