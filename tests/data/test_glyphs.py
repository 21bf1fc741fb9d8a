import hashlib
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from vispe.data import AtlasError, GlyphDataset
from vispe.data.atlas import CLASSES, SHIPPED, Atlas, class_of

VARIANTS = ("plain", "jitter", "neighbours", "photo")
# sha256 over the bytes of items 0, 1, 46, 47, 999 at 32 px: the evaluation sets must stay what they are
CHECKSUMS = {
    ("train", "plain"): "6867db546ef216be",
    ("val", "plain"): "3da62efd2fccb4b0",
    ("test", "plain"): "c74274e706ab4a6f",
    ("val", "jitter"): "b09635d6fdbfd30a",
    ("val", "neighbours"): "da5c6757d6f17b12",
    ("val", "photo"): "d0b9e1b8bcf7e952",
}


def halved(image: np.ndarray) -> np.ndarray:
    c, h, w = image.shape
    return image.reshape(c, h // 2, 2, w // 2, 2).astype(float).mean((2, 4))


@pytest.mark.parametrize("split, variant", CHECKSUMS)
def test_fixed_bit_for_bit(split, variant):
    data = GlyphDataset(split, variant=variant, channels=3 if variant == "photo" else 1)
    digest = hashlib.sha256(b"".join(data.render(i)[0].tobytes() for i in (0, 1, 46, 47, 999))).hexdigest()
    assert digest[:16] == CHECKSUMS[split, variant]


def test_item():
    data = GlyphDataset("val", length=60)
    image, label = data[50]
    assert image.shape == (1, 32, 32) and image.dtype == torch.float32 and 0 <= image.min() and image.max() <= 1
    assert type(label) is int and label == 3 and data.classes[label] == "3"
    assert len(data) == 60 and len(list(data)) == 60
    assert torch.equal(image * 255, torch.from_numpy(data.render(50)[0]).float())


def test_spawned_worker_gives_the_same_bytes():
    data = GlyphDataset("train", length=24, variant="neighbours", zoom=(0.7, 1.4))
    torch.manual_seed(1), np.random.seed(1)  # must not matter
    loader = DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context="spawn")
    images, labels = (torch.cat(parts) for parts in zip(*loader))
    assert torch.equal(images, torch.stack([data[i][0] for i in range(24)]))
    assert labels.tolist() == data.labels.tolist()


def test_order_of_access_does_not_matter():
    first, second = GlyphDataset("train"), GlyphDataset("train")
    forward = [first.render(i)[0] for i in range(20)]
    backward = [second.render(i)[0] for i in reversed(range(20))][::-1]
    assert all((a == b).all() for a, b in zip(forward, backward))


def test_seed_split_and_index_matter():
    images = [GlyphDataset("train", seed=s).render(i)[0] for s, i in ((0, 0), (1, 0), (0, 47), (0, 94))]
    images += [GlyphDataset(s).render(0)[0] for s in ("val", "test")]
    assert len({i.tobytes() for i in images}) == len(images)


def test_labels_are_balanced_and_name_what_is_shown():
    data = GlyphDataset("val", length=470)
    assert (np.bincount(data.labels) == 10).all() and len(data.classes) == 47
    for i in range(470):
        assert class_of(data.glyph(i).char) == data.labels[i] == i % 47


def test_emnist_balanced_classes():
    assert "".join(CLASSES) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    assert [class_of(c) for c in "cjz"] == [class_of(c) for c in "CJZ"]
    assert class_of("a") != class_of("A")


def test_families_of_the_splits_are_disjoint():
    split = Atlas().split
    assert {s: len(f) for s, f in split.items()} == {"train": 35, "val": 6, "test": 12}
    assert len({f for families in split.values() for f in families}) == 53
    for name in split:
        data = GlyphDataset(name, length=2000)
        shown = {data.glyph(i).family for i in range(2000)}
        assert shown == set(split[name])  # all of its own, and none of another


def test_the_recorded_split_is_the_stated_draw():
    early = "fjalla-one indie-flower oleo-script cormorant-garamond delius kalam luckiest-guy lato black-ops-one"
    looked_at = set(early.split()) | {"abril-fatface", "press-start-2p", "cinzel"}
    split = Atlas().split
    names = sorted(n for families in split.values() for n in families)
    np.random.RandomState(47).shuffle(names)
    test = [n for n in names if n not in looked_at][:12]
    val = [n for n in names if n not in test][:6]
    assert split["test"] == sorted(test) and split["val"] == sorted(val)


