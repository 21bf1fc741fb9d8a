"""Rotary encodings of videos: shares of the channels, V-JEPA 2's quirk, EVA02-AT's joint angles, tables of space and time."""

import pytest
import torch
from generic_helpers import close, scores

from vispe import create_encoding, patch_grid
from vispe.encodings import EncodingStack
from vispe.positions import custom_positions, video_grid


def turn(encoding, q, pos):
    ctx = encoding.prepare(pos)
    return encoding.qk(q, q, ctx, ctx)[0]


@pytest.mark.parametrize("preset, rotation", [("fixed", True), ("vjepa2", False)])
def test_vjepa2_is_no_rotation(preset, rotation):
    """Its two channels of a pair turn by different angles: lengths change, and scores see a common shift."""
    torch.manual_seed(0)
    encoding = create_encoding("rope3d", dim=48, num_heads=2, axes=3, preset=preset)
    q = torch.randn(1, 2, 12, 24)
    here = video_grid(2, 3, 2)
    there = custom_positions(here.coords + 3.0)
    assert ((turn(encoding, q, here).norm(dim=-1) - q.norm(dim=-1)).abs().max() < 1e-5) == rotation
    a, b = (scores(encoding, q, q, *[encoding.prepare(p)] * 2) for p in (here, there))
    assert ((a - b).abs().max() < 1e-4) == rotation


def test_the_quirk_with_loops():
    encoding = create_encoding("rope3d", dim=20, num_heads=1, axes=3, preset="vjepa2")  # 3 pairs an axis, 2 channels left
    q, pos = torch.randn(1, 1, 12, 20), video_grid(2, 3, 2)
    got, want = turn(encoding, q, pos), q.clone()
    for n in range(12):
        for axis in range(3):
            for c in range(6):
                i = 6 * axis + c
                angle = pos.coords[0, n, axis] * 10000.0 ** -((c % 3) / 3)
                partner = -q[0, 0, n, i + 1] if c % 2 == 0 else q[0, 0, n, i - 1]
                want[0, 0, n, i] = q[0, 0, n, i] * angle.cos() + partner * angle.sin()
    close(got, want, 1e-5)
    assert torch.equal(got[..., 18:], q[..., 18:])


def test_masked_tokens_keep_their_places():
    for preset in ("fixed", "vjepa2"):
        encoding = create_encoding("rope3d", dim=48, num_heads=2, axes=3, preset=preset)
        q, pos = torch.randn(2, 2, 24, 24), video_grid(2, 3, 4)
        keep = torch.tensor([[5, 0, 23], [7, 8, 1]])
        index = keep[:, None, :, None].expand(-1, 2, -1, 24)
        close(turn(encoding, q.gather(2, index), pos.take(keep)), turn(encoding, q, pos).gather(2, index), 1e-6)


def test_joint_angles_are_sums():
    """EVA02-AT: turning in space and then in time is turning by both."""
    joint = create_encoding("eva02_at", dim=48, num_heads=2, axes=3)
    image = create_encoding("eva02_at", dim=48, num_heads=2, axes=2)
    pos = video_grid(3, 2, 4)
    q = torch.randn(1, 2, 24, 24)
    in_space = turn(image, q, custom_positions(pos.coords[..., 1:]))
    both = turn(joint, in_space, custom_positions(pos.coords * torch.tensor([1.0, 0.0, 0.0])))
    close(turn(joint, q, pos), both, 1e-5)
    first = turn(joint, q[:, :, :8], video_grid(1, 2, 4))  # one frame is an image
    close(first, turn(image, q[:, :, :8], patch_grid(2, 4)), 1e-6)


def test_frames_are_not_scaled():
    scaled = create_encoding("eva02_at", dim=48, num_heads=2, axes=3, pretrain_grid=16)
    coords = scaled.coordinates(video_grid(8, 4, 8, train=(4, 4, 4)))
    assert coords[0, :, 0].max() == 7 and coords[0, :, 1].max() == 12 and coords[0, :, 2].max() == 14
    rescaled = create_encoding("eva02_at", dim=48, num_heads=2, axes=3, resize="rescale")
    coords = rescaled.coordinates(video_grid(8, 4, 8, train=(4, 4, 4)))
    assert coords[0, :, 0].max() == 7 and coords[0, :, 2].max() == 3.5


def test_tables_of_space_and_time():
    stack = EncodingStack("learned_spacetime+eva02_at", dim=48, num_heads=2, depth=2, axes=3, facts={"grid": (2, 3, 4)})
    tables = stack["learned_spacetime"]
    assert tables.time.abs().max() == 0 and tables.space.shape == (1, 12, 48)
    with torch.no_grad():
        tables.time.normal_()
    x = torch.zeros(1, 25, 48)
    rows = stack.tokens(x, stack.prepare(video_grid(2, 3, 4, prefix=1)))[0]
    for t in range(2):
        for n in range(12):
            close(rows[1 + 12 * t + n], tables.space[0, n] + tables.time[0, t])
    assert rows[0].abs().max() == 0
    other = video_grid(4, 6, 2)
    before = tables.prepare(other)
    assert before.shape == (1, 48, 48)
    close(before[0, :12], tables.tables((4, 6, 2))[0][0] + tables.tables((4, 6, 2))[1][0, 0])
    assert "resampled" in tables.set_grid((4, 6, 2))[0] and tables.set_grid((4, 6, 2)) == []
    close(tables.prepare(other), before, 1e-6)


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("rope3d", {"preset": "official"}, "preset must be 'fixed' or 'vjepa2'"),
        ("rope3d", {"theta": -1.0}, "theta must be positive"),
        ("eva02_at", {"pretrain_grid": (16, 16, 16)}, "pretrain_grid must be"),
        ("rope_eva02", {"pretrain_grid": 0}, "pretrain_grid must be"),
        ("learned_spacetime", {"grid": (2, 3)}, "grid must be 3 numbers"),
    ],
)
def test_bad_options(name, options, words):
    with pytest.raises(ValueError, match=words):
        create_encoding(name, dim=48, num_heads=2, axes=3, **options)
