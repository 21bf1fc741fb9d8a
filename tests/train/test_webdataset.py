"""WebDataset shards: complete, split, resumable, and honest about what they lack."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from train_helpers import Killed, command, kill_at, losses, run, weights_of, write_shard

from train.data.augment import Augment
from train.data.corrupt import CorruptSampleError, CorruptSamples, collate
from train.data.sampling import ResumableLoader
from train.data.shards import EvalShards, TrainShards, WebDatasetData, read_shards

PLAIN = Augment(train_crop="none")


def module(root: Path, train: str = "train-{0..3}.tar", val: str = "val-{0..1}.tar", **options: object) -> WebDatasetData:
    options = {"num_classes": 3, "epoch_size": 24, "img_size": 16, "batch_size": 4, "augment": PLAIN} | options
    return WebDatasetData(f"{root}/{train}", f"{root}/{val}", **options)


def stream(root: Path, *, rank: int = 0, world: int = 1, batches: int = 6, epoch: int = 0, first: int = 0) -> TrainShards:
    urls = sorted(str(p) for p in root.glob("train-*.tar"))
    dataset = TrainShards(
        urls, batches=batches, batch_size=4, buffer=5, transform=PLAIN.train((16, 16)),
        corrupt=CorruptSamples(), seed=7, num_replicas=world, rank=rank,
    )  # fmt: skip
    dataset.set_position(epoch, first * 4)
    return dataset


def fingerprints(batches: list) -> list[tuple[float, ...]]:
    return [tuple(images.sum((1, 2, 3)).tolist()) for images, _ in batches]


def loader(dataset: TrainShards, workers: int = 0) -> DataLoader:
    return DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=collate)


def test_every_training_sample_comes_once_a_round(shards: Path) -> None:
    seen = Counter(v for batch in fingerprints(list(loader(stream(shards)))) for v in batch)
    assert len(seen) == 24 and set(seen.values()) == {1}


def test_order_is_shuffled_and_new_in_each_epoch(shards: Path) -> None:
    one, again, two = (fingerprints(list(loader(stream(shards, epoch=e)))) for e in (0, 0, 1))
    assert one == again and one != two


def test_processes_see_different_samples_and_equally_many(shards: Path) -> None:
    parts = [fingerprints(list(loader(stream(shards, rank=r, world=2, batches=3)))) for r in (0, 1)]
    assert [len(p) for p in parts] == [3, 3]
    assert not {v for b in parts[0] for v in b} & {v for b in parts[1] for v in b}


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("first", [1, 4])
def test_an_epoch_continues_where_it_stopped(shards: Path, workers: int, first: int) -> None:
    whole = fingerprints(list(loader(stream(shards), workers)))
    assert len(whole) == 6
    assert fingerprints(list(loader(stream(shards, first=first), workers))) == whole[first:]


def test_loader_length_is_that_of_the_epoch(shards: Path) -> None:
    assert len(ResumableLoader(stream(shards), batch_size=4)) == 6


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_evaluation_reads_each_sample_once(shards: Path, workers: int) -> None:
    urls = [str(shards / f"val-{i}.tar") for i in (0, 1)]
    names = Counter()
    for rank in (0, 1):
        dataset = EvalShards(urls, transform=PLAIN.evaluate((16, 16)), corrupt=CorruptSamples(), num_replicas=2, rank=rank)
        for _, _, batch_names in DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=collate):
            names.update(batch_names)
    assert len(names) == 9 and set(names.values()) == {1}


def test_missing_shards_are_listed(shards: Path) -> None:
    with pytest.raises(FileNotFoundError, match="2 of 6 train shards are missing: .*train-4.tar.*train-5.tar"):
        module(shards, train="train-{0..5}.tar").train_dataset()


def test_fewer_shards_than_readers(shards: Path) -> None:
    with pytest.raises(ValueError, match="4 training shards for 5 readers"):
        module(shards, num_workers=5).train_dataset()


def test_broken_samples_are_named_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "a.tar")
    write_shard(Path(url), range(6), broken=(2, 4))
    with pytest.raises(CorruptSampleError, match=f"0002 in {url}"):
        list(read_shards([url], CorruptSamples()))
    corrupt = CorruptSamples("skip")
    names = [name for _, _, name in read_shards([url], corrupt)]
    said = capfd.readouterr().err.splitlines()
    assert [name[:4] for name in names] == ["0000", "0001", "0003", "0005"] and corrupt.count == 2
    assert [f"000{n} in {url}" in message for n, message in zip((2, 4), said, strict=True)] == [True, True]


def test_truncated_shard_is_named_and_read_as_far_as_it_goes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "a.tar")
    write_shard(Path(url), range(6))
    Path(url).write_bytes(Path(url).read_bytes()[:5000])
    with pytest.raises(CorruptSampleError, match=f"shard {url} after"):
        list(read_shards([url], CorruptSamples()))
    corrupt = CorruptSamples("skip")
    assert 0 < len(list(read_shards([url], corrupt))) < 6
    assert corrupt.count >= 1 and f"shard {url}" in capfd.readouterr().err


def test_sample_without_label_says_what_it_needs(tmp_path: Path) -> None:
    import io
    import tarfile

    url = str(tmp_path / "a.tar")
    with tarfile.open(url, "w") as tar:
        info = tarfile.TarInfo("0.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
    with pytest.raises(CorruptSampleError, match=r"needs an image .* and a label \(cls\), has \['txt'\]"):
        list(read_shards([url], CorruptSamples()))


def args(root: Path, workers: int) -> list[str]:
    return [
        "--data", "WebDatasetData", f"--data.train_shards={root}/train-{{0..3}}.tar", "--data.num_classes=3",
        f"--data.val_shards={root}/val-{{0..1}}.tar", "--data.epoch_size=24", "--data.batch_size=4", "--data.buffer=5",
        f"--data.num_workers={workers}", "--trainer.max_epochs=2", "--model.model_kwargs.drop_rate=0.1",
        "--checkpoint.every_n_train_steps=2",
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_run_resumes_exactly(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    run(command("fit", tmp_path / "whole", *args(shards, workers)))
    with monkeypatch.context() as context:
        kill_at(context, 9)
        with pytest.raises(Killed):
            run(command("fit", tmp_path / "cut", *args(shards, workers)))
    cli = run(command("fit", tmp_path / "cut", *args(shards, workers), "--ckpt_path=last"))
    assert cli.trainer.global_step == 12
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    ours, reference = weights_of(tmp_path / "cut"), weights_of(tmp_path / "whole")
    assert all(torch.equal(ours[key], reference[key]) for key in reference)
