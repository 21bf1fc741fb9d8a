"""Trains the schemes of docs/vlm_probes.md on the three probes and writes that page's table, its csv and its figure.

    OMP_NUM_THREADS=1 python scripts/vlm_table.py                  # what is missing; minutes a cell
    OMP_NUM_THREADS=1 python scripts/vlm_table.py --minutes 30     # starts no cell after 30 minutes
    python scripts/vlm_table.py --only-page

A cell is one probe, one scheme and one seed; a finished one (`scripts/cells.py`) is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CONFIGS, DOCS = ROOT / "configs/vlm", ROOT / "docs"
sys.path.insert(0, str(ROOT))

from scripts.cells import finished, fit, grouped, shown, table  # noqa: E402

TITLES = {
    "rope1d": "1-D rotary", "v2pe": "V2PE at 1/4", "shared_position": "one id an image", "mrope": "MRoPE (chunked)",
    "mrope_interleave": "MRoPE-I", "mrope_interleave_reset": "MRoPE-I, spatial reset", "vrope": "VRoPE",
    "videorope": "VideoRoPE", "hope": "HoPE", "cca": "CCA", "circle_rope": "Circle-RoPE",
}  # fmt: skip
SCHEMES = {
    "haystack": ("rope1d", "v2pe", "mrope", "videorope", "vrope", "hope"),
    "relations": ("mrope", "mrope_interleave", "rope1d", "shared_position", "videorope", "vrope", "mrope_interleave_reset"),
    "location": ("rope1d", "vrope", "cca", "circle_rope", "shared_position"),
}
COLUMNS = {
    "haystack": ("", "@t32", "@t64", "@t128", "@t128_fine", "@t128_coarse"),
    "relations": ("", "/above", "/left", "@g6", "@g8x10"),
    "location": ("", "@g24", "@g24/first", "@g24/second", "@g24/third", "@g24/last"),
}
BANDS = ("first", "second", "third", "last")


class Claim(NamedTuple):
    """A published effect: what is measured is the sum of sign · accuracy over cells of one probe (or the least of them)."""

    text: str
    source: str
    probe: str
    terms: tuple[tuple[int, str, str], ...]  # sign, scheme, metric behind "val/acc"
    low: float | None
    high: float | None
    least: bool = False


CLAIMS = (
    Claim(
        "small steps keep ids of long videos in the trained range: V2PE at 1/8 over 1-D rotary at 128 frames",
        "V2PE, Ge et al., ICCV 2025, arXiv 2412.09616", "haystack",
        ((1, "v2pe", "@t128_fine"), (-1, "rope1d", "@t128")), 0.4, None,
    ),
    Claim(
        "the same weights at step 1 lose it: V2PE at 1/8 over V2PE at 1, 128 frames",
        "V2PE, Ge et al., ICCV 2025, arXiv 2412.09616", "haystack",
        ((1, "v2pe", "@t128_fine"), (-1, "v2pe", "@t128_coarse")), 0.4, None,
    ),
    Claim(
        "retrieval in long videos: VideoRoPE over MRoPE at 64 frames", "VideoRoPE, Wei et al., ICML 2025, arXiv 2502.05173",
        "haystack", ((1, "videorope", "@t64"), (-1, "mrope", "@t64")), 0.0, None,
    ),
    Claim(
        "retrieval in long videos: VRoPE over 1-D rotary at 64 frames", "VRoPE, Liu et al., EMNLP 2025, arXiv 2502.11664",
        "haystack", ((1, "vrope", "@t64"), (-1, "rope1d", "@t64")), 0.0, None,
    ),
    Claim(
        "full use of frequencies: interleaved over chunked MRoPE", "MRoPE-I, Huang et al., arXiv 2510.23095", "relations",
        ((1, "mrope_interleave", ""), (-1, "mrope", "")), 0.15, None,
    ),
    Claim(
        "one id for all visual tokens loses space: 1-D rotary over a shared id", "CogVLM's and MouSi's ids (arXiv 2401.17221)",
        "relations", ((1, "rope1d", ""), (-1, "shared_position", "")), 0.15, None,
    ),
    Claim(
        "space on the fastest frequencies: VideoRoPE over 1-D rotary on 8 x 10 images",
        "VideoRoPE, Wei et al., ICML 2025, arXiv 2502.05173", "relations",
        ((1, "videorope", "@g8x10"), (-1, "rope1d", "@g8x10")), 0.0, None,
    ),
    Claim(
        "recency: 1-D rotary favours the bottom of an image (bottom band − top band, 24 x 24)",
        "CCA, Xing et al., NeurIPS 2024, arXiv 2410.15926", "location",
        ((1, "rope1d", "@g24/last"), (-1, "rope1d", "@g24/first")), 0.3, None,
    ),
    Claim(
        "VRoPE does not (bottom band − top band, 24 x 24)", "VRoPE, Liu et al., EMNLP 2025, arXiv 2502.11664", "location",
        ((1, "vrope", "@g24/last"), (-1, "vrope", "@g24/first")), None, 0.05,
    ),
    Claim(
        "CCA treats top and bottom alike (top band − bottom band, 24 x 24)", "CCA, Xing et al., NeurIPS 2024, arXiv 2410.15926",
        "location", ((1, "cca", "@g24/first"), (-1, "cca", "@g24/last")), -0.1, 0.1,
    ),
    Claim(
        "Circle-RoPE has no place that is far: its worst band, 24 x 24", "Circle-RoPE, Wang et al., arXiv 2505.16416",
        "location", tuple((1, "circle_rope", f"@g24/{band}") for band in BANDS), 0.85, None, least=True,
    ),
)  # fmt: skip


def cell(probe: str, scheme: str, seed: int, folder: Path) -> dict:
    """Train one scheme on one probe; its evaluation at the end covers every condition."""
    args = ["--config", str(CONFIGS / f"{probe}.yaml"), "--model.scheme", scheme, "--seed_everything", str(seed)]
    metrics, cost = fit([*args, "--overwrite", "true"], folder)
    found = {key: round(value, 4) for key, value in metrics.items() if key.startswith("val/")}
    result = {"probe": probe, "scheme": scheme, "seed": seed, **cost, "metrics": found}
    (folder / "done.json").write_text(json.dumps(result, indent=1))
    return result


def read(rows: list[dict[str, str]]) -> list[dict]:
    """The cells of docs/vlm_probes.csv."""
    cells = grouped(rows, ("probe", "scheme", "seed", "steps", "seconds"))
    return [head | {"metrics": {f"val/{r['metric']}": float(r["accuracy"]) for r in own}} for head, own in cells]


def load(runs: Path, docs: Path = DOCS) -> list[dict]:
    """Every finished cell."""
    return finished(runs.glob("*/done.json"), docs / "vlm_probes.csv", read, ("probe", "scheme", "seed"))


def values(results: list[dict], probe: str, scheme: str, key: str) -> dict[int, float]:
    """{seed: accuracy}; `key` is what stands behind "val/acc"."""
    return {r["seed"]: r["metrics"][f"val/acc{key}"] for r in results if (r["probe"], r["scheme"]) == (probe, scheme)}


def probe_table(results: list[dict], probe: str) -> str:
    """One row for each scheme that was trained on a probe."""
    rows = []
    for scheme in SCHEMES[probe]:
        own = values(results, probe, scheme, "")
        if own:
            cells = [shown(values(results, probe, scheme, key)) for key in COLUMNS[probe]]
            rows.append([TITLES[scheme], str(len(own)), *cells])
    heads = ["as trained" if not key else key.lstrip("@/") for key in COLUMNS[probe]]
    return table(["scheme", "seeds", *heads], rows) if rows else "Nothing was trained on this probe."


def measured(results: list[dict], claim: Claim) -> dict[int, float]:
    """{seed: value} over the seeds of every cell that the claim compares."""
    found = [(sign, values(results, claim.probe, scheme, key)) for sign, scheme, key in claim.terms]
    seeds = sorted(set.intersection(*(set(v) for _, v in found)))
    join = min if claim.least else sum
    return {seed: join(sign * v[seed] for sign, v in found) for seed in seeds}


def verdict(found: dict[int, float], claim: Claim) -> str:
    """Whether the mean over seeds is within the claim's bounds, and whether every seed is."""
    if not found:
        return "not measured"

    def kept(value: float) -> bool:
        return (claim.low is None or value >= claim.low) and (claim.high is None or value <= claim.high)

    if not kept(statistics.mean(found.values())):
        return "not shown"
    return "shown" if all(map(kept, found.values())) else "by the mean alone"


