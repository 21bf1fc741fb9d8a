"""Image folders: layouts, augmentation, and files that are no images."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from train_helpers import command, folder_args, run

from train.data.augment import Augment
from train.data.corrupt import CorruptSampleError
from train.data.folder import ImageFolderData
from train.data.sampling import Key


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "images"))


def module(root: Path, **options: object) -> ImageFolderData:
    return ImageFolderData(str(root), img_size=16, batch_size=4, **options)


def test_missing_split_names_the_layout(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder .*train; expected .*/train/CLASS/IMAGE"):
        module(tmp_path).train_dataset()


def test_empty_class_folder_is_named(own: Path) -> None:
    (own / "train" / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        module(own).train_dataset()


def test_unknown_validation_class_is_named(own: Path) -> None:
    (own / "val" / "c0").rename(own / "val" / "zebra")
    with pytest.raises(ValueError, match=r"\['zebra'\]"):
        module(own).eval_dataset("val", (16, 16))


def test_labels_are_those_of_training_when_validation_lacks_a_class(own: Path) -> None:
    shutil.rmtree(own / "val" / "c0")
    dataset = module(own).eval_dataset("val", (16, 16))
    assert {dataset[i][1] for i in range(len(dataset))} == {1, 2}


def damage(root: Path, split: str) -> Path:
    path = root / split / "c1" / "2.png"
    path.write_bytes(path.read_bytes()[:200])
    return path


@pytest.mark.parametrize("split", ["train", "val"])
def test_corrupt_image_stops_the_run_and_is_named(own: Path, tmp_path: Path, split: str) -> None:
    path = damage(own, split)
    with pytest.raises(CorruptSampleError, match=f"{path}.*on_corrupt to 'skip'"):
        run(command("fit", tmp_path / "run", *folder_args(own), "--trainer.max_epochs=1"))


@pytest.mark.parametrize("workers", [0, 2])
def test_corrupt_images_are_skipped_named_and_counted(
    own: Path, tmp_path: Path, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [damage(own, "train"), damage(own, "val")]
    more = ["--data.on_corrupt=skip", f"--data.num_workers={workers}", "--trainer.max_epochs=1"]
    cli = run(command("fit", tmp_path / "run", *folder_args(own, *more), "--trainer.num_sanity_val_steps=0"))
    assert cli.trainer.global_step == 6
    assert cli.trainer.datamodule.corrupt.count == 2
    assert cli.trainer.callback_metrics["data/unreadable"] == 1  # logged in training, before the validation
    said = capfd.readouterr().err
    assert all(f"cannot read {path}" in said for path in paths)


def test_too_many_corrupt_images_stop_the_run(own: Path) -> None:
    damage(own, "train")
    dataset = module(own, on_corrupt="skip", max_corrupt=0).train_dataset()
    with pytest.raises(CorruptSampleError, match="more than max_corrupt=0"):
        [dataset[Key(0, i, i)] for i in range(len(dataset))]


def test_corrupt_evaluation_image_counts_for_nothing(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage(own, "val")
    data = module(own, on_corrupt="skip", eval_batch_size=3)
    batches = list(data._eval_loader(data.eval_dataset("val", (16, 16))))
    assert re.search("2.png: .*skipped, number 1", capfd.readouterr().err)
    assert [len(labels) for _, labels in batches] == [3, 2, 3]


def test_augmentation_depends_on_epoch_and_place_only(folder: Path) -> None:
    data = module(folder, augment=Augment(auto_augment="rand-m9-mstd0.5-inc1", random_erasing=0.5))
    dataset = data.train_dataset()
    first = dataset[Key(0, 3, 5)][0]
    torch.manual_seed(123)
    torch.rand(7)
    assert torch.equal(dataset[Key(0, 3, 5)][0], first)
    assert not torch.equal(dataset[Key(1, 3, 5)][0], first)
    assert not torch.equal(dataset[Key(0, 4, 5)][0], first)
    after = torch.rand(3)
    torch.manual_seed(123)
    torch.rand(7)
    assert torch.equal(torch.rand(3), after)  # the global generator was left alone


@pytest.mark.parametrize(
    "augment",
    [Augment(), Augment(auto_augment="3a", color_jitter=0.3), Augment(train_crop="src"), Augment(train_crop="none")],
    ids=["rrc", "3a", "src", "none"],
)
def test_transforms_give_the_size(folder: Path, augment: Augment) -> None:
    data = module(folder, augment=augment)
    data.img_size = (16, 24)
    assert data.train_dataset()[Key(0, 0, 0)][0].shape == (3, 16, 24)
    assert data.eval_dataset("val", (24, 16))[0][0].shape == (3, 24, 16)


def test_too_few_images_for_a_batch(folder: Path) -> None:
    with pytest.raises(ValueError, match="24 training samples a process, fewer than one batch of 32"):
        ImageFolderData(str(folder), img_size=16, batch_size=32).train_dataloader()
