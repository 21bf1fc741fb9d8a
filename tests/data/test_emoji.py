"""Emoji-CLIP: the atlas and its splits, pairs, scenes, captions about places, determinism, refusals."""

import collections
import pickle
import zipfile

import pytest
import torch

from vispe.data import AtlasError, EmojiPairs, EmojiScenes
from vispe.data.emoji import STYLES, EmojiAtlas
from vispe.data.emoji_scenes import RELATIONS, THINGS

OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@pytest.fixture(scope="module")
def atlas() -> EmojiAtlas:
    return EmojiAtlas()


def test_atlas_holds_what_its_page_says(atlas):
    assert len(atlas.concepts) == 1553 and atlas.styles == STYLES
    groups = collections.Counter(concept.group for concept in atlas.concepts)
    assert sorted(groups.values()) == [84, 130, 156, 165, 218, 219, 262, 319]
    assert len({concept.label for concept in atlas.concepts}) == 1553
    parts = {part: set(atlas.numbers(part)) for part in ("train", "val", "test")}
    assert {k: len(v) for k, v in parts.items()} == {"train": 1242, "val": 156, "test": 155}
    assert set.union(*parts.values()) == set(range(1553)) == set(atlas.numbers("all"))
    assert set(THINGS) <= {concept.label for concept in atlas.concepts} and len(set(THINGS)) == 32
    assert atlas.path.stat().st_size < 5e6


def test_pictures_are_where_the_index_says(atlas):
    """A tomato is red, a frog green, in every style; they are not the same drawings."""
    numbers = {concept.label: k for k, concept in enumerate(atlas.concepts)}
    for style in STYLES:
        for label, channel in (("tomato", 0), ("broccoli", 1), ("frog", 1), ("blueberries", 2)):
            picture = torch.frombuffer(bytearray(atlas.picture(numbers[label], style).tobytes()), dtype=torch.uint8)
            colour, opacity = picture.view(-1, 4).float().split((3, 1), dim=1)
            mean = (colour * opacity).sum(0) / opacity.sum()
            assert mean.argmax() == channel, (style, label)
    assert len({atlas.picture(5, style).tobytes() for style in STYLES}) == 4


def test_pairs_and_their_captions(atlas):
    pairs = EmojiPairs(("noto", "twemoji"), atlas=atlas, concepts="test")
    assert len(pairs) == 2 * 155 and pairs[0].label == pairs[1].label == 5 and pairs[2].label == 15
    image, caption, swapped, label = pairs[1]
    assert image.shape == (3, 32, 32) and image.dtype == torch.float32 and 0 <= image.min() < image.max() <= 1
    assert caption == atlas.concepts[5].label and swapped == ""
    assert not torch.equal(pairs[0].image, image)
    every = EmojiPairs(atlas=atlas, caption="tags")[20].caption
    assert every == ", ".join((atlas.concepts[5].label, *atlas.concepts[5].tags))
    drawn = EmojiPairs(("noto",), atlas=atlas, caption="drawn", length=3 * 1553)
    found = {drawn[5 + 1553 * k].caption for k in range(3)}
    assert len(found) > 1
    for text in found:
        first, *tags = text.split(", ")
        assert first == atlas.concepts[5].label and len(set(tags)) == len(tags) and set(tags) <= set(atlas.concepts[5].tags)


def test_the_background_shows_through_where_nothing_is_drawn(atlas):
    image = EmojiPairs(("twemoji",), atlas=atlas, size=(16, 48))[0].image
    assert image[:, :, :16].eq(1).all() and image[:, :, 32:].eq(1).all() and image[:, :, 16:32].min() < 0.8


@pytest.mark.parametrize("make", [
    lambda **k: EmojiPairs(caption="drawn", place="random", **k),
    lambda **k: EmojiScenes("train", **k),
])  # fmt: skip
def test_items_are_functions_of_seed_and_index(make, atlas):
    one, other = make(length=100), pickle.loads(pickle.dumps(make(length=50)))
    torch.manual_seed(3)
    assert torch.equal(one[7].image, other[7].image) and one[7][1:] == other[7][1:]
    assert not torch.equal(one[7].image, make(length=100, seed=1, atlas=atlas)[7].image)
    with pytest.raises(IndexError, match="100 is outside 0..99"):
        one[100]


