"""Samplers, and the Glyph-47 and Fashion-MNIST modules."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from train_helpers import command, run

from train.data.fashion import FashionMNIST
from train.data.glyphs import Glyphs
from train.data.sampling import EpochSampler, EvalSampler, Key, ResumableLoader
from train.data.stored import Stored
from train.seeds import mix, seeded
from vispe.data.glyphs import GlyphDataset

DATA = TensorDataset(torch.arange(23))


def keys(rank: int = 0, world: int = 1, epoch: int = 0, skip: int = 0, repeats: int = 1, seed: int = 3) -> list[Key]:
    sampler = EpochSampler(DATA, num_replicas=world, rank=rank, seed=seed, repeats=repeats)
    sampler.set_position(epoch, skip)
    return list(sampler)


def test_epoch_order_is_a_permutation_of_seed_and_epoch() -> None:
    order = [key.index for key in keys()]
    assert sorted(order) == list(range(23)) and order != sorted(order)
    assert keys() == keys() != keys(epoch=1) != keys(seed=4)


def test_processes_share_the_order_of_one() -> None:
    one, two = keys(), [keys(rank=r, world=2) for r in (0, 1)]
    assert [len(part) for part in two] == [11, 11]
    together = [key for pair in zip(*two, strict=True) for key in pair]
    assert together == one[:22]  # same images at the same places, so with the same augmentation


def test_skipping_leaves_the_rest() -> None:
    assert keys(skip=9, epoch=2) == keys(epoch=2)[9:]


def test_repeats_show_fewer_images_more_often() -> None:
    order = [key.index for key in keys(repeats=3)]
    assert len(order) == 23 and len(set(order)) == 8
    assert order[0] == order[1] == order[2]
    assert len({key.place for key in keys(repeats=3)}) == 23  # each copy is augmented on its own


def test_evaluation_shares_are_a_partition() -> None:
    shares = [list(EvalSampler(DATA, num_replicas=4, rank=rank)) for rank in range(4)]
    assert sorted(index for share in shares for index in share) == list(range(23))
    assert [len(EvalSampler(DATA, num_replicas=4, rank=rank)) for rank in range(4)] == [6, 6, 6, 5]


def test_loader_asks_for_its_position_at_the_first_batch() -> None:
    class Plain(TensorDataset):
        def __getitem__(self, key: Key) -> torch.Tensor:
            return self.tensors[0][key.index]

    data = Plain(torch.arange(23))
    loader = ResumableLoader(data, batch_size=4, sampler=EpochSampler(data, num_replicas=1, rank=0, seed=3), drop_last=True)
    place = [0, 0]
    loader.position = lambda: tuple(place)
    whole = torch.stack(list(loader))
    iterator = iter(loader)
    place[1] = 3
    assert torch.equal(torch.stack(list(iterator)), whole[3:]) and len(loader) == 5


def test_seeds_differ_and_leave_the_generators_alone() -> None:
    assert len({mix(a, b) for a in range(20) for b in range(20)}) == 400
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    with seeded(1, 2):
        torch.rand(3), np.random.rand(3)
    assert torch.rand(1) == expected[0] and np.random.rand() == expected[1]


def glyphs(**options: object) -> Glyphs:
    return Glyphs(**{"img_size": 16, "batch_size": 4, "train_length": 8, "val_length": 10} | options)


def test_glyphs_are_new_in_every_epoch_and_depend_on_the_seed() -> None:
    dataset = glyphs(seed=0).train_dataset()
    assert len(dataset) == 8
    images = [dataset[Key(epoch, 0, index)][0] for epoch in (0, 1) for index in range(8)]
    assert len({image.sum().item() for image in images}) == 16
    assert torch.equal(glyphs(seed=0).train_dataset()[Key(1, 5, 2)][0], dataset[Key(1, 0, 2)][0])
    assert not torch.equal(glyphs(seed=1).train_dataset()[Key(0, 0, 2)][0], dataset[Key(0, 0, 2)][0])


def test_glyph_evaluation_does_not_depend_on_the_seed() -> None:
    one, other = (glyphs(seed=s).eval_dataset("val", (16, 24)) for s in (0, 1))
    assert len(one) == 10 and one[3][0].shape == (1, 16, 24)
    assert torch.equal(one[3][0], other[3][0]) and one[3][1] == other[3][1]


def test_glyph_canvas_pastes_the_training_size() -> None:
    data = glyphs(eval_canvas=True)
    small, field = data.eval_dataset("val", (16, 16))[3][0], data.eval_dataset("val", (24, 32))[3][0]
    assert field.shape == (1, 24, 32)
    windows = field[0].unfold(0, 16, 1).unfold(1, 16, 1)
    assert (windows == small[0]).all(-1).all(-1).sum() == 1


def test_glyphs_train_through_the_command_line(tmp_path: Path) -> None:
    args = command("fit", tmp_path, "--data=Glyphs", "--data.train_length=16", "--data.val_length=8", "--data.batch_size=4")
    args += ["--model.model_kwargs.num_classes=47", "--model.model_kwargs.in_chans=1", "--data.zoom=[0.7,1.4]"]
    cli = run([*args, "--data.eval_sizes=[[24,16]]", "--trainer.max_epochs=1"])
    assert cli.trainer.global_step == 4 and "val/top1@24x16" in cli.trainer.callback_metrics


def test_repeats_are_refused_for_glyphs() -> None:
    with pytest.raises(ValueError, match="set it to 1"):
        glyphs(repeats=3)


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """The four idx files with 24 training and 10 test pictures."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 24), ("t10k", 10)):
        images = rng.integers(0, 255, (count, 28, 28)).astype(np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes())
    return tmp_path


