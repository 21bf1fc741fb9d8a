"""Samples from a checkpoint of the diffusion task into one file, at any size.

    python -m train.generate runs/dit/glyphs/checkpoints/last.ckpt --out samples.npz --per_class 10 --size 48 48

The file has `arr_0` (N, H, W, C) uint8, as openai/guided-diffusion's evaluator takes it, and `labels` (N,). Weights are the
averaged ones where there are some. Sample i is a function of the seed, i and the size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from train.checkpoint import readable
from train.diffusion import DiffusionModule
from vispe.encodings.extrapolation import Extrapolation
from vispe.models.dit_zoo import is_dit


def load_task(path: str | Path, *, vae: str | None = None) -> DiffusionModule:
    """The task of a checkpoint with its weights, in evaluation mode.

    Args:
        vae: folder of an autoencoder that decodes the samples, in place of the checkpoint's.
    """
    with readable(path):
        content = torch.load(path, map_location="cpu", weights_only=True)
    settings = {k: v for k, v in content["hyper_parameters"].items() if k not in ("_class_path", "_instantiator")}
    if "model" not in settings or not is_dit(str(settings["model"])):
        raise ValueError(f"{path}: no checkpoint of the diffusion task (its model is {settings.get('model')!r})")
    task = DiffusionModule(**settings | {"init_from": None, "compile": None} | ({"vae": vae} if vae else {}))
    task.load_state_dict(content["state_dict"], strict=False)
    missing = set(task.state_dict()) - set(content["state_dict"])
    if missing:
        raise ValueError(f"{path}: lacks {len(missing)} tensors, e.g. {min(missing)}; it is of another version of the task")
    return task.eval()


def to_bytes(images: torch.Tensor) -> np.ndarray:
    """(N, C, H, W) in [0, 1] to (N, H, W, C) uint8."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m train.generate", description=__doc__.splitlines()[0])
    found.add_argument("checkpoint", type=Path)
    found.add_argument("--out", type=Path, required=True, help="a .npz file")
    found.add_argument("--classes", type=int, nargs="+", default=None, help="class ids; all of them by default")
    found.add_argument("--per_class", type=int, default=1, help="samples of each class (unconditional: samples)")
    found.add_argument("--size", type=int, nargs=2, default=None, metavar=("H", "W"), help="latent cells")
    found.add_argument("--steps", type=int, default=None, help="of the sampler; the recipe's by default")
    found.add_argument("--guidance", type=float, default=None, help="the recipe's by default")
    found.add_argument("--guide_channels", type=int, default=None, help="official DiT: 3")
    found.add_argument("--extrapolation", default=None, help="ntk, yarn, ... for rotary encodings on larger grids")
    found.add_argument("--temperature", default="none", help="attention on larger grids: log_n, log_n_up (RPE-2D's), yarn")
    found.add_argument("--vae", default=None, help="folder of the autoencoder that decodes")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--batch_size", type=int, default=64)
    found.add_argument("--device", default="cpu")
    return found


def main(args: list[str] | None = None) -> None:
    p = parser().parse_args(args)
    task = load_task(p.checkpoint, vae=p.vae).to(p.device)
    if p.temperature != "none":
        task.evaluated.set_extrapolation(Extrapolation(p.extrapolation or "none", temperature=p.temperature))
    elif p.extrapolation is not None:
        task.evaluated.set_extrapolation(p.extrapolation)
    own = task.net.config.input_size
    size = tuple(p.size or ((own, own) if isinstance(own, int) else own))
    classes = None if not task.num_classes else p.classes if p.classes is not None else list(range(task.num_classes))
    options = {k: v for k in ("steps", "guidance", "guide_channels") if (v := getattr(p, k)) is not None}
    images = task.sample(classes, size, count=p.per_class, seed=p.seed, batch_size=p.batch_size, **options)
    labels = np.repeat([-1] if classes is None else classes, p.per_class)
    p.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(p.out, arr_0=to_bytes(images), labels=labels)
    print(f"{len(images)} samples of {tuple(images.shape[1:])} are in {p.out}")


if __name__ == "__main__":
    main()
