"""Data that the tests of the training application share."""

from pathlib import Path

import pytest
from train_helpers import CLASSES, picture, write_shard


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet layout: 3 classes, 8 training and 3 validation images each."""
    root = tmp_path_factory.mktemp("images")
    for split, count in (("train", 8), ("val", 3)):
        for label in range(CLASSES):
            place = root / split / f"c{label}"
            place.mkdir(parents=True)
            for number in range(count):
                picture(label, number + (1000 if split == "val" else 0)).save(place / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four training shards of 6 samples, two validation shards of 4 and 5."""
    root = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        write_shard(root / f"train-{shard}.tar", range(6 * shard, 6 * shard + 6))
    write_shard(root / "val-0.tar", range(100, 104))
    write_shard(root / "val-1.tar", range(104, 109))
    return root