def test_atlas_index_and_sheets():
    atlas = Atlas()
    glyphs = [g for f in atlas.index["families"] for g in atlas.glyphs(f)]
    assert len(glyphs) == 11509
    assert {f["licence"] for f in atlas.index["families"].values()} == {"OFL-1.1", "Apache-2.0"}
    for f in ("anton", "caveat", "lato"):
        faces = atlas.index["families"][f]["faces"]
        for g in atlas.glyphs(f)[::7]:
            a = np.asarray(atlas.bitmap(g))
            assert a.shape == (g.height + 4, g.width + 4) and g.face < len(faces)
            assert a[:2].max() == a[-2:].max() == a[:, :2].max() == a[:, -2:].max() == 0  # margin
            assert a[2].max() and a[-3].max() and a[:, 2].max() and a[:, -3].max()  # the box is tight
            assert 90 <= max(g.height, g.width) <= 98 and not (a % 17).any()


def test_every_class_is_in_several_families_of_every_split():
    for split in ("train", "val", "test"):
        data = GlyphDataset(split)
        families = {label: set() for label in range(47)}
        for f in data.families:
            for g in data.atlas.glyphs(f):
                families[class_of(g.char)].add(f)
        assert min(map(len, families.values())) >= 4


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [24, 32, 48, (32, 56), (64, 32)])
def test_twice_the_size_is_the_same_scene(size, variant):
    double = 2 * size if isinstance(size, int) else (2 * size[0], 2 * size[1])
    small = GlyphDataset("val", size=size, variant=variant, channels=3)
    large = GlyphDataset("val", size=double, variant=variant, channels=3)
    for i in range(5, 25, 4):
        # both are rounded to bytes: half a level each, and another half for ties rounded up
        assert np.abs(halved(large.render(i)[0]) - small.render(i)[0]).max() <= 1


def test_a_larger_picture_shows_more():
    """What 2R has beyond R enlarged: a good part of the picture's own contrast, up to 96 px."""
    for size in (16, 24, 32, 48):
        once, twice = GlyphDataset("val", size=size), GlyphDataset("val", size=2 * size)
        detail = contrast = 0
        for i in range(30):
            small, large = once.render(i)[0], twice.render(i)[0].astype(float)
            enlarged = torch.nn.functional.interpolate(torch.from_numpy(small)[None].float(), scale_factor=2, mode="bicubic")
            detail += (large - enlarged[0].numpy()).std()
            contrast += large.std()
        assert detail > 0.1 * contrast


def test_unrelated_sizes_agree():
    small, large = GlyphDataset("val", size=32), GlyphDataset("val", size=96)
    for i in range(20):
        reduced = large.render(i)[0].reshape(1, 32, 3, 32, 3).astype(float).mean((2, 4))
        difference = np.abs(reduced - small.render(i)[0])
        assert difference.max() < 16 and difference.mean() < 0.6  # of 255 levels; their fine grids differ


@pytest.mark.parametrize("variant", VARIANTS)
def test_non_square_widens_the_view(variant):
    square = GlyphDataset("val", size=32, variant=variant)
    wide = GlyphDataset("val", size=(32, 80), variant=variant)
    tall = GlyphDataset("val", size=(64, 32), variant=variant)
    for i in (0, 11, 36, 60):
        image = square.render(i)[0].astype(int)
        assert wide.render(i)[0].shape == (1, 32, 80)
        # the same numbers up to the last bit of the coordinates, hence one level after rounding
        assert np.abs(wide.render(i)[0][:, :, 24:56] - image).max() <= 1
        assert np.abs(tall.render(i)[0][:, 16:48] - image).max() <= 1


def test_canvas_pastes_the_picture_unchanged():
    plain, field = GlyphDataset("val", size=32), GlyphDataset("val", size=32, canvas=(48, 60))
    places = set()
    for i in range(24):
        image, out = plain.render(i)[0], field.render(i)[0]
        assert out.shape == (1, 48, 60)
        windows = np.lib.stride_tricks.sliding_window_view(out[0], (32, 32))
        found = np.argwhere((windows == image[0]).all((2, 3)))
        assert len(found) == 1
        places.add(tuple(found[0]))
    rows, columns = zip(*places)
    assert len(places) > 15 and max(rows) - min(rows) > 8 and max(columns) - min(columns) > 14


def test_shift_and_zoom():
    plain = GlyphDataset("val", size=64)
    moved = GlyphDataset("val", size=64, shift=(0.25, -0.125))
    near, large = GlyphDataset("val", size=64, zoom=(2, 2)), GlyphDataset("val", size=256)
    for i in (3, 20, 44):
        image = plain.render(i)[0].astype(int)
        assert np.abs(moved.render(i)[0][:, 16:, :-8] - image[:, :-16, 8:]).max() <= 1
        # magnified twice: the middle half of the frame, as the picture of 256 px shows it
        middle = halved(large.render(i)[0][:, 64:192, 64:192])
        assert np.abs(near.render(i)[0] - middle).max() <= 1


def test_zoom_is_drawn_from_its_range():
    plain, fixed, drawn = (GlyphDataset("val", zoom=z) for z in (None, (1, 1), (0.7, 1.4)))
    assert (plain.render(3)[0] == fixed.render(3)[0]).all()
    assert all((drawn.render(i)[0] != plain.render(i)[0]).any() for i in range(5))


