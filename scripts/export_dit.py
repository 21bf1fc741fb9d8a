"""Turn a run of configs/dit/glyphs*.yaml into a folder for EncodedDiT.from_pretrained, with card, accuracy and loss.

    python scripts/export_dit.py runs/dit/glyphs checkpoints/dit_glyph_rope_axial        # some 5 minutes of one core
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import vispe  # noqa: E402
from scripts.exporting import Figures, Run, Table, export  # noqa: E402
from train.data.glyph_diffusion import Signed  # noqa: E402
from train.diffusion_sampling import draw, make_scheduler  # noqa: E402
from train.objectives import Flow  # noqa: E402
from vispe.data.glyphs import GlyphDataset  # noqa: E402
from vispe.evaluation import GlyphJudge  # noqa: E402
from vispe.models.dit import EncodedDiT  # noqa: E402

SHIFT = 2.0  # of the noise levels in training and sampling: time_shift of the recipe
POSITIONS = {"extend": ("extend", None), "rescale": ("rescale", None), "NTK": ("extend", "ntk"), "YaRN": ("extend", "yarn")}
SIZES = {(32, 32): 4, (48, 48): 1, (64, 64): 1, (32, 64): 1}  # samples of each class
TOLERANCE = {"loss": 0.002, "class accuracy": 8.4}  # of the squared error; percent: two samples of 24
CARD = """# {name}

A class-conditional diffusion transformer of {parameters:,} parameters, made as `{task[model]}` with
{kwargs[depth]} blocks, {kwargs[hidden_size]} channels, {kwargs[num_heads]} heads and patch {kwargs[patch_size]}, trained by

    python -m train fit --config configs/dit/glyphs.yaml

on the 47 characters of Glyph-47 in training typefaces: {data[train_length]:,} new pictures of 32x32 px, {steps:,} steps of
{data[batch_size]}, seed {seed}, averaged weights in float16. It predicts the velocity of a flow (SiT's sign and time) in
pixels from -1 to 1; class 47 is the null class.

    model = EncodedDiT.from_pretrained(vispe.shipped("{name}"))             # of vispe.models.dit
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=2.0)      # of diffusers
    pipe = EncodedDiTPipeline(model, scheduler)                                           # of vispe.models.dit_pipeline
    pipe([10, 11, 12], height=48, width=48, num_inference_steps=25, guidance_scale=2.0).images

Class accuracy (%) under `checkpoints/judge_glyph` (25 Euler steps, guidance 2) of 4 samples a class at 32x32, and of one at
sizes that it was not trained at. Positions count on (`set_coords("extend")`), are squeezed ("rescale"), or frequencies change
(`set_extrapolation("ntk")`, "yarn"); at 32x32 all are the same:

{table}

A short training of a small model: read the figures, and the judge's own on real pictures (its card). One seed;
docs/diffusion.md has more. Written by `scripts/export_dit.py`; figures are measured with these weights. Licence Apache-2.0; the
pictures were rendered from open-licence fonts (vispe/data/GLYPHS.md).
"""


def build(run: Run) -> EncodedDiT:
    kwargs = run.task["model_kwargs"]
    if kwargs["prediction_type"] != "sit_velocity" or run.task["time_shift"] != SHIFT:
        raise ValueError(f"export_dit: knows the flow of configs/dit/glyphs.yaml with time_shift {SHIFT}, not {run.task}")
    return vispe.create_model(run.task["model"], **kwargs)


def save(model: EncodedDiT, folder: Path) -> None:
    model.save_pretrained(folder)


def load(folder: Path) -> EncodedDiT:
    return EncodedDiT.from_pretrained(folder, low_cpu_mem_usage=False).eval()  # True needs accelerate


def sample(
    model: EncodedDiT, positions: str, size: tuple[int, int], labels: list[int], *, count: int = 1, steps: int = 25
) -> Tensor:
    """Samples (labels · count, 1, H, W) in [0, 1] at guidance 2; the model comes back as it was."""
    coords, extrapolation = POSITIONS[positions]
    model.set_coords(coords)
    model.set_extrapolation(extrapolation)
    scheduler = make_scheduler(model.prediction_type, shift=SHIFT)
    found = draw(model, scheduler, labels, size, count=count, steps=steps, guidance=2.0, batch_size=47)
    model.set_coords(None)
    model.set_extrapolation(None)
    return found


def accuracy(model: EncodedDiT, positions: str, size: tuple[int, int], classes: int, **options: int) -> float:
    """Percent of samples of the first classes that the judge reads as what they should be."""
    labels = list(range(classes))
    images = sample(model, positions, size, labels, **options)
    truth = torch.tensor(labels).repeat_interleave(len(images) // classes)
    return round(100 * GlyphJudge(ROOT / "checkpoints/judge_glyph").accuracy(images, truth), 2)


@torch.no_grad()
def loss(model: EncodedDiT, pictures: int) -> float:
    """Mean squared error of the velocity on the first validation pictures, with fixed noise and noise levels."""
    data = Signed(GlyphDataset("val", size=32, length=pictures))
    x, y = torch.stack([data[i][0] for i in range(pictures)]), torch.tensor([int(data[i][1]) for i in range(pictures)])
    generator = torch.Generator().manual_seed(0)
    flow = Flow(model.prediction_type, times="logit_normal", shift=SHIFT)
    level = flow.draw(pictures, generator=generator)
    given = flow.noised(x, torch.randn(x.shape, generator=generator), level)
    return round(float(flow.losses(model(given.x, given.time, y), given)["mse"].mean()), 4)


def measure(model: EncodedDiT) -> Table:
    """{positions: {size: class accuracy}}; at the trained size all are the same."""
    classes, own = model.config.num_classes, (32, 32)
    first = accuracy(model, "extend", own, classes, count=SIZES[own])
    return {
        positions: {"32x32": first}
        | {f"{h}x{w}": accuracy(model, positions, (h, w), classes, count=n) for (h, w), n in SIZES.items() if (h, w) != own}
        for positions in POSITIONS
    }


def check(model: EncodedDiT) -> Figures:
    return dict(zip(TOLERANCE, (loss(model, 94), accuracy(model, "extend", (32, 32), 24, steps=10))))


if __name__ == "__main__":
    export(
        __file__, __doc__, build=build, save=save, load=load, measure=measure, check=check,
        card=CARD, head="positions", data="Glyph-47, plain, atlas format 1",
    )  # fmt: skip
