"""Measure what every encoding costs in a ViT and write docs/costs.json, which MODELS.md shows.

    python scripts/measure_costs.py                    # everything that has a ViT name; about an hour on one thread
    python scripts/measure_costs.py rope_axial fire    # measure these anew, keep the rest

Runs of `vispe bench` over a few encodings at a time, each with its own baseline. Every finished run is kept, so that it can
be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import torch

from vispe.bench import Settings, bench
from vispe.contenders import parse_contender
from vispe.encodings import ENCODINGS
from vispe.models.vit_zoo import VARIANTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "costs.json"


def measurable() -> list[str]:
    """Encodings that a ViT name has, the baseline left out."""
    return [name for name in ENCODINGS if name in VARIANTS and name != "none"]


def commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="encodings to measure (those that are not in the file yet)")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-a-time", type=int, default=4)
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(measurable()))
    if unknown:
        parser.error(f"no ViT is named after {unknown}; choose from {measurable()}")
    settings = Settings(size="b", depth=args.depth, repeats=args.repeats, warmup=1, clock="cpu")
    costs = json.loads(PAGE.read_text()) if PAGE.exists() else {}
    wanted = args.names or [name for name in measurable() if name not in costs]
    for start in range(0, len(wanted), args.at_a_time):
        group = wanted[start : start + args.at_a_time]
        results = bench([parse_contender(name, settings.size, args.depth) for name in group], settings)
        for result in results[1:]:
            costs[result.label] = {
                "forward": round(result.forward.median, 3),
                "train": round(result.train.median, 3),
                "memory": round(result.memory_ratio, 3),
                "noise": round(results[0].train.high - results[0].train.low, 3),
                "commit": commit(),
                "torch": torch.__version__,
                "settings": asdict(settings),
            }
        PAGE.write_text(json.dumps(costs, indent=1) + "\n")
        print({name: [costs[name][key] for key in ("forward", "train", "memory")] for name in group}, flush=True)


if __name__ == "__main__":
    main()