def test_jitter_moves_and_neighbours_surround():
    def mass_centre(image):
        ink = np.clip(image[0] - np.median(image) - 40, 0, None)
        return (ink.sum(0) * np.arange(ink.shape[1])).sum() / ink.sum() / ink.shape[1]

    def over_items(variant, size, measure):
        data = GlyphDataset("val", size=size, variant=variant)
        return [measure(data.render(i)[0]) for i in range(60)]

    spread = {v: np.std(over_items(v, 48, mass_centre)) for v in ("plain", "jitter")}
    assert spread["jitter"] > 2 * spread["plain"]
    beside = {v: np.mean(over_items(v, (48, 144), lambda a: a[..., :40].max())) for v in ("plain", "neighbours")}
    assert beside["plain"] < 110 < 150 < beside["neighbours"]


def test_channels():
    gray, rgb = GlyphDataset("val").render(7)[0], GlyphDataset("val", channels=3).render(7)[0]
    assert rgb.shape == (3, 32, 32) and (rgb == gray).all()
    colour = GlyphDataset("val", channels=3, variant="photo")
    assert any((colour.render(i)[0][0] != colour.render(i)[0][2]).any() for i in range(5))
    assert GlyphDataset("val", variant="photo").render(7)[0].shape == (1, 32, 32)


def test_ink_of_the_photo_variant_stands_out():
    data = GlyphDataset("train", variant="photo", channels=3, size=48)
    plain = GlyphDataset("train", size=48)
    for i in range(0, 300, 13):
        mask = plain.render(i)[0][0] > 140  # the same glyph at the same place, bright on dark
        luma = data.render(i)[0].transpose(1, 2, 0) @ (0.299, 0.587, 0.114)
        assert abs(luma[mask].mean() - luma[~mask].mean()) > 25


def test_pickles_small_and_equal():
    data = GlyphDataset("train", variant="jitter")
    expected = data.render(5)[0]
    blob = pickle.dumps(data)
    assert len(blob) < 1_000_000 and (pickle.loads(blob).render(5)[0] == expected).all()


def test_cached_has_the_same_items():
    data = GlyphDataset("val", length=10, size=(24, 32))
    cached = data.cached()
    assert len(cached) == 10 and cached.images.dtype == torch.uint8
    for i in range(10):
        assert torch.equal(cached[i][0], data[i][0]) and cached[i][1] == data[i][1]
    with pytest.raises(IndexError, match=r"index 10 is outside 0\.\.9"):
        cached[10]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"split": "vall"}, "did you mean 'val'"),
        ({"variant": "neighbors"}, "did you mean 'neighbours'"),
        ({"size": 0}, "size: got 0, expected an integer of at least 4"),
        ({"size": (32, 32, 3)}, "expected one integer or"),
        ({"size": 32.5}, "size: got 32.5"),
        ({"size": True}, "size: got True"),
        ({"length": 0}, "length: got 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"channels": 2}, "channels: got 2, expected 1"),
        ({"zoom": (1.4, 0.7)}, "lo <= hi"),
        ({"zoom": 2}, "zoom: got 2, expected two numbers"),
        ({"shift": (0, 3)}, "shift: got"),
        ({"canvas": 24}, "smaller than size"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        GlyphDataset(**{"split": "val"} | options)


@pytest.mark.parametrize("index", [-1, 2000, 10**9])
def test_index_out_of_range(index):
    with pytest.raises(IndexError, match=r"outside 0\.\.1999"):
        GlyphDataset("val")[index]


def test_missing_and_damaged_atlas(tmp_path):
    with pytest.raises(AtlasError, match=r"gone.zip: no such file.*scripts/build_glyphs.py"):
        GlyphDataset("val", atlas=tmp_path / "gone.zip")
    short = tmp_path / "short.zip"
    short.write_bytes(SHIPPED.read_bytes()[:100000])
    with pytest.raises(AtlasError, match=r"short.zip: cannot read index.json.*damaged"):
        GlyphDataset("val", atlas=short)
    flipped = tmp_path / "flipped.zip"
    data = bytearray(SHIPPED.read_bytes())
    with zipfile.ZipFile(SHIPPED) as z:
        info = z.getinfo("sheets/lato.webp")
    data[info.header_offset + 2000] ^= 1
    flipped.write_bytes(data)
    broken = GlyphDataset("val", atlas=flipped)
    with pytest.raises(AtlasError, match=r"flipped.zip: cannot read sheets/lato.webp"):
        for i in range(100):
            broken.render(i)
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as z:
        z.writestr("index.json", json.dumps({"format": 2}))
    with pytest.raises(AtlasError, match="its format is 2"):
        GlyphDataset("val", atlas=other)
