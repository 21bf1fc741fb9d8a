"""The probes: answers are what the picture shows, in every split, size and relation; chance is one in eight."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vispe.data.probes import PROBES, STEPS, VALUES, VOCABULARY, WORDS, Example, Haystack, Location, Probe, Relations
from vispe.positions.segments import Image, Text, Video


def read(probe: Probe, picture: Tensor) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Values and mark of a picture, by comparing each cell with the bank: an independent reader of pixels."""
    px = probe.cell
    cells = picture.numpy().transpose(0, 2, 3, 1)
    frames, height, width = cells.shape[:3]
    values, redness = (np.zeros((frames, height // px, width // px)) for _ in range(2))
    for t in range(frames):
        for i in range(height // px):
            for j in range(width // px):
                cell = cells[t, i * px : (i + 1) * px, j * px : (j + 1) * px]
                ink = cell[..., 2] - cell[..., 2].mean()  # blue is dark on every tile, the red one too
                shapes = probe.bank - probe.bank.mean((2, 3), keepdims=True)
                score = (shapes * ink).sum((2, 3)) / np.sqrt((shapes**2).sum((2, 3)))
                values[t, i, j] = score.max(0).argmax()
                redness[t, i, j] = (cell[..., 0] - cell[..., 2]).max()
    return values.astype(int), np.unravel_index(redness.argmax(), redness.shape)


def answer(example: Example) -> str:
    return VOCABULARY[example.answer]


@pytest.mark.parametrize("name", sorted(PROBES))
def test_questions_are_functions_of_seed_split_and_index(name: str) -> None:
    first, again, other = PROBES[name]("val"), PROBES[name]("val", length=7), PROBES[name]("val", seed=1)
    for index in (0, 6):
        a, b = first[index], again[index]
        assert torch.equal(a.picture, b.picture) and a.segments == b.segments and a[3:] == b[3:]
    assert any(first[i].answer != other[i].answer for i in range(8))
    train = PROBES[name]("train")
    assert any(first[i].answer != train[i].answer for i in range(8))
    assert 0 <= first[0].picture.min() and first[0].picture.max() <= 1 and first[0].picture.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(PROBES))
def test_segments_and_words_are_those_of_the_picture(name: str) -> None:
    probe = PROBES[name]("test", cell=6)
    for index in range(12):
        e = probe[index]
        before, look, after = e.segments
        assert (before, after) == (Text(1), Text(2)) and len(e.text) == 3
        frames = look.frames if isinstance(look, Video) else 1
        assert e.picture.shape == (frames, 3, 6 * look.height, 6 * look.width)
        assert isinstance(look, Video if name == "haystack" else Image) and len(WORDS) <= e.answer < len(VOCABULARY)


def test_the_haystack_asks_for_what_is_right_of_the_mark() -> None:
    probe, seen, depths = Haystack("train", frames=(2, 5), faces=3), set(), set()
    for index in range(40):
        e = probe[index]
        values, (t, i, j) = read(probe, e.picture)
        assert j == 0 and answer(e) == VALUES[values[t, i, 1]]
        assert e.kind == 4 * t // e.segments[1].frames
        seen.add(e.segments[1].frames)
        depths.add(e.kind)
    assert seen == {2, 3, 4, 5} and depths == {0, 1, 2, 3}
    assert Haystack("val", frames=128)[0].segments[1] == Video(128, 2, 2, seconds=1.0)


def test_relations_ask_for_the_neighbour_that_they_name() -> None:
    probe, seen = Relations("val", relations=tuple(STEPS)), set()
    for index in range(60):
        e = probe[index]
        values, (_, i, j) = read(probe, e.picture)
        word = VOCABULARY[e.text[2]]
        down, across = {"above": (-1, 0), "below": (1, 0), "left": (0, -1), "right": (0, 1)}[word]
        assert 0 <= i + down < values.shape[1] and 0 <= j + across < values.shape[2]
        assert answer(e) == VALUES[values[0, i + down, j + across]] and probe.kinds[e.kind] == word
        seen.add((word, values.shape[1:]))
    assert {word for word, _ in seen} == set(STEPS) and len({shape for _, shape in seen}) == 7


def test_location_asks_for_the_mark_all_over_the_image() -> None:
    probe, places = Location("val", grids=[(8, 5)]), set()
    for index in range(150):
        e = probe[index]
        values, (_, i, j) = read(probe, e.picture)
        assert answer(e) == VALUES[values[0, i, j]] and e.kind == i // 2
        places.add((int(i), int(j)))
    assert len(places) > 35  # of 40


def test_answers_are_balanced_and_not_told_by_the_rest() -> None:
    probe = Relations("train", length=800)
    counts = np.bincount([probe[i].answer for i in range(800)], minlength=len(VOCABULARY))
    expected = 800 / len(VALUES)
    assert not counts[: len(WORDS)].any() and (abs(counts[len(WORDS) :] - expected) < 4.5 * math.sqrt(expected)).all()


def test_characters_differ_in_every_typeface() -> None:
    for cell in (8, 16):
        bank = Location("val", cell=cell, faces=2).bank
        flat = bank.reshape(*bank.shape[:2], -1)
        apart = np.abs(flat[:, :, None] - flat[:, None]).sum(-1) + 1e9 * np.eye(len(VALUES))
        assert apart.min() > 0.05 * cell**2 and bank.max() > 0.9


def test_bad_options_are_named() -> None:
    for make, message in (
        (lambda: Haystack("dev"), "split must be one of"),
        (lambda: Haystack("val", frames=(5, 2)), "frames is a number"),
        (lambda: Haystack("val", frames=0), "frames is a number"),
        (lambda: Relations("val", grids=[(1, 4)]), "at least 2 cells"),
        (lambda: Relations("val", relations=("under",)), "relations are some of"),
        (lambda: Relations("val", relations=()), "relations are some of"),
        (lambda: Location("val", grids=[]), "grids are"),
        (lambda: Location("val", cell=2), "at least 4 px"),
        (lambda: Location("val", faces=99), "faces must be 1 to 35"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(IndexError, match="outside 0..999"):
        Location("val")[1000]
