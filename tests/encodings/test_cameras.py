"""Every camera encoding of the table in another frame of the world, kilometres from its origin, and with views apart."""

import copy

import pytest
import torch

from vispe.encodings import ENCODINGS, create_encoding
from vispe.layers import CrossAttention, attend
from vispe.positions import camera_grid, look_at, patch_grid
from vispe.positions.camera_formats import invert_pose, make_pose

DIM, HEADS, GRID, SIZE = 96, 2, (3, 4), (24, 32)
CAMERAS = [name for name, cls in ENCODINGS.items() if "cameras" in cls.card.needs]
# What each does with the frame of the world: relative by its card, or independent of it for another reason.
FREE = {"roce": "its numbers count from the first camera", "kpe": "lenses alone"}
ABSOLUTE = {"plucker", "camera_ape", "ray_fourier", "petr", "streampetr", "petr_3dppe"}
RELATIVE = [name for name in CAMERAS if ENCODINGS[name].card.relative or name in FREE]
OPTIONS = {"gta": {"trans_coeff": 0.5}, "epipolar": {"form": "bias"}}
EYES = torch.tensor([[2.5, 0.4, 0.6], [-1.0, 2.2, 0.9], [0.3, -2.4, 1.2]])
LENSES = torch.tensor([[[30.0, 0, 15], [0, 28, 11], [0, 0, 1]], [[25.0, 0, 17], [0, 26, 12], [0, 0, 1]],
                       [[34.0, 0, 16], [0, 33, 13], [0, 0, 1]]])  # fmt: skip


def poses():
    pose = look_at(EYES, torch.tensor([0.1, -0.2, 0.3])).double()
    u, _, v = torch.linalg.svd(pose[:, :3, :3])  # float32 rotations are none to the digits that 10 km need
    return make_pose(u @ v, pose[:, :3, 3])


def world(distance, seed=0):
    """A frame of the world, (4, 4) float64: any rotation, and an origin that far away."""
    g = torch.Generator().manual_seed(seed)
    r = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64))[0]
    way = torch.randn(3, generator=g, dtype=torch.float64)
    return make_pose(r * r.det().sign(), distance * way / way.norm())


def views(pose, keep=(0, 1, 2), frame="world"):
    depth = 1 + torch.arange(len(keep) * 12) / 20
    return camera_grid(*GRID, pose[list(keep)], LENSES[list(keep)], SIZE, depth=depth, frame=frame)


def build(name, **options):
    torch.manual_seed(0)
    encoding = create_encoding(name, dim=DIM, num_heads=HEADS, depth=2, **{**OPTIONS.get(name, {}), **options})
    with torch.no_grad():
        for p in encoding.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return encoding.eval()


