"""Turn a run of configs/nvs/ into a folder for ViewTransformer.from_pretrained, with card and measured PSNR.

    python scripts/export_nvs.py runs/nvs_table/gta-canonical-0 checkpoints/nvs_scenes_gta
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.exporting import Figures, Run, Table, export  # noqa: E402
from train.data.scenes import NvsScenes  # noqa: E402
from vispe.models.nvs import ViewTransformer  # noqa: E402

load = ViewTransformer.from_pretrained
CONDITIONS = {
    "as trained": {}, "far frame": {"frame": "far"}, "other focal lengths": {"focal_spread": 0.5}, "1 view": {"inputs": 1},
    "3 views": {"inputs": 3}, "4 views": {"inputs": 4},
}  # fmt: skip
TOLERANCE = {"psnr": 0.05, "psnr, far frame": 0.05, "psnr, mean of the views": 0.01}  # dB
CARD = """# {name}

A transformer of {parameters:,} parameters that renders a view from other views, with GTA as the encoding of cameras (Miyato et
al., ICLR 2024, arXiv 2310.10375): two views of 32x32 px are given, a third is rendered. Trained by

    python -m train fit --config configs/nvs/base.yaml --config configs/nvs/gta.yaml --seed_everything {seed}

on drawn spheres (`vispe.data.Scenes`, the first given camera is the origin): {steps:,} steps of {data[batch_size]} new
scenes, weights in float16.

    model = ViewTransformer.from_pretrained(vispe.shipped("{name}"))      # of vispe.models
    scene = Scenes("test", views=3, size=32, length=8).batch(range(8))           # of vispe.data
    model(scene["images"][:, :2], scene["world_to_camera"], scene["intrinsics"])     # (8, 1, 3, 32, 32) in [0, 1]

PSNR (dB) on 256 test scenes; the second row is what the mean of the given views has:

{table}

A training of about a minute: it draws no sharp edge. GTA reads relative poses alone, so that another frame of the world changes
nothing. One seed: docs/nvs.md has more, and other encodings. Written by `scripts/export_nvs.py`; figures are measured with
these weights. Licence Apache-2.0; the scenes are drawn by vispe.
"""


def build(run: Run) -> ViewTransformer:
    if run.task["model"] != "views":
        raise ValueError(f"export_nvs: ships ViewTransformer (model: views), the run has {run.task['model']!r}")
    return ViewTransformer(**run.task["model_kwargs"])


def psnr(rendered: Tensor, truth: Tensor) -> float:
    """dB of the mean squared error over all pixels, colours in [0, 1]."""
    return round(float(-10 * (rendered - truth).square().mean().log10()), 3)


@torch.no_grad()
def quality(model: ViewTransformer, split: str, scenes: int, **changes: object) -> tuple[float, float]:
    """PSNR of the model, and of the mean of the given views."""
    data = NvsScenes(val_length=scenes, test_length=scenes).eval_dataset(split, (32, 32), **changes)
    views = [torch.stack(part) for part in zip(*data.__getitems__(list(range(scenes))))]
    images, truth, cameras, intrinsics = views
    parts = zip(*(t.split(48) for t in (images, cameras, intrinsics)))
    return psnr(torch.cat([model(*part) for part in parts]), truth), psnr(images.mean(1, keepdim=True), truth)


def measure(model: ViewTransformer) -> Table:
    """{condition: PSNR} of 256 test scenes."""
    found = {name: quality(model, "test", 256, **changes) for name, changes in CONDITIONS.items()}
    return {
        "this model": {name: values[0] for name, values in found.items()},
        "mean of the given views": {name: values[1] for name, values in found.items()},
    }


def check(model: ViewTransformer) -> Figures:
    own, mean = quality(model, "val", 24)
    return dict(zip(TOLERANCE, (own, quality(model, "val", 24, frame="far")[0], mean)))


if __name__ == "__main__":
    export(
        __file__, __doc__, build=build, save=ViewTransformer.save_pretrained, load=load, measure=measure, check=check,
        card=CARD, head="", data="vispe.data.Scenes, canonical frame, 3 spheres",
    )  # fmt: skip
