"""``python -m train study``: run a matrix of encodings and seeds, or show what it found."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from jsonargparse import ActionConfigFile, ArgumentParser

from train.study import results
from train.study.config import Cell, Study, StudyError, check, nearest

DESCRIPTION = """Train and test every encoding under every seed of a study, and write one results file and one page.

A study that was stopped, however it was, goes on where it is: finished cells are kept, an interrupted one goes on from its
newest checkpoint. Cells are independent: --only ENCODING-SEED runs some of them, here, in a SLURM array job or elsewhere."""


def build_parser() -> ArgumentParser:
    """The options of the command and every key of a study."""
    parser = ArgumentParser(
        prog="python -m train study", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file of a study, see configs/study.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes side by side, one thread each.")
    parser.add_argument("--only", nargs="+", metavar="ENCODING-SEED", help="Run these cells and no others.")
    parser.add_argument("--dry_run", action="store_true", help="List the cells and how far each is, and run nothing.")
    parser.add_argument(
        "--page", metavar="FOLDER", help="Run nothing; write NAME.html, NAME.md and pictures there from the results file alone."
    )
    parser.add_class_arguments(Study)
    return parser


def main(args: list[str] | None = None) -> int:
    """Run a command line; 0 when all that was asked for is done, 1 when cells failed, 2 for what the user can mend."""
    args = list(sys.argv[2:] if args is None else args)
    parser = build_parser()
    found = parser.parse_args(args)
    own = {name: found.pop(name) for name in ("config", "jobs", "only", "dry_run", "page")}
    study = Study(**vars(parser.instantiate_classes(found)))
    try:
        check(study)
        if own["page"] is not None:
            return write_page(study, Path(own["page"]), args)
        return run(study, args, jobs=own["jobs"], only=own["only"], dry_run=own["dry_run"])
    except StudyError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("study: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def write_page(study: Study, folder: Path, args: list[str]) -> int:
    """The page from the results file."""
    from train.study.publish import publish

    if not study.results_file.exists():
        raise StudyError(f"there is no results file {study.results_file} yet; run the study, or set `results`")
    shown = without(args, "--page")
    for path in publish(study, folder, command=" ".join(["python -m train study", *shown])):
        print(path)
    return 0


def run(study: Study, args: list[str], *, jobs: int, only: list[str] | None, dry_run: bool) -> int:
    """Run what is not done yet."""
    from train.study.cells import run_cell, state

    if jobs < 1:
        raise StudyError(f"--jobs: at least 1, got {jobs}")
    cells = chosen(study, only)
    known = results.read(study.results_file)
    for cell in study.cells():  # also those that are not to run: one file holds one configuration of each row
        results.compare(study.results_file, known, cell.encoding, cell.seed, cell.config_hash())
    states = {cell.name: state(cell, known) for cell in cells}
    if dry_run:
        return show(study, cells, states)
    open_cells = [cell for cell in cells if states[cell.name] != "done"]
    say(f"{study.name}: {len(cells)} cells, {len(cells) - len(open_cells)} done, {len(open_cells)} to run")
    if only is not None and len(open_cells) == 1:  # in this process, which may be one of several of a distributed training
        run_cell(open_cells[0], say)
        return 0
    from train.study.jobs import Children

    failed = Children(without(without(args, "--only"), "--jobs"), say).run(open_cells, jobs) if open_cells else {}
    for name, reason in failed.items():
        print(f"study: {name}: {reason}", file=sys.stderr)
    if failed:
        print(f"study: {len(failed)} cells failed; the same command tries them again", file=sys.stderr)
    say(f"{study.name}: {len(open_cells) - len(failed)} cells run, results in {study.results_file}")
    return 1 if failed else 0


def chosen(study: Study, only: list[str] | None) -> list[Cell]:
    """The cells of the study, or those that were named."""
    cells = {cell.name: cell for cell in study.cells()}
    if only is None:
        return list(cells.values())
    if unknown := [name for name in only if name not in cells]:
        lines = [f"{name!r} ({nearest(name, list(cells))})" for name in unknown]
        raise StudyError(f"--only: no such cells: {', '.join(lines)}; --dry_run lists all")
    return [cells[name] for name in dict.fromkeys(only)]


def show(study: Study, cells: list[Cell], states: dict[str, str]) -> int:
    """What ``--dry_run`` prints."""
    width = max(len(cell.name) for cell in cells)
    for cell in cells:
        print(f"{cell.name:{width}}  {states[cell.name]:11}  {cell.model()}")
    counts = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    print(f"{study.name}: {len(cells)} cells: {counts}; results in {study.results_file}")
    return 0


def without(args: list[str], option: str) -> list[str]:
    """Arguments without an option and its values."""
    kept, skipping = [], False
    for arg in args:
        if arg == option or arg.startswith(option + "="):
            skipping = arg == option
        elif not skipping or arg.startswith("--"):
            skipping = False
            kept.append(arg)
    return kept


def say(line: str) -> None:
    """A line that appears at once, also in a file."""
    print(line, flush=True)
