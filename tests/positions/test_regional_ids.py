"""RegionalRoPE's boxes and LARoPE's normalised ids, against their definitions written out token by token."""

import cmath
import math

import pytest
import torch

from vispe.encodings.rope_sequence import SequenceRotary
from vispe.positions.normalised import normalised_ids
from vispe.positions.schemes import create_scheme
from vispe.positions.segments import BoxedImage, Image, Text, Tiles, Video
from vispe.positions.sequence import build_ids

BOXES = [
    (4, 6, (2.0, 1.0, 8.0, 5.0)), (2, 3, (0.0, 0.0, 9.0, 12.0)), (5, 2, (1.5, 2.5, 4.0, 7.0)), (1, 1, (3.0, 3.0, 4.0, 9.0)),
]  # fmt: skip


@pytest.mark.parametrize("height, width, box", BOXES)
@pytest.mark.parametrize("centre", [False, True])
def test_a_reference_lies_in_its_box(height, width, box, centre):
    ids, end = build_ids([BoxedImage(height, width, box=box)], create_scheme("regional_rope", centre=centre))
    left, top, right, bottom = box
    if (right - left) * height <= (bottom - top) * width:  # the box is narrower than the reference
        step = (right - left) / width
        spare = (0.0, bottom - top - step * height)
    else:
        step = (bottom - top) / height
        spare = (right - left - step * width, 0.0)
    for n, (time, row, column) in enumerate(ids.T.tolist()):
        i, j = divmod(n, width)
        assert time == 0
        assert column == pytest.approx(left + j * step + spare[0] / 2 * centre)
        assert row == pytest.approx(top + i * step + spare[1] / 2 * centre)
        assert left <= column and column + step <= right + 1e-5 and top <= row and row + step <= bottom + 1e-5
    assert end == 0


def test_a_reference_of_the_box_size_is_the_picture_there():
    """One ahead of the other in time, equal in place; text and what comes later change nothing."""
    picture = [Text(3), Image(8, 10)]
    references = [BoxedImage(3, 4, box=(5.0, 2.0, 9.0, 5.0)), BoxedImage(2, 2, box=(0.0, 0.0, 2.0, 2.0))]
    ids, _ = build_ids([*picture, *references], "regional_rope")
    whole, boxed, other = ids[:, 3:83].unflatten(1, (8, 10)), ids[:, 83:95].unflatten(1, (3, 4)), ids[:, 95:]
    assert torch.equal(whole[1:, 2:5, 5:9], boxed[1:]) and torch.equal(whole[1:, :2, :2].flatten(1), other[1:])
    assert whole[0].eq(3).all() and boxed[0].eq(0).all() and ids[:, :3].eq(0).all()
    assert torch.equal(build_ids(picture, "regional_rope", start=7)[0], ids[:, :83])


def test_frames_count_on_and_tiles_are_the_whole_image():
    video = build_ids([Video(3, 2, 2)], create_scheme("regional_rope", first_frame=1.0))[0]
    assert video[0].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    tiles = build_ids([Tiles(2, 2, 2, 3, thumbnail=(2, 3), order="raster")], "regional_rope")[0]
    assert torch.equal(tiles[:, :24], build_ids([Image(4, 6)], "regional_rope")[0])
    assert tiles[:, 24:].tolist() == [[0.0] * 6, [0.0, 0.0, 0.0, 2.0, 2.0, 2.0], [0.0, 2.0, 4.0] * 2]


def test_other_schemes_see_an_image():
    boxed = BoxedImage(3, 4, box=(5.0, 2.0, 9.0, 5.0))
    assert torch.equal(build_ids([Text(2), boxed], "mrope")[0], build_ids([Text(2), Image(3, 4)], "mrope")[0])


@pytest.mark.parametrize("box", [(4.0, 0.0, 4.0, 2.0), (0.0, 3.0, 4.0, 2.0), (0.0, 0.0, 4.0)])
def test_boxes_without_area_are_refused(box):
    with pytest.raises(ValueError, match="row 0, segment 1 .image 1.*left, top, right, bottom"):
        build_ids([Text(1), BoxedImage(2, 2, box=box)], "regional_rope")


def test_larope_scores_are_those_of_the_formula():
    """Re Σ_i q_i k̄_i exp(ι γ f_i (m / L_q − n / L_k)), a token at a time in complex numbers."""
    generator = torch.Generator().manual_seed(0)
    long, short = [7, 5], [3, 4]
    rotary = SequenceRotary(head_dim=8, allocation="single", theta=100.0)
    q, k = (torch.randn(2, 1, n, 8, generator=generator) for n in (7, 4))
    queries, keys = (rotary.prepare(normalised_ids(n, scale=6.0)) for n in (long, short))
    scores = (rotary.turn(q, queries) @ rotary.turn(k, keys).mT)[:, 0]
    for b in range(2):
        for m in range(long[b]):
            for n in range(short[b]):
                total = 0.0
                for i in range(4):
                    a, c = (complex(t[b, 0, at, i], t[b, 0, at, i + 4]) for t, at in ((q, m), (k, n)))
                    angle = 6.0 * 100.0 ** (-i / 4) * (m / long[b] - n / short[b])
                    total += (a * c.conjugate() * cmath.exp(1j * angle)).real
                assert scores[b, m, n].item() == pytest.approx(total, abs=1e-5)


def test_larope_looks_as_far_along():
    """Equal queries and keys: the best key of every query is the one nearest to it in the share of its length."""
    rotary = SequenceRotary(head_dim=64, allocation="single", theta=1e4)
    turned = [rotary.turn(torch.ones(1, 1, n, 64), rotary.prepare(normalised_ids([n]))) for n in (60, 24)]
    best = (turned[0] @ turned[1].mT)[0, 0].argmax(dim=1)
    apart = (torch.arange(60)[:, None] / 60 - torch.arange(24) / 24).abs()
    assert torch.allclose(apart.gather(1, best[:, None])[:, 0], apart.amin(dim=1), atol=1e-6)


def test_larope_ids_and_refusals():
    ids = normalised_ids([4, 2], scale=8.0, size=5, pad=-1.0)
    assert ids.tolist() == [[[0.0, 2.0, 4.0, 6.0, -1.0], [0.0, 4.0, -1.0, -1.0, -1.0]]] and ids.dtype == torch.float32
    assert math.isclose(normalised_ids([3])[0, 0, 2].item(), 20 / 3, rel_tol=1e-7)
    for lengths, options, words in [
        ([4, 0], {}, "at least 1 token"), ([], {}, "at least 1 token"), ([2.5], {}, "whole numbers"),
        ([2, 6], {"size": 5}, "row 1 has 6 tokens"), ([2], {"scale": 0.0}, "scale must be positive"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            normalised_ids(lengths, **options)