def bounds(claim: Claim) -> str:
    parts = [f"{sign} {bound:g}" for sign, bound in (("≥", claim.low), ("≤", claim.high)) if bound is not None]
    return " and ".join(parts)


def claims_table(results: list[dict]) -> str:
    rows = []
    for claim in CLAIMS:
        found = measured(results, claim)
        rows.append([claim.text, claim.source, bounds(claim), shown(found), str(len(found)), verdict(found, claim)])
    return table(["published effect", "source", "bar", "measured", "seeds", "here"], rows)


def figure(results: list[dict], path: Path) -> None:
    """Accuracy by length, by size and by place, one line a scheme, mean over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "haystack": ("frames (trained to 8)", {"8": "@t8", "32": "@t32", "64": "@t64", "128": "@t128"}),
        "relations": ("image in cells (trained to 4 x 4)", {"trained": "", "6 x 6": "@g6", "8 x 10": "@g8x10"}),
        "location": ("band of rows of 24 x 24, top to bottom", {band: f"@g24/{band}" for band in BANDS}),
    }
    fig, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, (probe, (label, points)) in zip(axes, panels.items()):
        for scheme in SCHEMES[probe]:
            lines = [(TITLES[scheme], points)]
            if scheme == "v2pe":
                lines.append(("V2PE at 1/8", {"64": "@t64_fine", "128": "@t128_fine"}))
            for title, places in lines:
                found = [values(results, probe, scheme, key) for key in places.values()]
                if found[0]:
                    means = [statistics.mean(v.values()) for v in found]
                    size = 10 - len(axis.lines)  # smaller ones on top, so that equal lines are all seen
                    axis.plot([list(points).index(p) for p in places], means, marker="o", markersize=size, label=title)
        axis.axhline(1 / 8, color="grey", linestyle=":", linewidth=1)
        axis.set(title=probe, xlabel=label, ylim=(0, 1.02), xticks=range(len(points)), xticklabels=list(points))
        if axis.lines[1:]:
            axis.legend(fontsize=7)
    axes[0].set_ylabel("accuracy (dotted: chance)")
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    plt.close(fig)


BEGIN, END = "<!-- table: written by scripts/vlm_table.py -->", "<!-- end of the table -->"


def tables(results: list[dict], planned: int) -> str:
    """What stands between the two marks of the page."""
    seconds = statistics.median(r["seconds"] for r in results)
    parts = [
        f"{len(results)} of {planned} cells are finished (one probe, one scheme, one seed each; {seconds / 60:.1f} minutes a "
        f"cell, median, on a shared machine). Missing ones are left out, not guessed. Accuracies are those of validation "
        f"questions, mean ± sample deviation over seeds; chance is 0.125.",
        "### Haystack", probe_table(results, "haystack"), "### Relations", probe_table(results, "relations"),
        "### Location", probe_table(results, "location"), "### Published effects", claims_table(results),
        "![accuracy by length, size and place](vlm_probes.png)",
    ]  # fmt: skip
    return "\n\n".join(parts)


def write_page(results: list[dict], planned: int, docs: Path = DOCS) -> None:
    """The tables of vlm_probes.md, vlm_probes.csv and vlm_probes.png."""
    page = docs / "vlm_probes.md"
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n\n{tables(results, planned)}\n\n{END}{rest.partition(END)[2]}")
    figure(results, docs / "vlm_probes.png")
    with open(docs / "vlm_probes.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["probe", "scheme", "seed", "steps", "seconds", "metric", "accuracy"])
        for r in results:
            head = [r[key] for key in ("probe", "scheme", "seed", "steps", "seconds")]
            for key, value in sorted(r["metrics"].items()):
                writer.writerow([*head, key.removeprefix("val/"), value])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/vlm_table"))
    parser.add_argument("--probes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--schemes", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=None, help="start no cell after this time")
    parser.add_argument("--only-page", action="store_true", help="train nothing")
    args = parser.parse_args()
    jobs = [(p, s, seed) for seed in args.seeds for p in args.probes for s in SCHEMES[p] if s in args.schemes]
    known = {(r["probe"], r["scheme"], r["seed"]) for r in load(args.runs)}
    started = time.time()
    for probe, scheme, seed in [] if args.only_page else [job for job in jobs if job not in known]:
        if args.minutes is not None and time.time() - started > 60 * args.minutes:
            break
        result = cell(probe, scheme, seed, args.runs / f"{probe}-{scheme}-{seed}")
        print(probe, scheme, seed, f"{result['seconds']} s", result["metrics"]["val/acc"], flush=True)
    results = load(args.runs)
    if not results:
        sys.exit(f"{args.runs} and docs/vlm_probes.csv hold no finished cell; run without --only-page")
    write_page(results, planned=3 * sum(len(s) for s in SCHEMES.values()))


if __name__ == "__main__":
    main()
