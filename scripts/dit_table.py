"""Trains diffusion on Glyph-47 with several encodings, samples at sizes never trained, and writes docs/dit_table.md.

    OMP_NUM_THREADS=1 python scripts/dit_table.py                              # what is missing, seeds 0, 1 and 2
    OMP_NUM_THREADS=1 python scripts/dit_table.py --seeds 1 --minutes 60       # one seed; begins nothing after an hour
    python scripts/dit_table.py --only-page

Four trainings a seed by configs/dit/glyphs.yaml (R = 32 x 32), seven rows: RoPE with interpolation, NTK and YaRN is the RoPE
model sampled in another way. A training leaves `done.json` in its folder, an evaluated row `eval_ROW.json`; both are not done
again, nor is a row of docs/dit_table.csv (`scripts/cells.py`), and a training that was stopped goes on from its checkpoint.
Processes with other `--seeds` or `--rows` of other trainings may run side by side; the page is then written by `--only-page`.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics as stats
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
CONFIGS, DOCS = ROOT / "configs/dit", ROOT / "docs"
JUDGE = ROOT / "checkpoints/judge_glyph"
sys.path.insert(0, str(ROOT))

from scripts.cells import finished, fit, grouped, shown, table  # noqa: E402

ROWS = {  # row: (training, how frequencies extrapolate, title)
    "rope_axial": ("rope_axial", None, "axial RoPE"),
    "rope_pi": ("rope_axial", "pi", "axial RoPE + interpolation"),
    "rope_ntk": ("rope_axial", "ntk", "axial RoPE + NTK"),
    "rope_yarn": ("rope_axial", "yarn", "axial RoPE + YaRN"),
    "sincos": ("sincos", None, "sin-cos table"),
    "rpe2d": ("rpe2d", None, "RPE-2D (axial RoPE)"),
    "harope": ("harope", None, "HARoPE"),
}
SIZES = {"R": (32, 32), "1.5R": (48, 48), "2R": (64, 64), "1:2": (32, 64)}
SHOWN = (3, 10, 14, 26, 37)  # classes of the picture
REAL_SEED, REAL = 12345, 470  # real pictures in training typefaces that no training saw


def train(name: str, seed: int, folder: Path, length: int) -> dict:
    """One training; goes on where it was stopped."""
    if (folder / "done.json").exists():
        return json.loads((folder / "done.json").read_text())
    args = ["--config", str(CONFIGS / "glyphs.yaml")]
    args += ["--config", str(CONFIGS / f"glyphs_{name}.yaml")] if name != "rope_axial" else []
    args += ["--seed_everything", str(seed), "--data.train_length", str(length), "--model.sample_sizes", "[[32, 32]]"]
    args += ["--ckpt_path", "last"] if (folder / "checkpoints/last.ckpt").exists() else []
    metrics, cost = fit(args, folder)
    loss = metrics.get("val/loss")  # none where only this file was missing after the last step
    result = {"training": name, "seed": seed, "length": length, "seconds": cost["seconds"], "loss": loss}
    (folder / "done.json").write_text(json.dumps(result, indent=1))
    return result


def real_features(size: tuple[int, int], runs: Path, net: torch.nn.Module) -> Tensor:
    """Features of real pictures of a size, kept beside the runs."""
    from vispe.data.glyphs import GlyphDataset

    path = runs / f"real_{size[0]}x{size[1]}.pt"
    if not path.exists():
        data = GlyphDataset("train", size=size, length=REAL, seed=REAL_SEED)
        pictures = torch.stack([data[i][0] for i in range(REAL)])
        torch.save(torch.cat([net(x) for x in pictures.split(47)]), path)
    return torch.load(path, weights_only=True)


def evaluate(row: str, seed: int, folder: Path, runs: Path, per_class: int) -> dict:
    """Class accuracy and feature distance of a row at every size; the first samples of each class are kept."""
    from train.generate import load_task
    from vispe.evaluation import GlyphJudge, frechet_distance, statistics
    from vispe.evaluation.lite0 import Lite0Features

    target = folder / f"eval_{row}.json"
    if target.exists():
        return json.loads(target.read_text())
    training = json.loads((folder / "done.json").read_text())
    torch.set_num_threads(1)
    task, net, judge = load_task(folder / "checkpoints/last.ckpt"), Lite0Features(), GlyphJudge(JUDGE)
    task.evaluated.set_extrapolation(ROWS[row][1])
    labels = torch.arange(task.num_classes).repeat_interleave(per_class)
    found, kept, started = {}, {}, time.time()
    for name, size in SIZES.items():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            images = task.sample(list(range(task.num_classes)), size, count=per_class, batch_size=8)  # fits the cache
        features = torch.cat([net(x) for x in images.split(47)])
        distance = frechet_distance(statistics(features), statistics(real_features(size, runs, net)))
        found[name] = {"accuracy": 100 * judge.accuracy(images, labels), "distance": distance}
        kept[name] = (images[::per_class] * 255).round().to(torch.uint8)
    torch.save(kept, folder / f"samples_{row}.pt")
    result = {"row": row, "seed": seed, "length": training["length"], "train_seconds": training["seconds"]}
    result |= {"samples": len(labels), "seconds": round(time.time() - started), "sizes": found}
    target.write_text(json.dumps(result, indent=1))
    return result


def evaluate_real(runs: Path) -> dict:
    """The same metrics for real pictures that are not the reference: what a perfect model would have."""
    path = runs / "real/eval_real.json"
    if not path.exists():
        from vispe.data.glyphs import GlyphDataset
        from vispe.evaluation import GlyphJudge, frechet_distance, statistics
        from vispe.evaluation.lite0 import Lite0Features

        net, judge, found, started = Lite0Features(), GlyphJudge(JUDGE), {}, time.time()
        for name, size in SIZES.items():
            data = GlyphDataset("train", size=size, length=188, seed=REAL_SEED + 1)
            pictures = torch.stack([data[i][0] for i in range(len(data))])
            features = torch.cat([net(x) for x in pictures.split(47)])
            distance = frechet_distance(statistics(features), statistics(real_features(size, runs, net)))
            found[name] = {"accuracy": 100 * judge.accuracy(pictures, torch.from_numpy(data.labels)), "distance": distance}
        result = {"row": "real", "seed": REAL_SEED + 1, "length": 0, "train_seconds": 0}
        result |= {"samples": len(data), "seconds": round(time.time() - started), "sizes": found}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1))
    return json.loads(path.read_text())


HEAD = ("row", "seed", "length", "train_seconds", "samples", "seconds")


def read(rows: list[dict[str, str]]) -> list[dict]:
    """The rows of docs/dit_table.csv, by row and seed."""
    return [
        head | {"sizes": {r["size"]: {key: float(r[key]) for key in ("accuracy", "distance")} for r in own}}
        for head, own in grouped(rows, HEAD)
    ]


def load(runs: Path) -> list[dict]:
    """Every row that was evaluated, real pictures among them."""
    return finished(runs.glob("*/eval_*.json"), DOCS / "dit_table.csv", read, ("row", "seed"))


def metric_table(results: list[dict], metric: str) -> str:
    """Markdown: a row an encoding, a column a size."""
    lines = []
    for row, title in [*((row, title) for row, (_, _, title) in ROWS.items()), ("real", "real pictures")]:
        own = [r for r in results if r["row"] == row]
        if own:
            cells = [shown({r["seed"]: r["sizes"][size][metric] for r in own}, 1) for size in SIZES]
            lines.append([title, "–" if row == "real" else str(len(own)), *cells])
    return table(["encoding", "seeds", *SIZES], lines)


def draw_picture(runs: Path, path: Path) -> None:
    """Some classes of every row at every size, of the seed with most rows; a picture that shows more rows is kept."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    from train.diffusion_sampling import grid_of

    kept_rows = int(Image.open(path).text.get("Rows", 0)) if path.exists() else 0
    drawn = {
        seed: [row for row, (name, *_) in ROWS.items() if (runs / f"{name}-{seed}/samples_{row}.pt").exists()]
        for seed in sorted({int(f.parent.name.rsplit("-")[-1]) for f in runs.glob("*/samples_*.pt")})
    }
    seed, rows = max(drawn.items(), key=lambda item: len(item[1]), default=(0, []))
    if not rows or len(rows) < kept_rows:
        return
    widths = [w / h for h, w in SIZES.values()]
    figure, axes = pyplot.subplots(
        len(rows), len(SIZES), squeeze=False, figsize=(2.2 * sum(widths), 0.62 * len(rows)), width_ratios=widths
    )
    for line, row in zip(axes, rows):
        kept = torch.load(runs / f"{ROWS[row][0]}-{seed}/samples_{row}.pt", weights_only=True)
        for axis, size in zip(line, SIZES):
            sheet = grid_of(kept[size][list(SHOWN)].float() / 255, columns=len(SHOWN))
            axis.imshow(sheet[0].numpy(), cmap="gray", vmin=0, vmax=1, aspect="auto")
            axis.set_xticks([])
            axis.set_yticks([])
            if row == rows[0]:
                axis.set_title(f"{size}: {SIZES[size][0]} x {SIZES[size][1]}", fontsize=7)
        line[0].set_ylabel(ROWS[row][2].replace(" (", "\n(").replace(" + ", "\n+ "), fontsize=5)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=200, metadata={"Description": f"seed {seed}", "Rows": str(len(rows))})
    pyplot.close(figure)


