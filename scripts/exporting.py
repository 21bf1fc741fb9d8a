"""What the scripts share that turn a finished run into a folder of `checkpoints/`: weights, config, metrics and card.

Weights are float16, the averaged ones where the run has some. `metrics.json` holds what was measured with the weights as they
are written, and `check`: small figures on fixed data, which tests/test_checkpoints.py computes again within seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

import vispe
from scripts.cells import table

Figures = dict[str, float]
Table = dict[str, Figures]  # {row: {column: value}}


@dataclass(frozen=True)
class Run:
    """A finished run of `python -m train fit`.

    Attributes:
        task, data: arguments of the task and of the data module, without those that are null.
        weights: of the network that is evaluated, float16.
        steps, seed: of the training.
    """

    task: dict[str, Any]
    data: dict[str, Any]
    weights: dict[str, Tensor]
    steps: int
    seed: int


def read(folder: Path) -> Run:
    """The run of a run_dir, from its last checkpoint and its newest config."""
    checkpoint = torch.load(folder / "checkpoints/last.ckpt", map_location="cpu", weights_only=True)
    logs = sorted(folder.glob("logs/version_*/config.yaml"), key=lambda path: int(path.parent.name.rpartition("_")[2]))
    if not logs:
        raise FileNotFoundError(f"{folder} has no logs/version_*/config.yaml; give the run_dir of `python -m train fit`")
    config = yaml.safe_load(logs[-1].read_text())
    task, data = ({k: v for k, v in config[part]["init_args"].items() if v is not None} for part in ("model", "data"))
    state = checkpoint["state_dict"]
    prefix = "ema.module." if any(key.startswith("ema.module.") for key in state) else "net."
    weights = {
        key.removeprefix(prefix): value.half() if value.is_floating_point() else value
        for key, value in state.items()
        if key.startswith(prefix)
    }
    return Run(task, data, weights, checkpoint["global_step"], config["seed_everything"])


def markdown(found: Table, head: str) -> str:
    """A Markdown table with a row a key; what a row lacks is "-"."""
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    rows = [[name, *(f"{row[c]:.1f}" if c in row else "-" for c in columns)] for name, row in found.items()]
    return table([head, *columns], rows)


def export(
    script: str,
    doc: str,
    *,
    build: Callable[[Run], nn.Module],
    save: Callable[[nn.Module, Path], None],
    load: Callable[[Path], nn.Module],
    measure: Callable[[nn.Module], Table],
    check: Callable[[nn.Module], Figures],
    card: str,
    head: str,
    data: str,
) -> None:
    """The program of a script: read a run, write the folder, measure what was written.

    The folder appears whole or not at all.

    Args:
        script: its `__file__`, by which a test finds `load` and `check` again.
        build: makes the model of a run, without its weights.
        save, load: the model's own way into a folder and back.
        card: the model card in Markdown, formatted with name, task, kwargs (of the model), data, steps, seed, parameters
            and table (of what was measured).
        head: of that table's first column.
        data: which data in which version.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("run", type=Path, help="run_dir of `python -m train fit`")
    parser.add_argument("out", type=Path, help="a new folder")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} exists; nothing is overwritten, give a new folder")
    run = read(args.run)
    model = build(run)
    model.load_state_dict(run.weights, strict=True)
    unfinished = args.out.with_name(args.out.name + ".unfinished")
    save(model.half(), unfinished)
    model = load(unfinished)
    found = measure(model)
    parameters = sum(p.numel() for p in model.parameters())
    facts = {
        "measured": found, "check": check(model), "export": f"scripts/{Path(script).name}", "seed": run.seed,
        "steps": run.steps, "data": data, "dtype": "float16", "parameters": parameters, "vispe": vispe.__version__,
        "training": {"task": run.task, "data": run.data},
    }  # fmt: skip
    text = card.format(
        name=args.out.name, task=run.task, kwargs=run.task["model_kwargs"], data=run.data, steps=run.steps, seed=run.seed,
        parameters=parameters, table=markdown(found, head),
    )  # fmt: skip
    (unfinished / "metrics.json").write_text(json.dumps(facts, indent=1) + "\n")
    (unfinished / "README.md").write_text(text)
    unfinished.rename(args.out)
    print(args.out, json.dumps({"measured": found, "check": facts["check"]}, indent=1))
