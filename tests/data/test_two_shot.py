"""Two-Shot clips: what they show, determinism, more frames and larger pictures."""

import pickle

import pytest
import torch

from vispe.data import TwoShot
from vispe.data.two_shot import CLASSES, MOTIONS


def test_classes_are_pairs_and_orders():
    assert len(CLASSES) == len(set(CLASSES)) == 20
    for k in range(0, 20, 2):
        assert CLASSES[k] == CLASSES[k + 1][::-1] and CLASSES[k][0] != CLASSES[k][1]


def test_shape_range_and_label():
    clips = TwoShot("train", length=100)
    clip, label = clips[27]
    assert clip.shape == (3, 8, 32, 32) and clip.dtype == torch.float32 and label == 7
    assert 0 <= clip.min() and clip.max() <= 1 and clip.std() > 0.05


def test_same_in_every_object_and_other_for_every_key():
    a, b = TwoShot("val", length=50), pickle.loads(pickle.dumps(TwoShot("val", length=9)))
    torch.manual_seed(5)
    assert torch.equal(a[3][0], b[3][0])
    others = [TwoShot("val", seed=1)[3], TwoShot("test")[3], a[23]]
    assert all(not torch.equal(a[3][0], other) for other, _ in others)


def test_a_cut_in_the_middle():
    """Frames inside a shot are nearer to each other than those on both sides of the cut."""
    clips = TwoShot("train", length=20)
    steps = torch.stack([(c[:, 1:] - c[:, :-1]).abs().mean(dim=(0, 2, 3)) for c in (clips[i][0] for i in range(20))])
    cut, inside = steps[:, 3], steps[:, [0, 1, 2, 4, 5, 6]].mean(dim=1)
    assert (cut > 1.5 * inside).float().mean() > 0.9


def moments(motion, frames=8, pace="denser"):
    """Row and column of the tile's centre, its area and its turn in every frame of a shot."""
    from vispe.data.two_shot import SLOTS, STEPS, _grid

    u = dict.fromkeys(SLOTS, 0.5)
    count = frames // 2
    progress = torch.arange(count) / (count - 1) if pace == "denser" else torch.arange(count) / STEPS
    grid = _grid(motion, progress - progress.mean(), 0.15, u, (96, 96))  # (frames, H, W, 2)
    inside = (grid.abs() <= 1).all(-1)
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    area = inside.sum((1, 2)).float()
    centre = torch.stack([(inside * axis).sum((1, 2)) / area for axis in (rows, columns)], dim=-1)
    step = grid[:, 48, 49] - grid[:, 48, 48]
    return centre, area, torch.atan2(-step[:, 1], step[:, 0])


@pytest.mark.parametrize("motion", MOTIONS)
def test_motions(motion):
    centre, area, angle = moments(motion)
    moved, grown, turned = centre[-1] - centre[0], area[-1] / area[0], angle[-1] - angle[0]
    want = {"right": (0, 1), "left": (0, -1), "down": (1, 0)}.get(motion, (0, 0))
    for got, sign in zip(moved.tolist(), want):
        assert got * sign > 15 if sign else abs(got) < 1
    assert grown > 2 if motion == "grow" else 0.9 < grown < 1.1
    assert 1.2 < turned < 1.9 if motion == "turn" else abs(turned) < 1e-3  # clockwise on the screen


def test_what_more_frames_mean():
    few, dense, long = moments("right")[0], moments("right", 16)[0], moments("right", 16, "longer")[0]
    assert (dense[-1] - dense[0] - (few[-1] - few[0])).abs().max() < 1.5
    assert (long[1] - long[0] - (few[1] - few[0])).abs().max() < 1.5  # whole pixels
    assert long[-1, 1] - long[0, 1] > 2 * (few[-1, 1] - few[0, 1])
    assert TwoShot("test", frames=16)[0][0].shape == TwoShot("test", frames=16, pace="longer")[0][0].shape == (3, 16, 32, 32)


def test_the_same_scene_at_other_sizes():
    small = TwoShot("test")[4][0]
    large = TwoShot("test", size=64)[4][0]
    shrunk = torch.nn.functional.avg_pool2d(large.transpose(0, 1), 2).transpose(0, 1)
    assert (shrunk - small).abs().mean() < 0.06
    assert TwoShot("test", size=(32, 64))[4][0].shape == (3, 8, 32, 64)


def test_splits_share_no_sprites_and_no_backgrounds():
    splits = {name: TwoShot(name) for name in ("train", "val", "test")}
    families = {name: {g[0].family for g in s._glyphs} for name, s in splits.items()}
    assert not families["train"] & families["val"] and not families["train"] & families["test"]
    photos = {name: {p.tobytes() for p in s._photos} for name, s in splits.items()}
    assert photos["train"] and photos["test"] and not photos["train"] & photos["test"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split must be one of"),
        ({"frames": 7}, "frames must be even and at least 4"),
        ({"size": 4}, "at least 8 px"),
        ({"pace": "slower"}, "pace must be one of"),
        ({"length": 0}, "length must be at least 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        TwoShot(**{"split": "train", **options})


def test_index_out_of_range():
    with pytest.raises(IndexError, match=r"index 5 is outside 0\.\.4"):
        TwoShot("train", length=5)[5]
