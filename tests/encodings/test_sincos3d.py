"""Sin-cos tables of videos against numbers written out one cell at a time."""

import math

import pytest
import torch
from generic_helpers import close

from vispe import create_encoding, patch_grid
from vispe.positions import video_grid


def one(p, width):
    angles = [p / 10000 ** (k / (width // 2)) for k in range(width // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def third(p, d):
    return one(p, 2 * math.ceil(d / 6))


ROWS = {
    "vjepa": lambda t, r, c, d: one(t, d // 2) + one(r, d // 4) + one(c, d // 4),
    "vjepa_uniform": lambda t, r, c, d: (third(t, d) + third(r, d) + third(c, d))[:d],
    "cogvideox": lambda t, r, c, d: one(t, d // 4) + one(c, 3 * d // 8) + one(r, 3 * d // 8),
}


@pytest.mark.parametrize("preset", ROWS)
@pytest.mark.parametrize("size", [(3, 2, 4), (1, 5, 3)])
def test_presets(preset, size):
    dim = 32  # not a multiple of 6
    want = [ROWS[preset](t, r, c, dim) for t in range(size[0]) for r in range(size[1]) for c in range(size[2])]
    encoding = create_encoding("sincos3d", dim=dim, num_heads=2, axes=3, preset=preset)
    got = encoding.prepare(video_grid(*size, prefix=2))
    close(got[0, 2:], torch.tensor(want), 1e-6)
    assert not got[:, :2].any()
    if size[0] == 1:
        image = create_encoding("sincos3d", dim=dim, num_heads=2, axes=2, preset=preset)
        assert torch.equal(image.prepare(patch_grid(*size[1:], prefix=2)), got)


@pytest.mark.parametrize(
    "options, text",
    [({"preset": "jepa"}, "preset must be one of"), ({"dim": 20}, "multiple of 8 .* got dim=20"), ({"theta": 0.0}, "theta")],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        create_encoding("sincos3d", **{"dim": 32, "num_heads": 2, "axes": 3, **options})
