"""Ids of multimodal sequences: carried on, packed, exact, and refused where they cannot be right."""

import pytest
import torch

from vispe.positions.masks import document_mask, ring_mask
from vispe.positions.schemes import SCHEMES, create_scheme
from vispe.positions.segments import Image, Text, Tiles, Video
from vispe.positions.sequence import build_batch, build_ids, pack, pack_documents

SEGMENTS = [
    Text(3), Image(3, 4), Image(2, 2), Text(2), Video(4, 2, 3, seconds=0.75), Tiles(1, 2, 2, 2, thumbnail=(2, 2)), Text(3),
]  # fmt: skip


@pytest.mark.parametrize("name", SCHEMES)
def test_going_on_equals_building_anew(name):
    whole, following = build_ids([*SEGMENTS, Text(5)], name)
    for cut in range(len(SEGMENTS) + 1):
        ids, here = build_ids(SEGMENTS[:cut], name)
        rest, end = build_ids([*SEGMENTS[cut:], Text(5)], name, start=here)
        torch.testing.assert_close(torch.cat((ids, rest), dim=1), whole)
        assert end == pytest.approx(following)
    ids, here = build_ids(SEGMENTS, name)
    steps = []
    for _ in range(5):
        one, here = build_ids([Text(1)], name, start=here)
        steps.append(one)
    torch.testing.assert_close(torch.cat((ids, *steps), dim=1), whole)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_packed_rows_are_the_single_rows(name, side):
    rows = [SEGMENTS, [Text(4)], [Image(2, 3), Text(1)]]
    batch = build_batch(rows, name, side=side)
    for i, row in enumerate(rows):
        assert torch.equal(batch.ids[:, i, batch.mask[i]], build_ids(row, name)[0])
        assert (batch.ids[:, i, ~batch.mask[i]] == create_scheme(name).pad).all()


def test_known_ids():
    video = [Text(2), Video(4, 2, 3, seconds=1.5), Text(1)]
    ends = {"mrope": 6, "mrope_time": 12, "videorope": 9, "tad_rope": 4 + 4 + 24, "vrope": 2 + 16}
    for name, end in ends.items():
        assert build_ids(video, name)[0][:, -1].eq(end).all(), name
    assert build_ids(video, create_scheme("mrope", preset="transformers_5"))[0][0, -1] == 5
    assert build_ids([Text(3), Image(2, 3)], "mrope")[0].tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 3, 3, 4, 4, 4], [0, 1, 2, 3, 4, 5, 3, 4, 5]
    ]  # fmt: skip


def test_v2pe_is_exact_below_65536_and_draws_reproducibly():
    ids = build_ids([Text(65000), Image(16, 16)], "v2pe", rates=[1 / 256])[0][0, 65000:].double()
    assert torch.equal(ids, 64999 + torch.arange(1, 257, dtype=torch.float64) / 256)
    draws = [build_ids(SEGMENTS, "v2pe", generator=torch.Generator().manual_seed(s))[0] for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(
    "segments, scheme, words",
    [
        ([Text(1), Image(3, 4, tokens=10)], "mrope", ("row 7", "segment 1", "image 1", "12 tokens")),
        ([Video(2, 2, 2)], "mrope_time", ("row 7", "segment 0", "seconds")),
        ([Video(2, 2, 2, timestamps=(1.0, 0.5))], "mrope_time", ("row 7", "video 1", "sort")),
    ],
)
def test_bad_input_names_its_place(segments, scheme, words):
    with pytest.raises(ValueError) as error:
        build_ids(segments, scheme, row=7)
    assert all(word in str(error.value) for word in words)


def test_fractions_do_not_enter_integers():
    with pytest.raises(ValueError, match="row 1.*fractional"):
        pack([torch.zeros(1, 2), torch.tensor([[0.0, 0.5]])], dtype=torch.int64)
    with pytest.raises(ValueError, match="fractional"):
        build_ids([Text(2)], "mrope", start=0.5)


def test_masks():
    ids, documents = pack_documents([SEGMENTS, [Text(3)]], "mrope")
    assert ids[:, -3:].eq(torch.arange(3)).all()
    assert document_mask(documents)[-1].sum() == 3
    seen = ring_mask([Text(5), Image(24, 24), Text(4)], "cca")
    assert seen.sum(1)[[4, 5, 35, 580, 581, 584]].tolist() == [5, 97, 181, 97, 582, 585]