def output(encoding, pose, *, dtype=torch.float32, frame="world", seed=1):
    """Tokens with their encoding through one attention layer, (1, 36, DIM)."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 36, DIM, generator=g).to(dtype)
    weights = [0.15 * torch.randn(DIM, DIM, generator=g).to(dtype) for _ in range(3)]
    with torch.no_grad():
        ctx = encoding.prepare(views(pose, frame=frame))
        x = encoding.between(encoding.tokens(x, ctx), ctx, -1)
        ctx = encoding.look(x, ctx)
        q, k, v = ((x @ w).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in weights)
        o = attend(q, k, v, encoding, ctx, ctx, scale=(DIM // HEADS) ** -0.5)
        return encoding.projected(o.transpose(1, 2).flatten(2), ctx)


def apart(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


def test_the_lists_cover_the_table():
    assert set(CAMERAS) == set(RELATIVE) | ABSOLUTE and not set(RELATIVE) & ABSOLUTE
    assert len(RELATIVE) >= 8


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("distance", [3.0, 300.0])
def test_the_world_frame_changes_nothing(name, distance):
    encoding, pose = build(name), poses()
    here, there = output(encoding, pose), output(encoding, pose @ world(distance), frame="first")
    assert apart(there, here) < 2e-5
    if distance < 10:  # float32 poses in the world's own frame will do
        assert apart(output(encoding, pose @ world(distance)), here) < 2e-5


@pytest.mark.parametrize("name", sorted(ABSOLUTE))
def test_absolute_ones_see_it(name):
    options = {"petr_3dppe": {"depth_source": "given"}, "plucker": {"init": "normal"}}.get(name, {})
    encoding, pose = build(name, **options), poses()
    assert apart(output(encoding, pose @ world(3.0)), output(encoding, pose)) > 1e-2


@pytest.mark.parametrize("name", [n for n in RELATIVE if n != "kpe"])
def test_relative_poses_are_seen(name):
    encoding, pose = build(name), poses()
    other = pose.clone()
    other[1] = world(0.5, seed=3) @ other[1]
    assert apart(output(encoding, other), output(encoding, pose)) > 5e-3


@pytest.mark.parametrize("name", CAMERAS)
def test_ten_kilometres_away_in_bfloat16(name):
    """Float64 poses 10 km from the origin, moved to the first camera ahead of rounding: 2 % of the output at most,
    as near the origin."""
    options = {"petr_3dppe": {"depth_source": "given"}}.get(name, {})
    half, pose = build(name, **options).bfloat16(), poses()
    first = pose @ invert_pose(pose[0])
    want = output(copy.deepcopy(half).float(), first)  # the same rounded weights
    near = apart(output(half, first, dtype=torch.bfloat16), want)
    got = output(half, pose @ world(1e4), dtype=torch.bfloat16, frame="first")
    assert got.dtype == torch.bfloat16 and got.isfinite().all()
    assert near < 0.02 and apart(got, want) < 0.02


@pytest.mark.parametrize("name", [n for n in RELATIVE if "tokens" not in ENCODINGS[n].card.injection])
def test_queries_of_a_view_that_keys_have_not(name):
    """Contexts of targets and inputs, each from its own first camera, against all views at once with target keys masked."""
    encoding, pose = build(name), poses()
    torch.manual_seed(2)
    cross = CrossAttention(DIM, num_heads=HEADS).eval()
    x = torch.randn(1, 36, DIM)
    with torch.no_grad():
        if name == "roce":  # numbers of frames are positions too: give the target the number it has among all
            everything = views(pose)
            targets, inputs = everything.take(torch.arange(24, 36)), everything.take(torch.arange(24))
        else:
            targets, inputs = views(pose, (2,)), views(pose, (0, 1))
        whole = encoding.prepare(views(pose))
        mask = (torch.arange(36) < 24)[None, None, None]
        want = cross(x, x, encoding, whole, whole, mask)[:, 24:]
        got = cross(x[:, 24:], x[:, :24], encoding, encoding.prepare(targets), encoding.prepare(inputs))
    assert apart(got, want) < 2e-5


@pytest.mark.parametrize("name", CAMERAS)
def test_batches_of_three_with_lenses_of_their_own(name):
    """Three samples, three views: axes of 3 invite cross products over the wrong one."""
    options = {"petr_3dppe": {"depth_source": "given"}}.get(name, {})
    encoding = build(name, **options)
    pose = torch.stack([poses(), poses() @ world(2.0, seed=4), poses().flip(0)])
    k = torch.stack([LENSES, LENSES.flip(0), LENSES])
    k[2, :, 0, 0] *= 2
    depth = 1 + torch.arange(36) / 20
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 36, DIM, generator=g)

    def run(tokens, pos):
        with torch.no_grad():
            ctx = encoding.prepare(pos)
            y = encoding.between(encoding.tokens(tokens, ctx), ctx, -1)
            ctx = encoding.look(y, ctx)
            q = y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return attend(q, q, q, encoding, ctx, ctx, scale=0.1)

    every = run(x, camera_grid(*GRID, pose, k, SIZE, depth=depth))
    for i in range(3):
        one = run(x[i : i + 1], camera_grid(*GRID, pose[i], k[i], SIZE, depth=depth))
        torch.testing.assert_close(every[i : i + 1], one, rtol=2e-4, atol=2e-4)


# ---- bad input: an error or a mask, never NaN ---------------------------------------------------------------------------


def degenerate(kind):
    """Cameras that are legal and awkward."""
    pose, k, depth = poses(), LENSES.clone(), 1 + torch.arange(36) / 20
    if kind == "one centre":  # three cameras at one place, turned
        pose[:, :3, 3] = -(pose[:, :3, :3] @ torch.tensor([0.4, -0.3, 1.0], dtype=torch.float64)[:, None])[..., 0]
    elif kind == "the same camera":
        pose, k = pose[:1].repeat(3, 1, 1), k[:1].repeat(3, 1, 1)
    elif kind == "world's origin":  # centres at 0: rays without a moment
        pose[:, :3, 3] = 0
    elif kind == "backwards":  # the second sees nothing of what the first sees
        pose[1, :3, :3] = torch.diag(torch.tensor([1.0, -1, -1], dtype=torch.float64)) @ pose[1, :3, :3]
        pose[1, 2, 3] *= -1
        pose[1, 1, 3] *= -1
    elif kind == "long lens":
        k[:, :2, :2] *= 1e3
    elif kind == "unknown depth":
        depth = torch.zeros(36)
    return camera_grid(*GRID, pose, k, SIZE, depth=depth)


@pytest.mark.parametrize("name", CAMERAS)
@pytest.mark.parametrize(
    "kind", ["one centre", "the same camera", "world's origin", "backwards", "long lens", "unknown depth"]
)
def test_awkward_cameras_give_no_nan(name, kind):
    options = {"petr_3dppe": {"depth_source": "given"}}.get(name, {})
    encoding = build(name, **options)
    x = torch.randn(1, 36, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ctx = encoding.prepare(degenerate(kind))
    y = encoding.between(encoding.tokens(x, ctx), ctx, -1)
    ctx = encoding.look(y, ctx)
    q = y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    o = encoding.projected(attend(q, q, q, encoding, ctx, ctx, scale=0.1).transpose(1, 2).flatten(2), ctx)
    assert o.isfinite().all()
    o.square().mean().backward()
    assert x.grad.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in encoding.parameters())


@pytest.mark.parametrize("name", CAMERAS)
def test_broken_cameras_are_refused_by_name(name):
    encoding = build(name)
    with pytest.raises(ValueError, match="cameras"):
        encoding.prepare(patch_grid(*GRID))
    for change, words in (
        (lambda e, k: (e * torch.tensor([1.2, 1.2, 1.2, 1.0], dtype=torch.float64)[:, None], k), "not orthonormal, .* up to"),
        (lambda e, k: (e * torch.tensor([-1.0, 1, 1, 1], dtype=torch.float64)[:, None], k), "mirror image"),
        (lambda e, k: (e.mT, k), "transpose it"),
        (lambda e, k: (e * float("nan"), k), "3 of 3 have NaN or infinite entries"),
        (lambda e, k: (e, k * torch.tensor([0.0, 1, 1])[:, None]), "singular|off by"),
        (lambda e, k: (e, k / torch.tensor([32.0, 24, 1])[:, None]), "look normalised"),
        (lambda e, k: (e, k.mT), "transpose or rescale"),
    ):
        e, k = change(poses(), LENSES)
        with pytest.raises(ValueError, match=words):
            encoding.prepare(camera_grid(*GRID, e, k, SIZE))


def test_depth_of_another_scale_is_refused():
    encoding = build("petr_3dppe", depth_source="given")

    def prepare(depth):
        return encoding.prepare(camera_grid(*GRID, poses(), LENSES, SIZE, depth=depth))

    metres = 1 + torch.arange(36.0)
    assert prepare(metres).depth.max() <= 61.2
    with pytest.raises(ValueError, match="look like millimetres: divide them by 1000"):
        prepare(1000 * metres)
    with pytest.raises(ValueError, match="largest known depth is 0.9.* normalised or inverse"):
        prepare(metres / 37)
    some = torch.where(torch.arange(36) % 3 == 0, metres, 0.0)  # two thirds are not known
    assert prepare(some).depth.isfinite().all()
    with pytest.raises(ValueError, match="NaN or infinite entries; set depths that are not known to 0"):
        prepare(metres * float("nan"))
