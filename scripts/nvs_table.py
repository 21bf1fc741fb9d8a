"""Trains the encodings of docs/nvs.md and writes that page, its csv and its picture.

    OMP_NUM_THREADS=1 python scripts/nvs_table.py                  # what is missing; about a minute a cell
    OMP_NUM_THREADS=1 python scripts/nvs_table.py --minutes 30     # starts no cell after 30 minutes
    python scripts/nvs_table.py --only-page

A cell is one encoding, one setting and one seed; a finished one (`scripts/cells.py`) is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parents[1]
CONFIGS, DOCS = ROOT / "configs/nvs", ROOT / "docs"
sys.path.insert(0, str(ROOT))

from scripts.cells import finished, fit, grouped, shown, table  # noqa: E402

SETTINGS = {  # what the training data are
    "random": (["--data.frame", "random"], "every scene in a frame of its own"),
    "canonical": ([], "the first given camera is the origin"),
    "zoom": (["--data.focal_spread", "0.5"], "as canonical, focal lengths vary by exp(U(−0.5, 0.5))"),
}
TITLES = {
    "none": "none (place in the image)", "camera_ape": "camera numbers (APE)", "rays": "rays (o, d)", "plucker": "Plücker",
    "cape": "CaPE", "gta": "GTA", "prope": "PRoPE",
}  # fmt: skip
MAIN = [(e, s) for s in ("random", "canonical") for e in ("gta", "plucker", "camera_ape")]
MAIN += [(e, "zoom") for e in ("prope", "gta", "plucker")] + [("none", "random"), ("prope", "canonical"), ("cape", "canonical")]
MORE = [("rays", s) for s in ("random", "canonical", "zoom")] + [(e, "zoom") for e in ("cape", "camera_ape", "none")]
MORE += [(e, s) for e, s in (("none", "canonical"), ("prope", "random"), ("cape", "random"))]  # as in the other frame
CONDITIONS = ("", "canonical", "random", "far", "zoom", "inputs1", "inputs3", "inputs4")


def cell(name: str, setting: str, seed: int, folder: Path, steps: int) -> dict:
    """Train one encoding in one setting; its evaluation at the end covers every condition."""
    args = ["--config", str(CONFIGS / "base.yaml"), "--config", str(CONFIGS / f"{name}.yaml"), *SETTINGS[setting][0]]
    args += ["--seed_everything", str(seed), "--overwrite", "true", "--data.train_length", str(16 * steps)]
    metrics, cost = fit(args, folder)
    found = {key: round(value, 4) for key, value in metrics.items() if key.startswith("val/")}
    result = {"encoding": name, "setting": setting, "seed": seed, **cost, "metrics": found}
    (folder / "done.json").write_text(json.dumps(result, indent=1))
    return result


def read(rows: list[dict[str, str]]) -> list[dict]:
    """The cells of docs/nvs.csv."""
    cells = []
    for head, own in grouped(rows, ("encoding", "setting", "seed", "steps", "seconds")):
        at = {r["condition"]: "" if r["condition"] == "own" else f"@{r['condition']}" for r in own}
        metrics = {f"val/{metric}{at[r['condition']]}": float(r[metric]) for r in own for metric in ("psnr", "ssim")}
        cells.append(head | {"metrics": metrics})
    return cells


def load(runs: Path) -> list[dict]:
    """Every finished cell."""
    return finished(runs.glob("*/done.json"), DOCS / "nvs.csv", read, ("encoding", "setting", "seed"))


def values(results: list[dict], name: str, setting: str, key: str) -> dict[int, float]:
    """{seed: value} of a metric, e.g. "psnr@far"."""
    return {
        r["seed"]: r["metrics"][f"val/{key}"] for r in results if r["encoding"] == name and r["setting"] == setting
    }


def setting_table(results: list[dict], setting: str, columns: dict[str, str]) -> str:
    """One row for each encoding that was trained in a setting."""
    rows = []
    for name, title in TITLES.items():
        own = values(results, name, setting, "psnr")
        if own:
            cells = [shown(values(results, name, setting, key), 3 if "ssim" in key else 2) for key in columns.values()]
            rows.append([title, str(len(own)), *cells])
    return table(["encoding", "seeds", *columns], rows) if rows else "Nothing was trained in this setting."


def difference(results: list[dict], a: tuple[str, str, str], b: tuple[str, str, str]) -> dict[int, float]:
    """{seed: a − b} over the seeds of both; each is (encoding, setting, key)."""
    first, second = values(results, *a), values(results, *b)
    return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}


def effects(results: list[dict]) -> str:
    """What papers and the protocol say, and what was measured."""

    def of(name: str, setting: str, at: str = "") -> tuple[str, str, str]:
        return name, setting, "psnr" + at

    checks = [
        ("random frame: GTA over Plücker", of("gta", "random"), of("plucker", "random"), "at least +0.3"),
        ("random frame: GTA over APE", of("gta", "random"), of("camera_ape", "random"), "at least +0.3"),
        ("random frame: Plücker over none", of("plucker", "random"), of("none", "random"), "about 0, not judged"),
        ("random frame: APE over none", of("camera_ape", "random"), of("none", "random"), "about 0, not judged"),
        ("canonical to far frame: GTA", of("gta", "canonical", "@far"), of("gta", "canonical"), "within 0.02"),
        ("canonical to far frame: Plücker", of("plucker", "canonical", "@far"), of("plucker", "canonical"), "at most −2"),
        ("canonical to far frame: APE", of("camera_ape", "canonical", "@far"), of("camera_ape", "canonical"), "at most −2"),
        ("varying focal length: PRoPE over GTA", of("prope", "zoom"), of("gta", "zoom"), "at least +0.4"),
        ("varying focal length: Plücker over GTA", of("plucker", "zoom"), of("gta", "zoom"), "above 0"),
        ("4 given views over 2: GTA", of("gta", "canonical", "@inputs4"), of("gta", "canonical"), "not judged"),
        ("4 given views over 2: Plücker", of("plucker", "canonical", "@inputs4"), of("plucker", "canonical"), "not judged"),
        ("canonical frame: GTA over Plücker", of("gta", "canonical"), of("plucker", "canonical"), "small, not judged"),
    ]
    bounds = {
        "at least +0.3": (0.3, None), "within 0.02": (-0.02, 0.02), "at most −2": (None, -2.0), "at least +0.4": (0.4, None),
        "above 0": (0.0, None),
    }  # fmt: skip
    rows = []
    for title, a, b, expected in checks:
        found = difference(results, a, b)
        if found:
            low, high = bounds.get(expected, (None, None))
            mean = statistics.mean(found.values())
            kept = (low is None or mean >= low) and (high is None or mean <= high)
            verdict = "–" if expected not in bounds else ("yes" if kept else "no")
            rows.append([title, expected, shown(found, 3), str(len(found)), verdict])
    return table(["difference of PSNR in dB", "expected", "measured", "seeds", "as expected"], rows)


PAGE = """# View synthesis: what camera encodings give

