"""RayRoPE and RoCE: pairs of tokens one by one, predicted depths, masks, phases, turns behind the projection, refusals."""

import math
from dataclasses import replace

import pytest
import torch

from vispe.encodings import create_encoding
from vispe.encodings.base import Composed
from vispe.encodings.functional import rotate
from vispe.encodings.rayrope_angles import mean_turn
from vispe.encodings.roce_phases import rope_angles, wan_axis_dims
from vispe.layers import Attention, attend
from vispe.models import SceneTransformer, ViewTransformer
from vispe.positions import camera_grid, look_at, patch_grid

DIM, HEADS, SIZE = 96, 2, (16, 24)
EYES = torch.tensor([[2.5, 0.4, 0.6], [-1.0, 2.2, 0.9], [0.3, -2.4, 1.2]])
POSES = look_at(EYES, torch.tensor([0.1, -0.2, 0.3]))
LENSES = torch.tensor([[[22.0, 0, 11], [0, 21, 8], [0, 0, 1]], [[25.0, 0, 12], [0, 26, 7], [0, 0, 1]],
                       [[20.0, 0, 13], [0, 23, 9], [0, 0, 1]]])  # fmt: skip


def views(grid=(2, 3), keep=(0, 1, 2), **options):
    return camera_grid(*grid, POSES[list(keep)], LENSES[list(keep)], SIZE, **options)


def build(name, seed=0, **options):
    torch.manual_seed(seed)
    encoding = create_encoding(name, dim=DIM, num_heads=HEADS, depth=1, **options)
    with torch.no_grad():
        for p in encoding.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return encoding


def heads(count, seed=1, batch=1):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, count, DIM // HEADS, generator=g) for _ in range(3))


# ---- RayRoPE ------------------------------------------------------------------------------------------------------------


def ray_turn(query_view, token, pos, log, spread, rays):
    """cos and sin of one token in one camera, numbers one by one in float64, from the published formulas."""
    h, w = pos.extent
    row, col = pos.coords[0, token].tolist()
    own = int(pos.view[0, token])
    e_own, e_q = POSES[own].double(), POSES[query_view].double()
    offsets = {1: [(0.5, 0.5)], 2: [(0, 0), (1, 1)], 3: [(0, 0), (1, 0), (0, 1)]}[rays]

    def lens(k):
        k = (k / torch.tensor([[SIZE[1]], [SIZE[0]], [1]])).tolist()
        return k[0][0], k[1][1], k[0][2] - 0.5, k[1][2] - 0.5

    centre = e_q @ torch.linalg.inv(e_own)[:, 3]
    ends = []
    for sign in (-1, 1):
        depth = math.exp(min(log + sign * spread, 3.0))
        numbers = [(2 * math.pi / 4 * float(c)) for c in centre[:3]]
        directions, far = [], []
        for dx, dy in offsets:
            fx, fy, cx, cy = lens(LENSES[own])
            x, y = ((col + dx) / w - 0.5 - cx) / fx, ((row + dy) / h - 0.5 - cy) / fy
            point = torch.linalg.inv(e_own) @ torch.tensor([x * depth, y * depth, depth, 1.0], dtype=torch.float64)
            seen = e_q @ point
            fx, fy, cx, cy = lens(LENSES[query_view])
            image = torch.tensor([fx * seen[0] + cx * seen[2], fy * seen[1] + cy * seen[2], seen[2]], dtype=torch.float64)
            directions += [2 * math.pi / 8 * float(v) for v in (image / image.norm())[:2]]
            far.append(2 * math.pi / 80 * min(abs(float(seen[2])), 10.0))
        ends.append(torch.tensor(numbers + directions + far, dtype=torch.float64))
    count = DIM // HEADS // 2 // len(ends[0])
    a, b = (torch.cat([3.0**i * e for i in range(count)]) for e in ends)
    near = (b - a).abs() <= 1e-2
    gap = torch.where(near, 1.0, b - a)
    return torch.where(near, a.cos(), (b.sin() - a.sin()) / gap), torch.where(near, a.sin(), (a.cos() - b.cos()) / gap)


def turned(x, cos, sin):
    a, b = x.chunk(2)
    return torch.cat((a * cos - b * sin, a * sin + b * cos))