PAGE = """# Diffusion at sizes never trained

Written by `scripts/dit_table.py` from the runs named below; nothing here is typed in. A diffusion transformer of 2.4 M
parameters (144 channels, 6 blocks, patches of 4) learns Glyph-47 at R = 32 x 32 by `configs/dit/glyphs.yaml` ({length} new
pictures, {minutes:.0f} minutes on one thread of a shared machine) and draws 47 classes at sizes it never saw ({samples}
pictures a seed and size, 25 Euler steps, guidance 2). {cells} of {planned} rows are finished; missing ones are left out, not
guessed.

Interpolation (positions squeezed onto the trained range), NTK and YaRN are the axial RoPE model, sampled with other
frequencies; only rotary encodings take them. RPE-2D trains on ordered
random places of twice the grid and samples at the mean of that law; its attention scale, time shift and crops are off. HARoPE
without QK-norm is a reparametrisation of axial RoPE.

## Class accuracy (%) under the judge of `checkpoints/judge_glyph`

{accuracy}

## Feature distance (Fréchet, EfficientNet-Lite0; this is no FID)

Against {real} real pictures of the same size in the training typefaces. With {samples} samples and 1,280 features it is biased
upwards for everyone, real pictures too; compare within a column.

{distance}

![samples](dit_samples.png)

Classes {shown} at each size, the first sample of each, {picture}.

    OMP_NUM_THREADS=1 python scripts/dit_table.py
"""