Written by `scripts/nvs_table.py` from the runs named below; nothing here is typed in. Two views of a drawn scene (three spheres
on a checker, `vispe.data.Scenes`) are given, a third is rendered. One transformer over all patches (`vispe.models.nvs`), 32 x
32 px, patches of 4, 64 channels, 2 heads, 3 blocks; {steps} steps of 16 new scenes, AdamW, one thread, {minutes:.1f} minutes a
run (median here, on a shared machine). PSNR is that of the mean squared error over 96 fixed validation scenes, mean ± sample
deviation over seeds; further columns are the same weights on the same scenes. LPIPS is not given: its network's weights come by
download.
`none`, APE, rays, Plücker and CaPE stand beside a learned table of places; GTA and PRoPE know places themselves. For `none`
and the relative encodings (CaPE, GTA, PRoPE) a random frame and the canonical one are the same training up to rounding.

{cells} of {planned} cells are finished. Missing ones are left out, not guessed.

## Trained in a random frame

Every scene comes in a frame of its own (random rotation, translations of 2·N(0, 1)).

{random}

## Trained in the frame of the first given camera

`far` moves the world by a random rotation and translations of 10·N(0, 1), `zoom` varies focal lengths that were fixed in
training, `1 view` to `4 views` give another number of views than the 2 of training.

