"""Turn a run of configs/video/two_shot*.yaml into a folder that timm loads offline, with card and measured accuracy.

    python scripts/export_video.py runs/video/two_shot_learned checkpoints/vid_two_shot_learned
"""

from __future__ import annotations

import sys
from pathlib import Path

import timm
import torch
from timm.models import save_for_hf
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.exporting import Figures, Run, Table, export  # noqa: E402
from train.data.clips import MEAN, STD, Standardised  # noqa: E402
from vispe.data.two_shot import CLASSES, TwoShot  # noqa: E402
from vispe.models.video_vit import EncodedVideoTransformer  # noqa: E402

CLIPS = [(8, 32, 32), (16, 32, 32), (8, 48, 48), (8, 32, 64)]
TOLERANCE = {"top-1": 2.0, "pair": 2.0}  # percent: two clips
CARD = """# {name}

A video ViT of {parameters:,} parameters, made as `{task[model]}` with {kwargs[depth]} blocks,
{kwargs[embed_dim]} channels and {kwargs[num_heads]} heads (config.json has all of it), trained by

    python -m train fit --config configs/video/two_shot.yaml --config configs/video/two_shot_learned.yaml

on Two-Shot motion (`vispe.data.TwoShot`, 20 classes: pairs of motions, and their order, which only positions in time tell):
{data[train_length]:,} clips of 8 frames of 32x32 px, {steps:,} steps of {data[batch_size]}, seed {seed}, weights in
float16.

    model = timm.create_model(f"local-dir:{{vispe.shipped('{name}')}}", pretrained=True)

Input: (B, 3, frames, H, W) in [0, 1], 0.4 taken off and divided by 0.27. Percent of 1,000 test clips, by frames and pixels;
"pair" counts the right motions in the wrong order as right. For more frames (the same motion seen more often) and larger ones
the tables are resampled:

{table}

One seed; docs/video.md has what a model without positions gets. Written by `scripts/export_video.py`; figures are measured with
these weights. Licence Apache-2.0; sprites and backgrounds are those of the embedded atlas (vispe/data/GLYPHS.md). Made to show
what positions in time do; it knows no other videos.
"""


def build(run: Run) -> EncodedVideoTransformer:
    model = timm.create_model(run.task["model"], **run.task["model_kwargs"])
    model.pretrained_cfg.update(
        tag="two_shot", mean=(MEAN,) * 3, std=(STD,) * 3, input_size=(3, *model.patch_embed.img_size),
        num_classes=len(CLASSES), crop_pct=1.0,
    )  # fmt: skip
    return model


def save(model: EncodedVideoTransformer, folder: Path) -> None:
    save_for_hf(model, folder, model_config={"task": "video-classification"}, safe_serialization=True)


def load(folder: Path) -> EncodedVideoTransformer:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@torch.no_grad()
def top1(model: EncodedVideoTransformer, clip: tuple[int, int, int], clips: int, split: str) -> tuple[float, float]:
    """Percent of the first clips of a split whose class is right, and whose pair of motions is."""
    frames, *size = clip
    data = Standardised(TwoShot(split, size=tuple(size), frames=frames, length=clips))
    said = [(model(x).argmax(-1), y) for x, y in DataLoader(data, batch_size=50)]
    said, truth = (torch.cat(part) for part in zip(*said))
    return tuple(round(100 * float((a == b).float().mean()), 2) for a, b in ((said, truth), (said // 2, truth // 2)))


def measure(model: EncodedVideoTransformer) -> Table:
    """{"top-1" or "pair": {size: percent}} of 1,000 test clips."""
    found = {"x".join(map(str, clip)): top1(model, clip, 1000, "test") for clip in CLIPS}
    return {name: {size: values[i] for size, values in found.items()} for i, name in enumerate(TOLERANCE)}


def check(model: EncodedVideoTransformer) -> Figures:
    return dict(zip(TOLERANCE, top1(model, CLIPS[0], 100, "val")))


if __name__ == "__main__":
    export(
        __file__, __doc__, build=build, save=save, load=load, measure=measure, check=check,
        card=CARD, head="", data="vispe.data.TwoShot, atlas format 1",
    )  # fmt: skip
