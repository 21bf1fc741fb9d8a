"""Data-parallel training of every name in two processes, without a search for unused parameters."""

import os
import subprocess
import sys
from pathlib import Path

from generic_helpers import ZOO

WORKER = Path(__file__).with_name("ddp_worker.py")


def test_two_processes(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, str(WORKER)]
    workers = [
        subprocess.Popen([*command, str(r), str(tmp_path / "store"), *ZOO], cwd=root, env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for r in (0, 1)
    ]  # fmt: skip
    try:
        outs = [w.communicate(timeout=300) for w in workers]
    finally:
        for w in workers:
            w.kill()
    for w, (_, err) in zip(workers, outs):
        assert w.returncode == 0, err[-3000:]
    assert outs[0][0].split() == ZOO
