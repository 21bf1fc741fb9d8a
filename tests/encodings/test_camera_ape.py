"""Absolute camera embedding: its sixteen numbers, one and the same for a view, and what it refuses."""

import pytest
import torch

from vispe.encodings import create_encoding
from vispe.positions import camera_grid, look_at, patch_grid

POSES = look_at([[2.0, 0.5, 1.0], [-1.0, 2.0, 0.7]], (0.0, 0.0, 0.2))
LENSES = torch.tensor([[[40.0, 0, 25], [0, 44, 15], [0, 0, 1]], [[30.0, 0, 24], [0, 31, 16], [0, 0, 1]]])
SIZE = (32, 48)


def build(**options):
    torch.manual_seed(0)
    return create_encoding("camera_ape", dim=24, num_heads=2, **options)


def test_numbers_one_by_one():
    encoding, pos = build(scale=2.0), camera_grid(2, 3, POSES, LENSES, SIZE, prefix=1)
    x = torch.zeros(2, 13, 24)
    added = encoding.tokens(x, encoding.prepare(pos))
    assert (added[:, 0] == 0).all()
    for view in range(2):
        pose, k = POSES[view].tolist(), LENSES[view].tolist()
        numbers = [v for row in pose[:3] for v in (*row[:3], row[3] / 2)]
        numbers += [k[0][0] / 48, k[1][1] / 32, k[0][2] / 48, k[1][2] / 32]
        expected = encoding.proj(torch.tensor(numbers))
        for token in range(6):
            torch.testing.assert_close(added[1, 1 + 6 * view + token], expected)


def test_every_sample_has_its_cameras_and_dropped_tokens_keep_theirs():
    encoding = build()
    poses = torch.stack((POSES, POSES.flip(0)))
    pos = camera_grid(2, 3, poses, LENSES[None], SIZE)
    ctx = encoding.prepare(pos)
    assert ctx.shape == (2, 12, 24) and not torch.allclose(ctx[0], ctx[1])
    torch.testing.assert_close(encoding.prepare(pos.take(torch.tensor([7, 2]))), ctx[:, [7, 2]])


def test_without_the_lens():
    encoding = build(intrinsics=False)
    assert encoding.proj.in_features == 12 and encoding.prepare(camera_grid(2, 3, POSES)).shape == (1, 12, 24)
    assert encoding.set_identity() and encoding.prepare(camera_grid(2, 3, POSES)).abs().max() == 0


def test_refusals():
    with pytest.raises(ValueError, match="camera_ape: .*no intrinsics"):
        build().prepare(camera_grid(2, 3, POSES))
    with pytest.raises(ValueError, match="camera_ape: .*no cameras"):
        build().prepare(patch_grid(2, 3))
    with pytest.raises(ValueError, match="scale must be"):
        build(scale=0.0)
