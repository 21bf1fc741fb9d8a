"""Several cells side by side, each in a process of its own on one thread."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from train.study.config import Cell

TAIL = 2000  # characters of a log that explain a failure


class Children:
    """Runs cells by the command that a cluster would use, ``python -m train study ... --only CELL``.

    Args:
        arguments: Of ``python -m train study``, without ``--jobs`` and ``--only``.
        say: Prints a line.
    """

    def __init__(self, arguments: list[str], say: Callable[[str], None]) -> None:
        self.arguments, self.say = arguments, say
        self.running: dict[str, subprocess.Popen] = {}
        self.lock, self.stopped = threading.Lock(), False

    def run(self, cells: list[Cell], jobs: int) -> dict[str, str]:
        """Run all cells; cell name -> what went wrong, for those that failed. The others are finished all the same."""
        with ThreadPoolExecutor(jobs) as pool, ended_by_sigterm():
            try:
                outcomes = list(pool.map(self.one, cells))
            except BaseException:
                self.stop()
                raise
        return {cell.name: outcome for cell, outcome in zip(cells, outcomes) if outcome}

    def one(self, cell: Cell) -> str:
        """Run a cell to its end; empty when it is done."""
        log = cell.folder / "study.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "train", "study", *self.arguments, "--only", cell.name]
        with open(log, "a") as file:
            start = file.tell()
            with self.lock:
                if self.stopped:
                    return "not started"
                threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | threads)
                self.running[cell.name] = child
            code = child.wait()
        with self.lock:
            del self.running[cell.name]
        failed = "stopped" if self.stopped else f"FAILED, see {log}"
        self.say(f"{cell.name}: {failed if code else 'done'}")
        return "" if code == 0 else f"exit code {code}; {log} ends with\n{tail(log, start)}"

    def stop(self) -> None:
        """Ask every running child to end; cells are resumed from their checkpoints."""
        with self.lock:
            self.stopped = True
            for child in self.running.values():
                child.terminate()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C inside, so that children do not outlive the study."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def tail(log: Path, start: int) -> str:
    """The end of what was written to a log from a place on."""
    with open(log, encoding="utf-8", errors="replace") as file:
        file.seek(start)
        return file.read()[-TAIL:].strip()
