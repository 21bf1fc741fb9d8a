"""The results file: one tidy CSV that only grows, a whole cell at a time, whoever writes."""

import csv
import fcntl
import io
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from train.files import replace
from train.study.config import StudyError

FORMAT = 1  # of the rows; a change of their columns or meaning makes it another


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        format: Version of the file's format.
        encoding, seed: The cell.
        protocol: ``resize``, ``canvas``, ``shift``, ``crop``, or ``train`` for what training cost.
        size: What the model saw, ``HxW`` in pixels.
        option: Further setting of the protocol: the shift, in frames.
        coords: ``extend``, ``rescale``, or ``own`` where the model has no coordinates to convert.
        method: Training-free extrapolation, ``-`` for none.
        default: Whether this is how the model is without being asked for anything.
        metric: ``top1``, ``top5`` (shares), ``loss``, ``seconds``.
        value: The number.
        images: Test images behind it.
        params: Trained parameters of the model.
        images_per_s: Median training throughput of the cell.
        commit: Of the code: ``trained..tested`` when these differ; ``+`` marks uncommitted changes.
        config_hash: Of recipe, options and protocols.
    """

    format: int
    encoding: str
    seed: int
    protocol: str
    size: str
    option: str
    coords: str
    method: str
    default: bool
    metric: str
    value: float
    images: int
    params: int
    images_per_s: float
    commit: str
    config_hash: str


COLUMNS = [f.name for f in fields(Row)]
TYPES = {f.name: f.type for f in fields(Row)}


class ResultsError(StudyError):
    """A results file is of another kind than what would be added to it."""


def read(path: Path) -> list[Row]:
    """All rows; none of a file that does not exist."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    remedy = "keep the file and set another `results` name"
    if not table or table[0] != COLUMNS:
        found = "nothing" if not table else ",".join(table[0])
        version = table[1][0] if len(table) > 1 and table[0][0] == "format" else "unknown"
        raise ResultsError(
            f"{path} is no results file of format {FORMAT} (its format: {version}; columns: {found[:120]}); {remedy}"
        )
    versions = {line[0] for line in table[1:]} - {str(FORMAT)}
    if versions:
        raise ResultsError(f"{path} has rows of format {', '.join(sorted(versions))}, this program writes {FORMAT}; {remedy}")
    try:
        return [parse(line) for line in table[1:]]
    except (ValueError, KeyError) as error:
        raise ResultsError(f"{path} has a damaged row ({error}); {remedy}") from error


def parse(line: list[str]) -> Row:
    """A row from its text."""
    convert = {int: int, float: float, str: str, bool: lambda text: {"yes": True, "no": False}[text]}
    if len(line) != len(COLUMNS):
        raise ValueError(f"{len(line)} columns where there are {len(COLUMNS)}: {','.join(line)[:80]}")
    return Row(**{name: convert[TYPES[name]](text) for name, text in zip(COLUMNS, line)})


def text(row: Row) -> list[str]:
    """A row as text; :func:`parse` gives the same row back."""
    convert = {int: str, float: repr, str: str, bool: lambda value: "yes" if value else "no"}
    return [convert[TYPES[name]](value) for name, value in asdict(row).items()]


def compare(path: Path, rows: Iterable[Row], encoding: str, seed: int, config_hash: str) -> bool:
    """Whether the cell is in the file; refuses rows of its encoding that another configuration made, under any seed."""
    hashes = {row.seed: row.config_hash for row in rows if row.encoding == encoding}
    others = {s: found for s, found in hashes.items() if found != config_hash}
    if others:
        raise ResultsError(
            f"{path} has {encoding}, seed {min(others)} from another configuration ({others[min(others)]}, now {config_hash}: "
            "recipe, options or protocols changed). Results are never overwritten: set another `results` name (and another "
            "`runs` folder if training changed), or go back to that configuration"
        )
    return seed in hashes


def append(path: Path, rows: list[Row]) -> bool:
    """Add the rows of one cell unless they are there; what was in the file stays as it was, byte for byte.

    The file is replaced by a longer one in one step, under a lock, so that a reader or a kill at any moment finds whole cells.

    Returns:
        Whether anything was added.
    """
    first = rows[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_name(f".{path.name}.lock")):
        if compare(path, read(path), first.encoding, first.seed, first.config_hash):
            return False
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        old = path.read_bytes() if path.exists() else b""
        if not old:
            writer.writerow(COLUMNS)
        writer.writerows(text(row) for row in rows)
        replace(path, old + (b"\n" if old and not old.endswith(b"\n") else b"") + buffer.getvalue().encode())
    return True


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file's lock inside; yields False when another process has it and ``wait`` is off.

    POSIX record locks: they work over network file systems, end with the process however it ends, and are not inherited by
    loader processes.
    """
    with open(path, "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)


def commit() -> str:
    """Short hash of the code that runs, ``+`` with uncommitted changes of tracked files; ``unknown`` outside a repository."""

    def git(*args: str) -> Any:
        folder = Path(__file__).parent
        return subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "--short=10", "HEAD")
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if git("diff", "--quiet", "HEAD", "--").returncode else "")
