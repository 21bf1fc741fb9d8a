"""Turn a finished classification run on Glyph-47 into a folder that timm loads offline, with its card and measured accuracy.

    python scripts/export_checkpoint.py runs/glyph_table/rope_mixed-0 checkpoints/vit_glyph_rope_mixed

Writes model.safetensors (float16), config.json (timm's `local-dir:` layout, the arguments of the model included),
metrics.json and README.md. Everything in metrics.json is measured with the weights as they are written.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import timm
import torch
from timm.models import save_for_hf
from torch.utils.data import DataLoader

import vispe
from train.data.glyphs import MEAN, STD, Standardised
from vispe.data.glyphs import GlyphDataset

SIZES = [(32, 32), (48, 48), (64, 64), (96, 96), (32, 48)]


@torch.no_grad()
def top1(model: torch.nn.Module, size: tuple[int, int], images: int, split: str = "test") -> float:
    """Share of the first images of a split that the model reads right, in percent."""
    data = Standardised(GlyphDataset(split, size=size, length=images))
    right = sum(int((model(x).argmax(-1) == y).sum()) for x, y in DataLoader(data, batch_size=100))
    return round(100 * right / images, 2)


def measure(model: torch.nn.Module, images: int) -> dict[str, dict[str, float]]:
    """{coordinate convention: {size: top-1}}; both conventions where the encoding has coordinates."""
    conventions = [None]
    if any(hasattr(encoding, "resize") for _, encoding in model.encoding.encodings()):
        conventions = ["extend", "rescale"]
    found = {}
    for convention in conventions:
        model.set_coords(convention)
        found[convention or "own"] = {f"{h}x{w}": top1(model, (h, w), images) for h, w in SIZES}
    model.set_coords(None)
    return found


def card(name: str, config: dict, metrics: dict, step: int) -> str:
    """The model card in Markdown."""
    sizes = [f"{h}x{w}" for h, w in SIZES]
    rows = "\n".join(
        f"| {convention} | " + " | ".join(f"{values[size]:.1f}" for size in sizes) + " |"
        for convention, values in metrics["top1"].items()
    )
    options = config["model_kwargs"].get("encoding_kwargs")
    options = f" with encoding_kwargs={options}" if options else ""
    return f"""# {name}

A ViT with 6 blocks, 128 channels, 4 heads and patch 4, made as `{config["model"]}`{options},
trained on Glyph-47 (embedded in vispe) at 32x32, {step:,} steps of {metrics["batch_size"]} images, seed {metrics["seed"]}.

    model = timm.create_model("local-dir:checkpoints/{name}", pretrained=True)   # after `import vispe`

Input: one grey channel, ({MEAN}, {STD}) taken off and divided by. Top-1 (%) on {metrics["images"]} pictures in test typefaces:

| positions | {" | ".join(sizes)} |
|{"---|" * (len(sizes) + 1)}
{rows}

One seed: see docs/glyphs.md for means and spreads. Licence Apache-2.0; the pictures were rendered from open-licence fonts
(vispe/data/GLYPHS.md). Made to show what encodings do, not to read documents.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run_dir of `python -m train fit`")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--images", type=int, default=1000)
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} exists; nothing is overwritten, give a new folder")
    checkpoint = torch.load(args.run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    config = checkpoint["hyper_parameters"]
    model = timm.create_model(config["model"], **config["model_kwargs"]).eval()
    state = {key.removeprefix("net."): t.half() for key, t in checkpoint["state_dict"].items() if key.startswith("net.")}
    model.load_state_dict(state, strict=True)
    module = checkpoint.get("datamodule_hyper_parameters", {})
    metrics = {
        "images": args.images,
        "top1": measure(model, args.images),
        "check": {"split": "val", "images": 200, "size": [32, 32], "top1": top1(model, (32, 32), 200, "val")},
        "seed": int(args.run.name.rpartition("-")[2]) if args.run.name.rpartition("-")[2].isdigit() else None,
        "batch_size": module.get("batch_size", 32),
        "step": checkpoint["global_step"],
        "data": "Glyph-47, plain, atlas format 1",
        "vispe": vispe.__version__,
    }
    height, width = model.patch_embed.img_size
    model.pretrained_cfg.update(
        mean=(MEAN,), std=(STD,), input_size=(1, height, width), num_classes=model.num_classes, crop_pct=1.0
    )
    save_for_hf(model.half(), args.out, model_config={"task": "image-classification"}, safe_serialization=True)
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    (args.out / "README.md").write_text(card(args.out.name, config, metrics, metrics["step"]))
    print(args.out, metrics["top1"], metrics["check"])


if __name__ == "__main__":
    main()