@pytest.mark.parametrize("rays", [1, 3])
def test_rayrope_pair_by_pair(rays):
    encoding, pos = build("rayrope", rays=rays), views((1, 2))
    log, spread = torch.linspace(0.2, 1.2, 6), torch.linspace(0.1, 0.9, 6)
    ctx = replace(encoding.prepare(pos), depth=torch.stack((log, spread), -1)[None])
    q, k, v = heads(6)
    got = attend(q, k, v, encoding, ctx, ctx, scale=0.2)
    q, k, v = q.double(), k.double(), v.double()
    for i in range(6):
        camera = int(pos.view[0, i])
        turns = [ray_turn(camera, j, pos, float(log[j]), float(spread[j]), rays) for j in range(6)]
        for head in range(HEADS):
            back = [turned(q[0, head, i], turns[i][0], -turns[i][1])]
            keys = torch.stack([turned(k[0, head, j], c, -s) for j, (c, s) in enumerate(turns)])
            values = torch.stack([turned(v[0, head, j], c, -s) for j, (c, s) in enumerate(turns)])
            o = (0.2 * keys @ back[0]).softmax(0) @ values
            torch.testing.assert_close(got[0, head, i].double(), turned(o, *turns[i]), rtol=1e-4, atol=1e-4)


def test_mean_turn_is_the_mean():
    a, b = torch.tensor([0.3, -2.0, 1.0, 1.0]), torch.tensor([1.7, 9.0, 1.005, 1.05])
    cos, sin = mean_turn(a, b)
    steps = torch.linspace(0, 1, 20001)[:, None]
    angle = a + steps * (b - a)
    torch.testing.assert_close(cos[:2], angle.cos().mean(0)[:2], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sin[:2], angle.sin().mean(0)[:2], rtol=1e-3, atol=1e-3)
    assert cos[2] == a[2].cos() and cos[3] != a[3].cos()


def test_depths_come_from_the_tokens_and_learn():
    torch.manual_seed(0)
    encoding, attention = create_encoding("rayrope", dim=DIM, num_heads=HEADS), Attention(DIM, num_heads=HEADS)
    ctx = encoding.prepare(views(prefix=1))
    x = torch.randn(1, 19, DIM)
    seen = encoding.look(x, ctx)
    torch.testing.assert_close(seen.depth, torch.tensor([0.0, 3.0]).expand(1, 18, 2))
    before = attention(x, encoding, ctx)
    before.square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in encoding.parameters())
    with torch.no_grad():
        encoding.depth.weight.normal_(std=0.1)
        assert encoding.look(x, ctx).depth.std() > 0.1
        assert not torch.allclose(attention(x, encoding, ctx), before, atol=1e-4)
        assert encoding.look(torch.randn(1, 19, 40), ctx).depth is None


def test_rayrope_takes_masks_and_companions():
    """Keys that a mask hides change nothing; composed with a bias of all pairs it is both."""
    encoding, bias = build("rayrope"), build("ray_distance")
    pos = views()
    q, k, v = heads(18)
    ctx = encoding.prepare(pos)
    mask = torch.arange(18) != 4
    hidden = k.clone()
    hidden[:, :, 4] += 100.0
    outs = [attend(q, t, v, encoding, ctx, ctx, scale=0.2, mask=mask[None, None, None]) for t in (k, hidden)]
    assert torch.equal(*outs)
    both = Composed([encoding, bias])
    pair = (ctx, bias.prepare(pos))
    assert attend(q, k, v, both, pair, pair, scale=0.2).shape == q.shape
    assert not torch.allclose(attend(q, k, v, both, pair, pair, scale=0.2), attend(q, k, v, encoding, ctx, ctx, scale=0.2))


# ---- RoCE ---------------------------------------------------------------------------------------------------------------


