"""Reading parity cases: numbers computed with the official implementations, one file a case."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """What an adapter may see: the configuration, the inputs and the parameters. Expected numbers are not in it."""

    encoding: str  # the folder
    name: str
    config: dict[str, Any]
    inputs: dict[str, Tensor]  # "in." taken off
    params: dict[str, Tensor]  # "param." taken off


def case_files(folder: str | None) -> list[Path]:
    """Every case under the folder of the command line, of VISPE_PARITY_DIR, or of the repository."""
    root = Path(folder or os.environ.get("VISPE_PARITY_DIR") or HERE / "cases")
    files = sorted(root.rglob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no parity cases (*.safetensors) under {root}")
    return files


def read_case(path: Path) -> tuple[Case, dict[str, Tensor]]:
    """The case, and what the official code gave for it (`out.*` and `grad.*`, full names)."""
    parts: dict[str, dict[str, Tensor]] = {"in": {}, "param": {}}
    expected = {}
    with safe_open(path, framework="pt") as file:
        config = json.loads((file.metadata() or {}).get("config", "{}"))
        for key in file.keys():  # noqa: SIM118  not a mapping
            kind, _, name = key.partition(".")
            if kind in parts:
                parts[kind][name] = file.get_tensor(key)
            else:
                expected[key] = file.get_tensor(key)
    return Case(path.parent.name, path.stem, config, parts["in"], parts["param"]), expected