def test_a_scene_shows_what_its_caption_says(atlas):
    """Every sentence is true of the cells, every swapped one false; the truth is rebuilt from the pixels."""
    scenes = EmojiScenes("test", ("noto",), size=64, grid=(2, 2), objects=(2, 4), sentences=(1, 3), atlas=atlas)
    numbers = {concept.label: k for k, concept in enumerate(atlas.concepts)}

    def features(patch):
        light = 1 - patch  # of a light background
        return (light - light.mean()).flatten()

    def cell_of(image, label):
        """The cell that is nearest to the thing on white, by correlation of colours over many places."""
        want = EmojiPairs(("noto",), size=28, length=1553, atlas=atlas)[numbers[label]].image
        best = {}
        for row in range(2):
            for column in range(2):
                cell = image[:, 32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
                shifts = [cell[:, y : y + 28, x : x + 28] for y in range(5) for x in range(5)]
                best[row, column] = max(torch.cosine_similarity(features(s), features(want), dim=0).item() for s in shifts)
        return max(best, key=best.get)

    right = total = 0
    for k in range(60):
        image, caption, swapped, _ = scenes[k]
        sentences, false = caption.split(", "), swapped.split(", ")
        assert sentences[:-1] == false[:-1] and sentences[-1] != false[-1]
        for sentence in sentences:
            how = next(name for name in RELATIONS if f" {name} " in sentence)
            one, other = sentence.split(f" {how} ")
            here, there = cell_of(image, one), cell_of(image, other)
            step = ((there[0] > here[0]) - (there[0] < here[0]), (there[1] > here[1]) - (there[1] < here[1]))
            right, total = right + (RELATIONS[how] == step), total + 1
        assert false[-1] == f"{other} {how} {one}"
    assert total > 80 and right / total > 0.9  # the rest: the little matcher's own errors


def test_relations_and_things_are_even(atlas):
    scenes = EmojiScenes("train", length=400, atlas=atlas)
    hows = collections.Counter(next(n for n in RELATIONS if f" {n} " in scenes[k].caption) for k in range(400))
    assert min(hows.values()) > 70 and set(hows) == set(RELATIONS) == set(OPPOSITE)
    few = EmojiScenes("train", things=3, objects=(2, 3), length=50, atlas=atlas)
    words = {w for k in range(50) for name in RELATIONS for w in few[k].caption.split(f" {name} ") if " " not in w}
    assert words == set(THINGS[:3])


def test_long_captions_say_each_pair_once(atlas):
    scenes = EmojiScenes("val", grid=(3, 3), objects=(9, 9), sentences=(18, 18), size=48, atlas=atlas)
    for k in range(5):
        sentences = scenes[k].caption.split(", ")
        pairs = [frozenset(w for name in RELATIONS if f" {name} " in s for w in s.split(f" {name} ")) for s in sentences]
        assert len(pairs) == len(set(pairs)) == 18  # three in each of six lines
    assert scenes[0].label != scenes[1].label


def test_refusals(atlas, tmp_path):
    with pytest.raises(ValueError, match="styles must be some of .* got .'openmoji'"):
        EmojiPairs(("openmoji",), atlas=atlas)
    with pytest.raises(ValueError, match="caption must be one of"):
        EmojiPairs(caption="long", atlas=atlas)
    with pytest.raises(ValueError, match="5 objects need as many cells"):
        EmojiScenes("train", objects=(2, 5), atlas=atlas)
    with pytest.raises(ValueError, match="objects must be .least, greatest., both at least 2"):
        EmojiScenes("train", objects=(1, 3), atlas=atlas)
    with pytest.raises(ValueError, match="at least 16 px"):
        EmojiScenes("train", size=12, atlas=atlas)
    with pytest.raises(ValueError, match="split must be one of"):
        EmojiScenes("dev", atlas=atlas)
    with pytest.raises(AtlasError, match="no such file"):
        EmojiPairs(atlas=tmp_path / "nothing.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as z:
        z.writestr("index.json", '{"format": 9}')
    with pytest.raises(AtlasError, match="format is 9"):
        EmojiPairs(atlas=tmp_path / "other.zip")
    with pytest.raises(ValueError, match="style must be one of"):
        atlas.picture(0, "apple")
