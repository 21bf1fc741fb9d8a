"""The notebooks run, and what is committed as executed is what their sources say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
NAMES = [file.stem for file in SOURCES]


def test_there_are_three():
    assert {"resolution_extrapolation", "choose_an_encoding", "position_ids"} <= set(NAMES)


@pytest.mark.parametrize("file", SOURCES, ids=NAMES)
def test_it_runs(file, tmp_path):
    """As a plain program from an empty folder's point of view: nothing but the repository's own files is read."""
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    found = subprocess.run([sys.executable, str(file)], cwd=file.parent, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize("file", SOURCES, ids=NAMES)
def test_committed_outputs_belong_to_the_source(file):
    source, executed = jupytext.read(file), jupytext.read(file.with_suffix(".ipynb"))
    assert [(c.cell_type, c.source) for c in executed.cells] == [(c.cell_type, c.source) for c in source.cells], (
        f"run python scripts/build_notebooks.py {file.stem}"
    )
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert not any(o.output_type == "error" for cell in code for o in cell.outputs)
    pictures = sum("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
    assert pictures >= 2 and file.with_suffix(".ipynb").stat().st_size < 1.5e6
