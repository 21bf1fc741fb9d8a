"""How good a set of generated pictures is, against real ones.

    python -m train.evaluate_images samples.npz --reference real.npz                            feature distance, offline
    python -m train.evaluate_images samples.npz --glyphs test --judge checkpoints/judge_glyph   Glyph-47, class accuracy too
    python -m train.evaluate_images samples.npz --reference ADM.npz --inception WEIGHTS         FID, sFID, IS, precision, recall

Pictures are `arr_0` (N, H, W, C) uint8 in .npz files (guided-diffusion's and `train.generate`'s layout) or a folder of picture
files. With a reference batch of guided-diffusion FID and sFID use its statistics, precision and recall its pictures.
Only the 2015 Inception network's distance is called FID. Compare equal numbers of pictures: few pictures make distances larger.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vispe.evaluation import (
    FeatureStatistics,
    GlyphJudge,
    Statistics,
    frechet_distance,
    inception_score,
    precision_recall,
    read_adm,
    statistics,
)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
FLOOR = 10_000  # below this many pictures a distance says so


def batches(path: Path, size: int) -> Iterator[Tensor]:
    """Pictures of a .npz or a folder, (B, C, H, W) in [0, 1]."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not files:
            raise FileNotFoundError(f"{path}: holds no pictures ({', '.join(SUFFIXES)})")
        for start in range(0, len(files), size):
            arrays = [np.asarray(Image.open(p).convert("RGB")) for p in files[start : start + size]]
            if len({a.shape for a in arrays}) > 1:
                raise ValueError(f"{path}: pictures of several sizes, e.g. {arrays[0].shape}; bring them to one size first")
            yield as_pictures(np.stack(arrays), path)
        return
    with np.load(path) as file:
        if "arr_0" not in file.files:
            raise ValueError(f"{path}: holds {sorted(file.files)}, pictures are in arr_0 (N, H, W, C) uint8")
        array = file["arr_0"]
    for start in range(0, len(array), size):
        yield as_pictures(array[start : start + size], path)


def as_pictures(array: np.ndarray, path: Path) -> Tensor:
    """Bytes (B, H, W, 1 or 3) to floats (B, C, H, W)."""
    if array.ndim != 4 or array.dtype != np.uint8 or array.shape[-1] not in (1, 3):
        raise ValueError(f"{path}: pictures are (N, H, W, 1 or 3) uint8, got {array.shape} {array.dtype}")
    return torch.from_numpy(array).permute(0, 3, 1, 2).float() / 255


def glyphs(split: str, size: tuple[int, int], count: int, batch: int) -> Iterator[Tensor]:
    """Real pictures of Glyph-47."""
    from vispe.data.glyphs import GlyphDataset

    data = GlyphDataset(split, size=size, length=count)
    for start in range(0, count, batch):
        yield torch.stack([data[i][0] for i in range(start, min(start + batch, count))])


def lite0_metrics(samples: Iterator[Tensor], real: Iterator[Tensor], *, k: int = 3) -> dict[str, float]:
    """Feature distance, and precision and recall on the same features."""
    from vispe.evaluation.lite0 import Lite0Features

    net = Lite0Features()
    a, b = (torch.cat([net(x) for x in part]) for part in (samples, real))
    precision, recall = precision_recall(b, a, k=k)
    distance = frechet_distance(statistics(a), statistics(b))
    return {
        "feature_distance": distance, "feature_precision": precision, "feature_recall": recall, "samples": len(a),
        "real": len(b),
    }  # fmt: skip


def inception_metrics(
    samples: Iterator[Tensor], real: Iterator[Tensor], weights: Path, stored: dict[str, Statistics]
) -> dict[str, float]:
    """FID, sFID, IS, precision and recall; `stored` statistics of the reference win over those of its pictures."""
    from vispe.evaluation.inception import InceptionFeatures

    net = InceptionFeatures(weights)
    pooled: list[list[Tensor]] = [[], []]
    found: list[dict[str, FeatureStatistics]] = []
    probabilities = []
    for part, source in enumerate((samples, real)):
        counters = {"pool3": FeatureStatistics(), "spatial": FeatureStatistics()}
        for x in source:
            out = net(x)
            pooled[part].append(out.pool3)
            counters["pool3"].update(out.pool3)
            counters["spatial"].update(out.spatial)
            if part == 0:
                probabilities.append(out.probabilities)
        found.append(counters)
    reference = {key: stored.get(key) or found[1][key].result() for key in found[1]}
    precision, recall = precision_recall(torch.cat(pooled[1]), torch.cat(pooled[0]))
    return {
        "FID": frechet_distance(found[0]["pool3"].result(), reference["pool3"]),
        "sFID": frechet_distance(found[0]["spatial"].result(), reference["spatial"]),
        "IS": inception_score(torch.cat(probabilities)), "precision": precision, "recall": recall,
        "samples": found[0]["pool3"].count, "real": found[1]["pool3"].count,
    }  # fmt: skip


def evaluate(p: argparse.Namespace) -> dict[str, Any]:
    """Every metric that was asked for."""
    first = next(batches(p.samples, 1))
    if p.glyphs:
        real = glyphs(p.glyphs, tuple(first.shape[-2:]), p.count, p.batch_size)
    else:
        real = batches(p.reference, p.batch_size)
    samples = batches(p.samples, p.batch_size)
    if p.inception:
        statistics_file = p.reference is not None and p.reference.suffix == ".npz"
        stored = {}
        if statistics_file:
            with np.load(p.reference) as file:
                stored = read_adm(p.reference) if "mu" in file.files else {}
        result: dict[str, Any] = inception_metrics(samples, real, p.inception, stored)
    else:
        result = lite0_metrics(samples, real)
    if p.judge:
        if p.samples.is_dir():
            raise ValueError(f"{p.samples}: a folder has no labels to judge by; give the .npz of train.generate")
        with np.load(p.samples) as file:
            labels = torch.from_numpy(file["labels"])
        pictures = torch.cat(list(batches(p.samples, p.batch_size)))
        result["class_accuracy"] = GlyphJudge(p.judge).accuracy(pictures, labels)
    if result["samples"] < FLOOR:
        result["note"] = f"{result['samples']} samples: compare with results of as many only"
    return result


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m train.evaluate_images", description=__doc__.splitlines()[0])
    found.add_argument("samples", type=Path, help=".npz with arr_0, or a folder of pictures")
    real = found.add_mutually_exclusive_group(required=True)
    real.add_argument("--reference", type=Path, help=".npz with arr_0 (e.g. of guided-diffusion), or a folder")
    real.add_argument("--glyphs", choices=("train", "val", "test"), help="real Glyph-47 pictures of the samples' size")
    found.add_argument("--count", type=int, default=940, help="how many of them")
    found.add_argument("--inception", type=Path, default=None, help="weights of torch-fidelity's port, for FID and the rest")
    found.add_argument("--judge", type=Path, default=None, help="checkpoints/judge_glyph: class accuracy of Glyph-47 samples")
    found.add_argument("--batch_size", type=int, default=50)
    return found


def main(args: list[str] | None = None) -> None:
    print(json.dumps(evaluate(parser().parse_args(args)), indent=1))


if __name__ == "__main__":
    main()