def write_page(runs: Path, planned: int) -> None:
    """docs/dit_table.md, docs/dit_table.csv and docs/dit_samples.png."""
    from PIL import Image

    from vispe.data.atlas import CLASSES

    results = load(runs)
    own = [r for r in results if r["row"] != "real"]
    if not own:
        sys.exit(f"{runs} and docs/dit_table.csv hold no finished row; run without --only-page")
    sheet = DOCS / "dit_samples.png"
    draw_picture(runs, sheet)
    shows = Image.open(sheet).text.get("Description", "one seed") if sheet.exists() else "nothing yet"
    page = PAGE.format(
        length="/".join(sorted({f"{r['length']:,}" for r in own})),
        minutes=stats.median(r["train_seconds"] for r in own) / 60,
        samples="/".join(sorted({str(r["samples"]) for r in own})), cells=len(own), planned=planned, real=REAL,
        accuracy=metric_table(results, "accuracy"), distance=metric_table(results, "distance"),
        picture=shows, shown=", ".join(f"“{CLASSES[c]}”" for c in SHOWN),
    )  # fmt: skip
    (DOCS / "dit_table.md").write_text(page)
    with open(DOCS / "dit_table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*HEAD, "size", "accuracy", "distance"])
        for r in results:
            for name, found in r["sizes"].items():
                writer.writerow([*(r[key] for key in HEAD), name, round(found["accuracy"], 2), round(found["distance"], 3)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/dit_table"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--length", type=int, default=96_000, help="training pictures")
    parser.add_argument("--per-class", type=int, default=4, help="samples of each class")
    parser.add_argument("--minutes", type=float, default=None, help="begin nothing after this time")
    parser.add_argument("--only-page", action="store_true", help="train and sample nothing")
    args = parser.parse_args()
    known = {(r["row"], r["seed"]) for r in load(args.runs)}
    wanted = [(seed, row) for seed in args.seeds for row in args.rows if (row, seed) not in known]
    started = time.time()
    for seed, row in [] if args.only_page else wanted:
        name = ROWS[row][0]
        folder = args.runs / f"{name}-{seed}"
        steps = (
            lambda: train(name, seed, folder, args.length),
            lambda: evaluate(row, seed, folder, args.runs, args.per_class),
        )
        for step in steps:
            if args.minutes is not None and time.time() - started > 60 * args.minutes:
                break
            print(row, seed, json.dumps(step()), flush=True)
    if not args.only_page and not any(row == "real" for row, _ in known):
        evaluate_real(args.runs)
    write_page(args.runs, planned=3 * len(ROWS))


if __name__ == "__main__":
    main()