{canonical}

## Trained with varying focal lengths

{zoom}

## Published effects

Expected margins are those of this protocol's first measurement, one or two seeds of another implementation; papers report the
same directions at full scale (GTA, ICLR 2024: +6 dB over SRT's rays on CLEVR-TR; PRoPE, NeurIPS 2025: GTA falls behind Plücker
when focal lengths vary, PRoPE does not). At 600 steps nothing is sharp: read the differences, not the pictures.

{effects}

![given views, truth and rendering](nvs_views.png)

Given views, truth and rendering of {picture}, validation scenes 0 to 5.
"""


def write_page(results: list[dict], runs: Path, planned: int) -> None:
    """docs/nvs.md, docs/nvs.csv and docs/nvs_views.png."""
    own = {"PSNR": "psnr", "SSIM": "ssim"}
    views = {"1 view": "psnr@inputs1", "3 views": "psnr@inputs3", "4 views": "psnr@inputs4"}
    frames = {"far": "psnr@far"}
    zoom = {"zoom": "psnr@zoom"}
    sheet = DOCS / "nvs_views.png"
    kinds = [(e, s) for s in ("canonical", "random", "zoom") for e in ("gta", "prope", "plucker", "none")]
    for name, setting, seed in [(*kind, seed) for kind in kinds for seed in (0, 1, 2)]:
        drawn = runs / f"{name}-{setting}-{seed}" / "views.png"
        if drawn.exists() and drawn.with_name("done.json").exists():
            about = PngInfo()  # the picture says what it shows, so that the page can be written again without the run
            about.add_text("Description", f"{TITLES[name]}, {SETTINGS[setting][1]}, seed {seed}")
            Image.open(drawn).save(sheet, pnginfo=about)
            break
    shows = Image.open(sheet).text.get("Description", "an unnamed run") if sheet.exists() else "nothing yet"
    page = PAGE.format(
        steps="/".join(sorted({str(r["steps"]) for r in results})),
        minutes=statistics.median(r["seconds"] for r in results) / 60,
        cells=len(results), planned=planned, effects=effects(results), picture=shows,
        random=setting_table(results, "random", own | frames | zoom | views),
        canonical=setting_table(results, "canonical", own | {"random": "psnr@random"} | frames | zoom | views),
        zoom=setting_table(results, "zoom", own | frames | views),
    )  # fmt: skip
    (DOCS / "nvs.md").write_text(page)
    with open(DOCS / "nvs.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["encoding", "setting", "seed", "steps", "seconds", "condition", "psnr", "ssim"])
        for r in results:
            for condition in CONDITIONS:
                at = f"@{condition}" if condition else ""
                metrics = [r["metrics"][f"val/{metric}{at}"] for metric in ("psnr", "ssim")]
                head = [r[key] for key in ("encoding", "setting", "seed", "steps", "seconds")]
                writer.writerow([*head, condition or "own", *metrics])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/nvs_table"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--minutes", type=float, default=None, help="start no cell after this time")
    parser.add_argument("--only-page", action="store_true", help="train nothing")
    args = parser.parse_args()
    jobs = [(e, s, seed) for part in (MAIN, MORE) for seed in args.seeds for e, s in part]
    known = {(r["encoding"], r["setting"], r["seed"]) for r in load(args.runs)}
    started = time.time()
    for name, setting, seed in [] if args.only_page else [job for job in jobs if job not in known]:
        if args.minutes is not None and time.time() - started > 60 * args.minutes:
            break
        result = cell(name, setting, seed, args.runs / f"{name}-{setting}-{seed}", args.steps)
        print(name, setting, seed, f"{result['seconds']} s", result["metrics"]["val/psnr"], flush=True)
    results = load(args.runs)
    if not results:
        sys.exit(f"{args.runs} and docs/nvs.csv hold no finished cell; run without --only-page")
    write_page(results, args.runs, planned=len(jobs))


if __name__ == "__main__":
    main()
