"""Turn the run of configs/dit/glyph_judge.yaml into the folder that judges samples, with its card and measured accuracy.

    python scripts/export_judge.py runs/dit/judge checkpoints/judge_glyph

Writes the averaged weights (float16) as timm's `local-dir:` layout. Everything in metrics.json is measured with the weights as
they are written, by `vispe.evaluation.GlyphJudge`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import timm
import torch
from export_checkpoint import top1
from timm.models import save_for_hf

import vispe
from train.data.glyphs import MEAN, STD
from vispe.data.glyphs import GlyphDataset
from vispe.evaluation.judge import GlyphJudge

SIZES = [(32, 32), (48, 48), (64, 64), (32, 64)]
CARD = """# {name}

A small convolutional net (timm's `{model}` with other widths, see config.json; {parameters:,} parameters)
that reads Glyph-47, made by `configs/dit/glyph_judge.yaml` ({step:,} steps of {batch} pictures, averaged weights, float16). It
judges whether samples of diffusion models show the class that was asked for:

    judge = vispe.evaluation.GlyphJudge("checkpoints/{name}")
    judge.accuracy(images, labels)          # (N, 1, H, W) in [0, 1], any size

Its own accuracy (%) on {images} real pictures a split, by the same rule (shorter side to 32 px, windows along a longer side):

| pictures | {sizes} |
|{rule}
{rows}

Typefaces of train, val and test are different families; samples of models trained on the train families look like those.
Licence Apache-2.0; the pictures were rendered from open-licence fonts (vispe/data/GLYPHS.md).
"""


def measure(judge: GlyphJudge, images: int) -> dict[str, dict[str, float]]:
    """{split: {size: accuracy in percent}}."""
    found: dict[str, dict[str, float]] = {}
    for split in ("test", "val", "train"):
        for size in SIZES:
            data = GlyphDataset(split, size=size, length=images)
            pictures = torch.stack([data[i][0] for i in range(images)])
            share = judge.accuracy(pictures, torch.from_numpy(data.labels))
            found.setdefault(split, {})[f"{size[0]}x{size[1]}"] = round(100 * share, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run_dir of `python -m train fit`")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--images", type=int, default=940)
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} exists; nothing is overwritten, give a new folder")
    checkpoint = torch.load(args.run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    config, prefix = checkpoint["hyper_parameters"], "ema.module."
    model = timm.create_model(config["model"], **config["model_kwargs"]).eval()
    state = {k.removeprefix(prefix): t.half() for k, t in checkpoint["state_dict"].items() if k.startswith(prefix)}
    model.load_state_dict(state, strict=True)
    model.pretrained_cfg.update(
        mean=(MEAN,), std=(STD,), input_size=(1, 32, 32), num_classes=47, crop_pct=1.0, tag="glyph47",
        origin_url="", license="apache-2.0", test_input_size=(1, 32, 32), test_crop_pct=1.0,
    )  # fmt: skip
    kwargs = {key: value for key, value in config["model_kwargs"].items() if key != "num_classes"}
    options = {"model_config": {"task": "image-classification"}, "model_args": kwargs, "safe_serialization": True}
    save_for_hf(model.half(), args.out, **options)
    judge = GlyphJudge(args.out)
    found = measure(judge, args.images)
    batch = checkpoint.get("datamodule_hyper_parameters", {}).get("batch_size", 64)
    metrics = {
        "images": args.images,
        "top1": found,
        "check": {"split": "val", "images": 200, "size": [32, 32], "top1": top1(judge.net, (32, 32), 200, "val")},
        "step": checkpoint["global_step"],
        "batch_size": batch,
        "data": "Glyph-47, plain, atlas format 1",
        "vispe": vispe.__version__,
    }
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    rows = "\n".join(f"| {split} | {' | '.join(f'{v:.1f}' for v in values.values())} |" for split, values in found.items())
    card = CARD.format(
        name=args.out.name, model=config["model"], step=checkpoint["global_step"], images=args.images, rows=rows,
        parameters=sum(p.numel() for p in model.parameters()), sizes=" | ".join(found["test"]), rule="---|" * (len(SIZES) + 1),
        batch=batch,
    )  # fmt: skip
    (args.out / "README.md").write_text(card)
    print(args.out, found, metrics["check"])


if __name__ == "__main__":
    main()
