"""Turn a run of configs/vlm/haystack.yaml into a folder for VisionLanguageModel.from_pretrained, with card and accuracy.

    python scripts/export_vlm.py runs/vlm/haystack checkpoints/vlm_haystack_v2pe
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.exporting import Figures, Run, Table, export  # noqa: E402
from train.data.probes import join  # noqa: E402
from vispe.data.probes import VOCABULARY, Haystack  # noqa: E402
from vispe.models.vlm import VisionLanguageModel  # noqa: E402

load = VisionLanguageModel.from_pretrained
FRAMES, RATES = (8, 32, 64, 128), (1.0, 0.25, 0.125)
TOLERANCE = {"8 frames": 1.0, "64 frames, delta 1/8": 2.5, "64 frames, delta 1": 5.0}  # percent: one or two questions
CARD = """# {name}

A vision-language model of {parameters:,} parameters with the position ids of V2PE (Ge et al., ICCV 2025, arXiv 2412.09616),
trained by

    python -m train fit --config configs/vlm/haystack.yaml --model.scheme {task[scheme]}

on one question: a video of 2 x 2 cells a frame, each a character, one of them on red; which character is right of it?
{steps:,} steps of {data[batch_size]} new questions about 1 to 8 frames, seed {seed}, weights in float16. The tower
sees cells one by one, so that position ids alone tell where something is.

    model = VisionLanguageModel.from_pretrained(vispe.shipped("{name}"))      # of vispe.models.vlm

Questions are drawn by `vispe.data.Haystack`; `train.data.probes.join` makes batches of them (0.3 taken off pixels and divided
by). `model(batch, rates=[[delta], ...])` takes V2PE's delta, the step of ids from one visual token to the next.

Accuracy (%) on 200 test questions each, by delta and by number of frames; chance is 12.5:

{table}

Small steps keep the ids of long videos within those of training. One seed: docs/vlm_probes.md has three, and other schemes.
Written by `scripts/export_vlm.py`; figures are measured with these weights. Licence Apache-2.0; the characters were rendered
from open-licence fonts (vispe/data/GLYPHS.md). Made to show what position ids do; it answers nothing else.
"""


def build(run: Run) -> VisionLanguageModel:
    task = run.task
    return VisionLanguageModel(
        len(VOCABULARY), scheme=task["scheme"], scheme_kwargs=task.get("scheme_kwargs"), **task["model_kwargs"]
    )


@torch.no_grad()
def accuracy(model: VisionLanguageModel, frames: int, rate: float, questions: int, split: str) -> float:
    """Percent of the first questions of a split whose answer is the most probable token."""
    probe, right = Haystack(split, frames=frames, length=questions), 0
    for start in range(0, questions, 20):
        batch = join([probe[i] for i in range(start, min(start + 20, questions))])
        logits = model(batch.sequences, rates=[[rate]] * len(batch.answers), last=True)
        right += int((logits.argmax(-1) == batch.answers).sum())
    return round(100 * right / questions, 2)


def measure(model: VisionLanguageModel) -> Table:
    """{delta: {frames: accuracy}} of 200 test questions each."""
    return {f"1/{1 / rate:.0f}": {str(n): accuracy(model, n, rate, 200, "test") for n in FRAMES} for rate in RATES}


def check(model: VisionLanguageModel) -> Figures:
    cases = ((8, 0.25, 100), (64, 0.125, 40), (64, 1.0, 40))
    return {name: accuracy(model, *case, "val") for name, case in zip(TOLERANCE, cases)}


if __name__ == "__main__":
    export(
        __file__, __doc__, build=build, save=VisionLanguageModel.save_pretrained, load=load, measure=measure, check=check,
        card=CARD, head="delta", data="vispe.data.Haystack, atlas format 1",
    )  # fmt: skip