def test_roce_starts_as_the_rotary_encoding_of_frames():
    torch.manual_seed(0)
    encoding, pos = create_encoding("roce", dim=DIM, num_heads=HEADS), views(prefix=1)
    ctx = encoding.prepare(pos)
    q, k, v = heads(19)
    turned_q, turned_k = encoding.qk(q, k, ctx, ctx)
    places = torch.cat((pos.view[..., None], pos.coords), dim=-1)
    angle = rope_angles(places, wan_axis_dims(DIM // HEADS), 10000.0)[:, None]
    for got, x in ((turned_q, q), (turned_k, k)):
        torch.testing.assert_close(got[:, :, 1:], rotate(x[:, :, 1:], angle.cos(), angle.sin()))
        assert torch.equal(got[:, :, :1], x[:, :, :1])
    assert torch.equal(encoding.v(v, ctx), v)
    y = torch.randn(1, 19, DIM)
    assert torch.equal(encoding.projected(y, ctx), y)
    two = create_encoding("roce", dim=DIM, num_heads=HEADS, frames=1).prepare(pos)
    torch.testing.assert_close(two.angle, two.angle[:, :, :6].repeat(1, 1, 3, 1))


@pytest.mark.parametrize("after", ["projection", "heads"])
def test_roce_turns_values_and_results(after):
    """A token that sees itself alone gets its own value back: ahead of the projection or behind it."""
    encoding, pos = build("roce", after=after), views()
    ctx = encoding.prepare(pos)
    _, _, v = heads(18)
    alone = torch.eye(18, dtype=torch.bool)[None, None]
    o = attend(*heads(18), encoding, ctx, ctx, scale=0.2, mask=alone)
    merged = o.transpose(1, 2).flatten(2)
    back = encoding.projected(merged, ctx)
    torch.testing.assert_close(back, v.transpose(1, 2).flatten(2), rtol=1e-5, atol=1e-5)
    assert torch.allclose(o, v, atol=1e-4) == (after == "heads")
    torch.testing.assert_close(merged.norm(dim=-1), back.norm(dim=-1))


def test_roce_shifts_no_pair_of_the_front():
    encoding = build("roce")
    ctx = encoding.prepare(views())
    zeros = DIM // HEADS // 2 - 16
    assert (ctx.qk[..., :zeros] == 0).all() and (ctx.qk[..., zeros:].abs() > 0).any(-1).all()
    one, two = ctx.qk[0, 0, 0], ctx.qk[0, 0, 6]
    assert torch.equal(one, ctx.qk[0, 0, 5]) and not torch.equal(one, two)  # a phase a camera


def test_roce_acts_behind_the_projection_of_a_layer():
    torch.manual_seed(0)
    encoding, attention = build("roce"), Attention(DIM, num_heads=HEADS)
    ctx, x = encoding.prepare(views()), torch.randn(1, 18, DIM)
    q, k, v = attention.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    inside = attend(q, k, v, encoding, ctx, ctx, scale=attention.scale).transpose(1, 2).flatten(2)
    projected = attention.proj(inside)
    torch.testing.assert_close(attention(x, encoding, ctx), encoding.projected(projected, ctx))
    assert not torch.allclose(attention(x, encoding, ctx), projected, atol=1e-3)
    both = Composed([build("rayrope"), encoding])  # every member looks, and the result is turned behind the projection
    pair = (both.members[0].prepare(views()), ctx)
    assert both.look(x, pair)[0].depth is not None and torch.equal(both.projected(x, pair), encoding.projected(x, ctx))


# ---- hosts and refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rayrope", "roce"])
@pytest.mark.parametrize("host", [ViewTransformer, SceneTransformer])
def test_hosts_train_them(name, host):
    torch.manual_seed(0)
    model = host(name, image_size=SIZE, embed_dim=DIM, num_heads=HEADS, depth=1)
    rendered = model(torch.rand(1, 2, 3, *SIZE), POSES[None], LENSES[None])
    assert rendered.shape == (1, 1, 3, *SIZE)
    rendered.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.encoding.parameters())


def test_refusals():
    with pytest.raises(ValueError, match="rayrope: a head of 32 channels .* must be a multiple of 24 with rays=3"):
        create_encoding("rayrope", dim=64, num_heads=2)
    with pytest.raises(ValueError, match="rayrope: rays must be one of"):
        build("rayrope", rays=4)
    with pytest.raises(ValueError, match="roce: a head of 4 channels .* even and at least 6"):
        create_encoding("roce", dim=8, num_heads=2)
    for option, value in (("after", "norm"), ("frames", 0), ("theta", 0.0)):
        with pytest.raises(ValueError, match=f"roce: {option}"):
            build("roce", **{option: value})
    for name in ("rayrope", "roce"):
        with pytest.raises(ValueError, match=f"{name}: these positions carry no cameras"):
            build(name).prepare(patch_grid(2, 3))
        with pytest.raises(ValueError, match=f"{name}: these cameras have no intrinsics"):
            build(name).prepare(camera_grid(2, 3, POSES))