def test_fashion_splits_sizes_and_zoom(fashion: Path) -> None:
    data = FashionMNIST(str(fashion), img_size=32, batch_size=4, zoom=(0.7, 1.4), seed=0)
    train, val, test = data.train_dataset(), data.eval_dataset("val", (32, 48)), data.eval_dataset("test", (32, 32))
    assert (len(train), len(val), len(test)) == (22, 2, 10)
    assert val[0][0].shape == (1, 32, 48) and val[0][1] == 22 % 10
    assert torch.equal(train[Key(0, 1, 2)][0], train[Key(0, 1, 2)][0])
    assert not torch.equal(train[Key(0, 1, 2)][0], train[Key(0, 2, 2)][0])
    assert 0 <= train[Key(0, 1, 2)][0].min() and train[Key(0, 1, 2)][0].max() <= 1


def test_fashion_elsewhere_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="never downloaded"):
        FashionMNIST(str(tmp_path), img_size=32).train_dataset()


def test_stored_pictures_are_those_that_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"train_length": 6, "img_size": 16, "seed": 3, "zoom": (0.7, 1.4)}
    keys = [Key(0, 0, 5), Key(1, 0, 0), Key(1, 0, 1), Key(2, 0, 5)]
    fresh = Glyphs(**options).train_dataset()
    drawn = [fresh[key] for key in keys]
    for _ in range(2):
        kept = Glyphs(**options, pictures=str(tmp_path)).train_dataset()
        kept.glyphs.glyphs.block = 4
        assert all(torch.equal(kept[key][0], image) and kept[key][1] == label for key, (image, label) in zip(keys, drawn))
        assert len(files := list(tmp_path.iterdir())) == 2  # items 4 to 7 and 16 to 19 of an endless set
        monkeypatch.setattr(GlyphDataset, "render", lambda *_: pytest.fail("drawn again"))
    monkeypatch.undo()
    files[0].write_bytes(b"cut off")
    kept = Glyphs(**options, pictures=str(tmp_path)).train_dataset()
    kept.glyphs.glyphs.block = 4
    assert all(torch.equal(kept[key][0], image) for key, (image, _) in zip(keys, drawn))
    other = Glyphs(**options | {"seed": 4}, pictures=str(tmp_path)).train_dataset()
    assert not torch.equal(other[5][0], kept[5][0])
    with pytest.raises(IndexError, match="outside 0..9"):
        Stored(GlyphDataset("test", length=10), tmp_path)[10]
