"""GTA, CaPE and PRoPE: loops as oracles, frames of the world, cameras by order and number, precision, bad widths."""

import math

import pytest
import torch

from vispe.encodings.cape import Cape
from vispe.encodings.gta import Gta
from vispe.encodings.prope import Prope
from vispe.encodings.se3 import invert_rigid, wigner
from vispe.layers import attend
from vispe.positions import camera_grid, patch_grid

DIM, HEADS = 48, 2  # heads of 24 channels
FULL = dict(triv=1, se3=4, so3=8, so2=8, t2=3)
MADE = {
    "gta": lambda: Gta(dim=DIM, num_heads=HEADS, trans_coeff=0.5, **FULL),
    "gta_euclidean": lambda: Gta(dim=DIM, num_heads=HEADS, trans_coeff=0.5, triv=4, se3=12, so2=8, similarity="euclidean"),
    "cape": lambda: Cape(dim=DIM, num_heads=HEADS),
    "prope": lambda: Prope(dim=DIM, num_heads=HEADS),
}


def rotation(seed, count=1):
    g = torch.Generator().manual_seed(seed)
    r = torch.linalg.qr(torch.randn(count, 3, 3, generator=g, dtype=torch.float64))[0]
    return r * r.det()[:, None, None].sign()


def poses(views, seed=0, spread=1.0):
    e = torch.eye(4, dtype=torch.float64).repeat(views, 1, 1)
    e[:, :3, :3] = rotation(seed, views)
    e[:, :3, 3] = spread * torch.randn(views, 3, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    return e


def cameras(views=3, grid=(2, 3), seed=0, frame="world", pose=None):
    k = torch.tensor([[20.0, 0, 13], [0, 18.0, 7], [0, 0, 1]]).repeat(views, 1, 1)
    k[:, 0, 0] += torch.arange(views)  # each camera its own focal length
    return camera_grid(*grid, poses(views, seed) if pose is None else pose, k, (16, 24), frame=frame)


def tensors(count, batch=2, seed=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, count, DIM // HEADS, generator=g).to(dtype) for _ in range(3))


def run(encoding, qkv, ctx_q, ctx_k=None):
    with torch.no_grad():
        return attend(*qkv, encoding, ctx_q, ctx_q if ctx_k is None else ctx_k, scale=24**-0.5)


@pytest.mark.parametrize("views, grid", [(3, (2, 3)), (2, (1, 1)), (1, (5, 7)), (5, (1, 1))])
def test_pairs_of_poses_as_in_the_formula(views, grid):
    """i and j in loops: logits and values from E_i E_j⁻¹ of the world's poses, translations scaled by c."""
    encoding = Gta(dim=DIM, num_heads=HEADS, trans_coeff=0.5, se3=24)
    pos = cameras(views, grid)
    count = pos.coords.shape[1]
    q, k, v = tensors(count, batch=1, dtype=torch.float64)
    e = pos.world_to_camera[0].double().clone()
    e[:, :3, 3] *= 0.5
    want = torch.zeros_like(q)
    for i in range(count):
        to = [torch.block_diag(*[e[pos.view[0, i]] @ torch.linalg.inv(e[pos.view[0, j]])] * 6) for j in range(count)]
        for h in range(HEADS):
            logits = torch.stack([q[0, h, i] @ to[j] @ k[0, h, j] for j in range(count)]) * 24**-0.5
            p = logits.softmax(0)
            want[0, h, i] = sum(p[j] * (to[j] @ v[0, h, j]) for j in range(count))
    torch.testing.assert_close(run(encoding, (q, k, v), encoding.prepare(pos)), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MADE)
def test_the_world_frame_changes_nothing(name):
    encoding, pose = MADE[name](), poses(3)
    moved = pose @ poses(1, seed=9, spread=2.0)
    qkv = tensors(18)
    here, there = (run(encoding, qkv, encoding.prepare(cameras(pose=p))) for p in (pose, moved))
    torch.testing.assert_close(here, there, rtol=2e-5, atol=2e-5)
    other = run(encoding, qkv, encoding.prepare(cameras(seed=3)))
    assert (here - other).abs().max() > 1e-2  # and relative poses are seen


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("far", [1e3, 1e4])
def test_bfloat16_far_from_the_origin(name, far):
    """Float64 poses, moved to the first camera ahead of rounding, cost 2 % at most of the output in bfloat16."""
    encoding, pose = MADE[name](), poses(4, spread=0.5)
    shift = torch.eye(4, dtype=torch.float64)
    shift[:3, 3] = far * torch.tensor([0.6, -0.64, 0.48], dtype=torch.float64)
    qkv = tensors(24)
    want = run(encoding, qkv, encoding.prepare(cameras(4, pose=pose)))
    half = tuple(t.bfloat16() for t in qkv)
    got = run(encoding, half, encoding.prepare(cameras(4, pose=pose @ shift, frame="first")))
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).norm() < 0.02 * want.norm()


@pytest.mark.parametrize("name", MADE)
def test_queries_in_other_views_than_keys(name):
    """Cross-attention from a fourth camera: as in self-attention of all four, keys of that camera masked."""
    encoding = MADE[name]()
    everything = cameras(4)
    inputs, target = everything.select_views([0, 1, 2]), everything.select_views([3])
    q, k, v = tensors(24)
    mask = torch.arange(24) < 18
    ctx = encoding.prepare(everything)
    with torch.no_grad():
        want = attend(q, k, v, encoding, ctx, ctx, scale=0.2, mask=mask[None, None, None])[:, :, 18:]
        apart = encoding.prepare(target), encoding.prepare(inputs)
        got = attend(q[:, :, 18:], k[:, :, :18], v[:, :, :18], encoding, *apart, scale=0.2)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MADE)
