"""Decoding: ids that go on at `next_id`, whatever was cut where, are those of the whole sequence built at once."""

import random

import pytest
import torch

from vispe.positions.schemes import SCHEMES, create_scheme
from vispe.positions.segments import Audio, AudioVideo, BoxedImage, Image, Text, Tiles, Video
from vispe.positions.sequence import build_batch, build_ids

OPTIONS = [
    ("v2pe", {"delta": 1 / 7}), ("v2pe", {"span": 3.0}), ("mrope", {"preset": "transformers_5"}),
    ("mrope_time", {"preset": "transformers_4"}), ("mrope_time", {"preset": "transformers_5"}),
    ("mrope_interleave", {"stride": 3}), ("mrope_interleave_reset", {"stride": 2}), ("videorope", {"scale": 0.75}),
    ("hope", {"scale": 1.5}), ("circle_rope", {"radius": "auto-2", "move_to_positive": 1.0}), ("circle_rope", {"blend": 0.4}),
    ("il_rope", {"text_axes": "zero", "stride": 2.0}), ("omni_rope", {"text_axes": "zero"}),
    ("mm_rope", {"scale": (2.0, 1.0, 0.5)}), ("tmrope", {"ids_per_second": 2}), ("rope_dhr", {"rule": "released"}),
    ("pype", {"layer": 5}), ("shared_position", {"unit": "row"}), ("shared_position", {"unit": "block"}),
    ("regional_rope", {"centre": True}),
]  # fmt: skip
CASES = [(name, {}) for name in SCHEMES] + OPTIONS


def draw(rng, *, audio_video):
    """A sequence of 1 to 9 segments; `audio_video` for schemes that place a clip and its sound in one block."""
    makers = [
        lambda: Text(rng.randint(0, 6)), lambda: Image(rng.randint(1, 5), rng.randint(1, 5)), lambda: Audio(rng.randint(1, 9)),
        lambda: Video(rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4), seconds=rng.choice([0.3, 0.5, 1.0, 1.75])),
        lambda: Video(3, 2, 2, timestamps=(0.2, 0.9, 4.0)), lambda: BoxedImage(2, 3, box=(1.0, 0.0, 4.0, 5.0)),
        lambda: Tiles(rng.randint(1, 3), rng.randint(1, 3), 2, 2, thumbnail=rng.choice([None, (2, 2), (3, 2)])),
    ]  # fmt: skip
    if audio_video:
        makers.append(lambda: AudioVideo(Video(rng.randint(1, 5), 2, 2, seconds=0.5), Audio(rng.randint(1, 60))))
    return [rng.choice(makers)() for _ in range(rng.randint(1, 9))]


@pytest.mark.parametrize("name, options", CASES, ids=[f"{n}-{'-'.join(o) or 'plain'}" for n, o in CASES])
def test_cuts_anywhere(name, options):
    """Between segments, inside text and token by token; the number behind the last piece is the whole sequence's."""
    rng, scheme = random.Random(len(name)), create_scheme(name, **options)
    for _ in range(12):
        segments = draw(rng, audio_video=name.startswith("tmrope"))
        tail = rng.randint(1, 6)
        whole, end = build_ids([*segments, Text(tail)], scheme)
        cut = rng.randint(0, len(segments))
        text = rng.randint(0, tail)
        pieces = [segments[:cut], [*segments[cut:], Text(text)], *[[Text(1)]] * (tail - text)]
        found, here = [], 0
        for piece in pieces:
            ids, here = build_ids(piece, scheme, start=here)
            found.append(ids)
        found = torch.cat(found, dim=1)
        assert found.shape == whole.shape and found.dtype == whole.dtype
        torch.testing.assert_close(found, whole)
        assert here == pytest.approx(end)


@pytest.mark.parametrize("name, options", CASES, ids=[f"{n}-{'-'.join(o) or 'plain'}" for n, o in CASES])
def test_generated_tokens_step_alike(name, options):
    """Behind a prompt every token is one `step` further on the axes that move, and stays on the others."""
    scheme = create_scheme(name, **options)
    _, here = build_ids(draw(random.Random(3), audio_video=False), scheme)
    ids, _ = build_ids([Text(4)], scheme, start=here)
    steps = ids.diff(dim=1)
    assert steps.eq(steps[:, :1]).all()
    still = {"regional_rope": 3}.get(name, 2 if options.get("text_axes") == "zero" else 0)
    assert steps[:, 0].tolist() == [float(scheme.step)] * (scheme.axes - still) + [0.0] * still


@pytest.mark.parametrize("name", [n for n in SCHEMES if create_scheme(n).choices])
def test_drawn_rates_go_on(name):
    """The same draws, given out in pieces: what was drawn for an image never depends on what follows."""
    segments = [Text(2), Image(2, 3), Text(1), Video(2, 2, 2, seconds=1.0), Image(3, 3), Text(4)]
    whole, end = build_ids(segments, name, generator=torch.Generator().manual_seed(1))
    generator, found, here = torch.Generator().manual_seed(1), [], 0
    for piece in (segments[:2], segments[2:4], segments[4:]):
        ids, here = build_ids(piece, name, start=here, generator=generator)
        found.append(ids)
    torch.testing.assert_close(torch.cat(found, dim=1), whole)
    assert here == pytest.approx(end)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_batch_go_on_by_themselves(name, side):
    rows = [[Text(3), Image(3, 2), Text(1)], [Text(1)], [Video(2, 2, 2, seconds=1.0)]]
    batch = build_batch(rows, name, side=side)
    longer = build_batch([[*row, Text(2)] for row in rows], name, side=side)
    for i, start in enumerate(batch.next_ids):
        torch.testing.assert_close(build_ids([Text(2)], name, start=start)[0], longer.ids[:, i, longer.mask[i]][:, -2:])
        assert longer.next_ids[i] == pytest.approx(build_ids([Text(2)], name, start=start)[1])
