"""Data of diffusion models: glyphs in [-1, 1], latents in three layouts, an autoencoder in between; what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from train_helpers import losses, run

from train.data.glyph_diffusion import GlyphDiffusion
from train.data.latent_files import open_latents
from train.data.latents import LatentFolder
from train.data.sampling import Key
from train.diffusion import DiffusionModule
from train.diffusion_latents import AutoencoderLatents
from vispe.data.glyphs import GlyphDataset

NET = {
    "input_size": 8, "patch_size": 4, "in_channels": 4, "num_classes": 5, "hidden_size": 32, "depth": 1, "num_heads": 2,
    "prediction_type": "sit_velocity", "learn_sigma": False,
}  # fmt: skip
COUNT = 20
LATENTS = torch.arange(COUNT * 4 * 64, dtype=torch.float32).view(COUNT, 4, 8, 8) / 5000
LABELS = torch.arange(COUNT) % 5


def write(layout: str, folder: Path, latents: torch.Tensor = LATENTS, labels: torch.Tensor = LABELS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "safetensors":
        for i, rows in enumerate((slice(0, 7), slice(7, COUNT))):
            content = {"latents": latents[rows], "latents_flip": latents[rows].flip(-1), "labels": labels[rows]}
            save_file({k: v.contiguous() for k, v in content.items()}, folder / f"shard{i}.safetensors")
    elif layout == "npy":
        for i, rows in enumerate((slice(0, 7), slice(7, COUNT))):
            np.save(folder / f"part{i}.npy", latents[rows].numpy())
            np.save(folder / f"part{i}.labels.npy", labels[rows].numpy())
    else:
        for name in ("imagenet256_features", "imagenet256_labels"):
            (folder / name).mkdir(exist_ok=True)
        for i in range(len(labels)):
            np.save(folder / f"imagenet256_features/{i}.npy", latents[i : i + 1].numpy())
            np.save(folder / f"imagenet256_labels/{i}.npy", labels[i : i + 1].numpy())
    return folder


def command(kind: str, run_dir: Path, root: Path, *more: str, net: dict = NET) -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "DiffusionModule", "--model.model", "dit_s_4_sincos2d",
        *(f"--model.model_kwargs.{k}={v}" for k, v in net.items()), "--model.sample_steps", "2",
        "--data", "LatentFolder", "--data.root", str(root), "--data.num_classes", "5", "--data.batch_size", "4",
        "--data.val_length", "4", "--trainer.accelerator", "cpu", "--trainer.devices", "1",
        "--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false",
        "--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0", "--trainer.max_epochs", "1", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["safetensors", "npy", "files"])
def test_every_layout_holds_the_same_latents(layout: str, tmp_path: Path) -> None:
    files = open_latents(write(layout, tmp_path))
    assert len(files) == COUNT and files.shape == (4, 8, 8) and files.flips == (layout == "safetensors")
    for i in (0, 6, 7, COUNT - 1):
        latent, label = files.read(i)
        assert torch.equal(latent, LATENTS[i]) and label == LABELS[i] and latent.dtype == torch.float32
    if files.flips:
        assert torch.equal(files.read(9, flip=True)[0], LATENTS[9].flip(-1))


@pytest.mark.parametrize("layout", ["safetensors", "npy", "files"])
def test_training_on_latents(layout: str, tmp_path: Path) -> None:
    cli = run(command("fit", tmp_path / "run", write(layout, tmp_path / "data")))
    assert cli.trainer.global_step == 4 and len(losses(tmp_path / "run")) == 4  # 16 of 20 remain
    assert "val/loss" in cli.trainer.callback_metrics
    assert (tmp_path / "run/samples/step0000004_8x8.png").exists()


def test_what_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    data = LatentFolder(str(write("npy", tmp_path)), num_classes=5, val_length=4, img_size=8)
    train, val = data.train_dataset(), data.eval_dataset("val", (8, 8))
    assert set(train.indices).isdisjoint(val.indices) and len(train) + len(val) == COUNT and val.indices == [0, 5, 10, 15]
    other = LatentFolder(str(tmp_path / "two"), num_classes=5, img_size=8)
    write("npy", tmp_path / "two/train")
    write("files", tmp_path / "two/val", LATENTS[:3], LABELS[:3])
    assert len(other.train_dataset()) == COUNT and len(other.eval_dataset("val", (8, 8))) == 3


def test_scale_shift_moments_and_mirrors(tmp_path: Path) -> None:
    shift, scale = [1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 2.0, 4.0]
    data = LatentFolder(str(write("safetensors", tmp_path)), num_classes=5, val_length=4, shift=shift, scale=scale)
    found = data.eval_dataset("val", (8, 8))[1][0]
    torch.testing.assert_close(found, (LATENTS[5] - torch.tensor(shift).view(4, 1, 1)) * torch.tensor(scale).view(4, 1, 1))
    plain = LatentFolder(str(tmp_path), num_classes=5, val_length=4).train_dataset()
    seen = [plain[Key(epoch, 3, 2)][0] for epoch in range(12)]
    own = LATENTS[plain.indices[2]]
    mirrored = [torch.equal(x, own.flip(-1)) for x in seen]
    assert any(mirrored) and not all(mirrored) and all(m or torch.equal(x, own) for m, x in zip(mirrored, seen))
    drawn = LatentFolder(str(tmp_path), num_classes=5, val_length=4, form="moments", flip=False).train_dataset()
    a, again, later = (drawn[key][0] for key in (Key(0, 3, 2), Key(0, 3, 2), Key(1, 3, 2)))
    assert a.shape == (2, 8, 8) and torch.equal(a, again) and not torch.equal(a, later)
    torch.testing.assert_close(drawn.data.eval_dataset("val", (8, 8))[1][0], LATENTS[5][:2])


def test_glyphs_are_signed() -> None:
    data = GlyphDiffusion(img_size=(32, 32), seed=3, train_length=10)
    image, label = data.eval_dataset("val", (32, 48))[5]
    raw, same = GlyphDataset("val", size=(32, 48), length=470)[5]
    assert label == same and torch.equal(image, 2 * raw - 1) and image.shape == (1, 32, 48)
    train = data.train_dataset()
    assert train[Key(0, 0, 4)][0].min() < -0.4 and not torch.equal(train[Key(0, 0, 4)][0], train[Key(1, 0, 4)][0])


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    net = AutoencoderKL(
        in_channels=1, out_channels=1, latent_channels=4, block_out_channels=(8, 8), norm_num_groups=4, scaling_factor=0.5,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, shift_factor=0.1,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("vae")
    net.save_pretrained(folder)
    return folder


def test_pictures_through_an_autoencoder(vae: Path, tmp_path: Path) -> None:
    args = command("fit", tmp_path, tmp_path, "--model.vae", str(vae), "--data.channels=1", net=NET | {"num_classes": 47})
    start = args.index("--data")
    args[start : start + 6] = ["--data", "GlyphDiffusion", "--data.train_length", "8"]
    cli = run(args)
    assert cli.trainer.datamodule.img_size == (16, 16)  # 8 cells of 2 pixels
    assert not any(key.startswith("latents") or "vae" in key for key in cli.model.state_dict())
    assert cli.model.sample([1], (8, 8)).shape == (1, 1, 16, 16)


def test_latents_are_scaled_draws_of_the_posterior(vae: Path) -> None:
    latents = AutoencoderLatents(str(vae), channels=4)
    x = torch.rand(1, 1, 16, 16) * 2 - 1
    torch.manual_seed(0)
    found = latents.encode(x)
    torch.manual_seed(0)
    posterior = latents.vae.encode(x).latent_dist
    torch.testing.assert_close(found, (posterior.mean + posterior.std * torch.randn(found.shape) - 0.1) * 0.5)
    with pytest.raises(ValueError, match="has 4 latent channels, the model 8"):
        AutoencoderLatents(str(vae), channels=8)


def test_a_broken_folder_is_named(tmp_path: Path) -> None:
    cases = {
        "none": lambda p: None,
        "empty": lambda p: p.mkdir(),
        "labels": lambda p: (write("npy", p) / "part1.labels.npy").unlink(),
        "count": lambda p: np.save(write("npy", p) / "part1.labels.npy", np.zeros(3)),
        "keys": lambda p: save_file({"x": torch.zeros(3)}, (p.mkdir(), p / "a.safetensors")[1]),
        "shape": lambda p: np.save(write("npy", p) / "part1.npy", np.zeros((13, 4, 8, 4))),
        "flat": lambda p: np.save(write("npy", p) / "part0.npy", np.zeros((7, 9))),
        "single": lambda p: (write("files", p) / "imagenet256_labels/3.npy").unlink(),
    }
    words = {
        "none": "is no folder", "empty": "none of the known layouts", "labels": "expected part1.labels.npy beside it",
        "count": "13 latents, but 3 labels", "keys": "needs `latents` and `labels`", "shape": "one folder, one shape",
        "flat": r"latents are \(N, C, H, W\)", "single": "1 of 20 labels are missing, e.g. 3.npy",
    }  # fmt: skip
    for name, make in cases.items():
        make(tmp_path / name)
        with pytest.raises((ValueError, FileNotFoundError), match=words[name]):
            open_latents(tmp_path / name)


def test_the_folder_must_fit_the_model(tmp_path: Path) -> None:
    root = write("npy", tmp_path / "data")
    for args, words in (
        (command("fit", tmp_path, root, net=NET | {"input_size": 16}), r"holds latents of \(4, 8, 8\).*takes \(4, 16, 16\)"),
        (command("fit", tmp_path, root, "--data.form=moments"), r"the model takes \(8, 8, 8\)"),
        (command("fit", tmp_path, root, net=NET | {"num_classes": 7}), "has 5 classes, the model 7"),
        (command("fit", tmp_path, root, "--data.val_length=20"), r"val_length must lie in 1..19"),
    ):
        with pytest.raises(ValueError, match=words):
            run(args)
    with pytest.raises(ValueError, match="latents have one size"):
        LatentFolder(str(root), eval_sizes=[(16, 16)])
    few = LatentFolder(str(root), num_classes=3, val_length=4).eval_dataset("val", (8, 8))
    few.indices = [4]
    with pytest.raises(ValueError, match=r"part0.npy \[4\]: label 4, expected 0..2"):
        few[0]
    bad = LATENTS.clone()
    bad[5, 0, 0, 0] = float("nan")
    broken = LatentFolder(str(write("npy", tmp_path / "bad", bad)), num_classes=5, val_length=4).eval_dataset("val", (8, 8))
    with pytest.raises(ValueError, match=r"part0.npy \[5\]: not finite"):
        broken[1]


def test_random_crops_are_for_pixels(tmp_path: Path) -> None:
    root = write("npy", tmp_path / "data")
    args = command("fit", tmp_path, root, "--model.random_crop=1.5", net=NET | {"micro_conditioning": True})
    with pytest.raises(ValueError, match="the data are latents"):
        run(args)
    assert DiffusionModule("dit_s_4_none", NET | {"micro_conditioning": True}, random_crop=1.5).hparams.random_crop == 1.5