def test_order_of_cameras_and_dropped_tokens(name):
    encoding, pos = MADE[name](), cameras()
    qkv = tensors(18)
    ctx = encoding.prepare(pos)
    want = run(encoding, qkv, ctx)
    index = torch.cat([torch.arange(6) + 6 * v for v in (2, 0, 1)])
    permuted = encoding.prepare(pos.select_views([2, 0, 1]))
    moved = run(encoding, tuple(t[:, :, index] for t in qkv), permuted)
    torch.testing.assert_close(moved, want[:, :, index], rtol=2e-5, atol=2e-5)
    shuffled = torch.randperm(18, generator=torch.Generator().manual_seed(0))
    gathered = run(encoding, tuple(t[:, :, shuffled] for t in qkv), encoding.prepare(pos.take(shuffled)))
    torch.testing.assert_close(gathered, want[:, :, shuffled], rtol=2e-5, atol=2e-5)


def test_wigner_at_every_orientation():
    """A representation, also where a camera looks exactly backwards and ZYZ angles fail: D(A)D(B) = D(AB), Y(Rr) = D Y(r)."""
    roll = torch.tensor(0.7)
    c, s = math.cos(roll), math.sin(roll)
    back = torch.tensor([[[c, s, 0], [s, -c, 0], [0, 0, -1]]], dtype=torch.float64)
    r = torch.cat((rotation(1, 4), back))
    for one, two, both in zip(wigner(r, 2), wigner(r.flip(0), 2), wigner(r @ r.flip(0), 2)):
        torch.testing.assert_close(one @ two, both, rtol=1e-12, atol=1e-12)
    x = torch.randn(3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def harmonics(p):
        x, y, z = p
        t = 3**0.5
        return torch.stack((t * x * y, t * y * z, (3 * z * z - p @ p) / 2, t * x * z, t / 2 * (x * x - y * y)))

    for m, d in zip(r, wigner(r, 2)[1]):
        torch.testing.assert_close(harmonics(m @ x), d @ harmonics(x), rtol=1e-12, atol=1e-12)


def test_the_scale_exists_only_where_it_is_used():
    without = Gta(dim=DIM, num_heads=HEADS, so2=16, so3=8)
    assert not list(without.parameters())
    encoding = MADE["gta"]()
    ctx = encoding.prepare(cameras())
    attend(*tensors(18), encoding, ctx, ctx, scale=0.2).square().sum().backward()
    assert encoding.trans_coeff.grad.abs().item() > 0
    assert run(without, tensors(18), without.prepare(cameras())).isfinite().all()


def test_prefix_tokens_count_from_the_first_camera():
    pos = cameras()
    for make in MADE.values():
        encoding = make()
        q, k, _ = tensors(20)
        ctx = encoding.prepare(camera_grid(2, 3, pos.world_to_camera, pos.intrinsics, (16, 24), prefix=2))
        turned, _ = encoding.qk(q, k, ctx, ctx)
        assert torch.equal(turned[:, :, :2, :24], q[:, :, :2])


def test_refusals():
    for make in (lambda: Gta(dim=60, num_heads=5), lambda: Prope(dim=60, num_heads=5), lambda: Cape(dim=20, num_heads=2)):
        with pytest.raises(ValueError, match="must be a multiple of"):
            make()
    with pytest.raises(ValueError, match="add up to 20 and must be the head's 24"):
        Gta(dim=DIM, num_heads=HEADS, se3=12, so2=8)
    with pytest.raises(ValueError, match="se3=10 channels must be a multiple of 4"):
        Gta(dim=DIM, num_heads=HEADS, se3=10, triv=14)
    for make in MADE.values():
        with pytest.raises(ValueError, match="needs positions with cameras.*camera_grid"):
            make().prepare(patch_grid(2, 3))
    scaled = poses(2)
    scaled[1, :3, :3] *= 1.5
    with pytest.raises(ValueError, match="not orthonormal"):
        cameras(2, pose=scaled)


def test_every_sample_has_its_own_cameras():
    """Two samples with other poses and focal lengths, also when batch and views are 3 both."""
    pose = torch.stack([poses(3, seed=s) for s in (0, 1, 2)])
    k = torch.tensor([[20.0, 0, 13], [0, 18.0, 7], [0, 0, 1]]).repeat(3, 3, 1, 1)
    k[1, :, 0, 0] *= 2
    for make in MADE.values():
        encoding, qkv = make(), tensors(18, batch=3)
        out = run(encoding, qkv, encoding.prepare(camera_grid(2, 3, pose, k, (16, 24))))
        for b in range(3):
            one = encoding.prepare(camera_grid(2, 3, pose[b], k[b], (16, 24)))
            single = run(encoding, tuple(t[b : b + 1] for t in qkv), one)
            torch.testing.assert_close(out[b : b + 1], single, rtol=1e-5, atol=1e-5)
    inverse = invert_rigid(pose)
    torch.testing.assert_close(inverse @ pose, torch.eye(4, dtype=torch.float64).expand(3, 3, 4, 4), rtol=0, atol=1e-12)
