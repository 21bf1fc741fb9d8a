"""Every parity case against our code: outputs and gradients of the official implementations.

    pytest tests/parity                       the cases of the repository
    pytest tests/parity --parity-dir DIR      any other tree of <encoding>/<case>.safetensors (or VISPE_PARITY_DIR=DIR)

An adapter is `adapters/<encoding>.py` with a function `run(case)` that gives a dict of "out.*" and "grad.*" from the
case's configuration, inputs and parameters; more than the case asks for is allowed, less is a failure, and so is a
folder without adapter. An adapter may have `tolerance(case, key)` that returns a number, or None for the usual one, or
`compare(key, actual, expected)` in the place of every check, where official numbers are rounded to whole cells.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from .cases import case_files, read_case
from .tolerance import check, tolerances


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    files = case_files(metafunc.config.getoption("--parity-dir"))
    metafunc.parametrize("path", files, ids=[f"{p.parent.name}/{p.stem}" for p in files])


def test_parity(path: Path) -> None:
    case, expected = read_case(path)
    assert expected, f"{path}: holds no out.* or grad.*"
    try:
        adapter = importlib.import_module(f"{__package__}.adapters.{case.encoding}")
    except ModuleNotFoundError as error:
        pytest.fail(f"{case.encoding}: no adapter in tests/parity/adapters ({error})")
    actual = adapter.run(case)
    missing = sorted(set(expected) - set(actual))
    assert not missing, f"{path.stem}: the adapter gives no {missing}"
    own = getattr(adapter, "tolerance", lambda case, key: None)
    largest = max((t.abs().max().item() for k, t in expected.items() if k.startswith("grad.")), default=0.0)
    for key, tensor in expected.items():
        if hasattr(adapter, "compare"):
            adapter.compare(key, actual[key], tensor)
            continue
        wanted = own(case, key)
        check(key, actual[key], tensor, tolerances(case.encoding, key, tensor) if wanted is None else wanted, largest)
