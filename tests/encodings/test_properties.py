"""Laws of encodings at the level of attention and tokens, for every name and every number of axes on its card."""

import pytest
import torch
from generic_helpers import (
    DIM,
    ENCODINGS,
    HEADS,
    NAMES,
    PAIRS,
    RELATIVE,
    accepts_free,
    build,
    close,
    excite,
    facts,
    free_positions,
    grid_positions,
    heads,
    scores,
    tensors,
    vit,
)

from vispe.encodings import EncodingStack
from vispe.encodings.rotary import Rotary
from vispe.layers import Attention, CrossAttention, attend
from vispe.positions import Positions, custom_positions

ROTARY = [(name, axes) for name, axes in PAIRS if issubclass(ENCODINGS[name], Rotary)]


def refuses_dropping(name):
    return "grid" in ENCODINGS[name].card.needs and "between" in ENCODINGS[name].card.injection


@pytest.mark.parametrize("name, axes", PAIRS)
@pytest.mark.parametrize("prefix", [0, 2])
def test_attention_on_every_number_of_axes(name, axes, prefix):
    encoding = build(name, axes, prefix=prefix)
    pos = grid_positions(axes, prefix=prefix)
    attention = Attention(DIM, num_heads=HEADS)
    x = torch.randn(2, prefix + pos.coords.shape[1], DIM)
    ctx = encoding.prepare(pos)
    out = attention(encoding.between(encoding.tokens(x, ctx), ctx, 0), encoding, ctx)
    assert out.shape == x.shape and out.isfinite().all()


@pytest.mark.parametrize("name, axes", RELATIVE)
def test_a_common_shift_changes_nothing(name, axes):
    """Logits and values of relative encodings see differences of coordinates only."""
    encoding = build(name, axes)
    count = free_positions(axes).coords.shape[1]
    q, k, v = heads(count)
    outs = []
    for offset in (0.0, 3.0, -2.0):
        ctx = encoding.prepare(free_positions(axes, offset=offset))
        outs.append((scores(encoding, q, k, ctx, ctx), attend(q, k, v, encoding, ctx, ctx, scale=0.2)))
    for shifted in outs[1:]:
        for a, b in zip(shifted, outs[0]):
            close(a, b, 2e-4)


@pytest.mark.parametrize("name, axes", [p for p in PAIRS if p not in RELATIVE])
def test_a_common_shift_is_seen_by_absolute_encodings(name, axes):
    if not accepts_free(name, axes):
        return
    encoding = build(name, axes)
    x = torch.zeros(1, free_positions(axes).coords.shape[1], DIM)
    here, there = (encoding.tokens(x, encoding.prepare(free_positions(axes, offset=o))) for o in (0.0, 3.0))
    assert (here - there).abs().max() > 1e-3


@pytest.mark.parametrize("name, axes", [p for p in RELATIVE if p[0] != "none"])
def test_differences_are_seen(name, axes):
    """Stretching coordinates, which changes differences, changes the logits."""
    encoding = build(name, axes)
    pos = free_positions(axes)
    q, k, _ = heads(pos.coords.shape[1])
    near, far = encoding.prepare(pos), encoding.prepare(custom_positions(pos.coords * 2))
    assert (scores(encoding, q, k, near, near) - scores(encoding, q, k, far, far)).abs().max() > 1e-3


@pytest.mark.parametrize("name, axes", ROTARY)
def test_rotations(name, axes):
    """No turn at position 0; lengths of queries and keys kept anywhere."""
    encoding = build(name, axes)
    q, k, _ = heads(5)
    zero = encoding.prepare(custom_positions(torch.zeros(5, axes)))
    close(scores(encoding, q, k, zero, zero), q @ k.mT * q.shape[-1] ** -0.5, 1e-5)
    if type(encoding).qk is Rotary.qk:  # no change of basis around the rotation
        assert all(torch.equal(a, b) for a, b in zip(encoding.qk(q, k, zero, zero), (q, k)))
    away = encoding.prepare(custom_positions(torch.randn(5, axes) * 40))
    for a, b in zip(encoding.qk(q, k, away, away), (q, k)):
        close(a.norm(dim=-1), b.norm(dim=-1), 1e-5)
    if hasattr(encoding, "matrices"):
        r = encoding.matrices(grid_positions(axes, prefix=1))  # float32 matrix exponentials lose digits far outside [0, 1]
        close(r @ r.mT, torch.eye(r.shape[-1]).expand_as(r), 1e-5)
        still = encoding.matrices(custom_positions(torch.zeros(5, axes)))
        close(still, torch.eye(r.shape[-1]).expand_as(still), 1e-6)


@pytest.mark.parametrize("name, axes", [p for p in ROTARY if ENCODINGS[p[0]].prefix_coord is None])
def test_unrotated_prefix_is_bit_equal(name, axes):
    encoding = build(name, axes)
    pos = grid_positions(axes, prefix=3)
    q, k, v = heads(3 + pos.coords.shape[1])
    ctx = encoding.prepare(pos)
    for a, b in zip((*encoding.qk(q, k, ctx, ctx), encoding.v(v, ctx)), (q, k, v)):
        assert torch.equal(a[:, :, :3], b[:, :, :3])
    bare = encoding.prepare(grid_positions(axes))
    close(encoding.qk(q[:, :, 3:], k[:, :, 3:], bare, bare)[0], encoding.qk(q, k, ctx, ctx)[0][:, :, 3:], 1e-6)


@pytest.mark.parametrize("name, axes", PAIRS)
@pytest.mark.parametrize("prefix", [0, 2])
def test_dropping_equals_gathering(name, axes, prefix):
    """Kept tokens have the logits, and the additions, that they have among all tokens; one order for each image."""
    encoding = build(name, axes, prefix=prefix)
    pos = grid_positions(axes, prefix=prefix)
    count = pos.coords.shape[1]
    keep = torch.stack([torch.randperm(count, generator=torch.Generator().manual_seed(s))[: count // 2 + 1] for s in (0, 1)])
    full = encoding.prepare(pos)
    try:
        part = encoding.prepare(pos.take(keep))
    except ValueError as error:
        assert refuses_dropping(name) and name in str(error) and "dropped" in str(error)
        return
    assert not refuses_dropping(name)
    index = torch.cat((torch.arange(prefix).expand(2, -1), keep + prefix), dim=1)

    def gather(t, dim):
        shape = [1] * t.ndim
        shape[0], shape[dim] = index.shape
        return t.gather(dim, index.view(shape).expand(*[index.shape[1] if d == dim else s for d, s in enumerate(t.shape)]))

    q, k, v = heads(prefix + count)
    some = [gather(t, 2) for t in (q, k, v)]
    want = gather(gather(scores(encoding, q, k, full, full), 2), 3)
    close(scores(encoding, some[0], some[1], part, part), want, 1e-5)
    p = want.softmax(-1)
    mixed = encoding.out(encoding.mix(p, encoding.v(some[2], part), part, part), part)
    close(attend(*some, encoding, part, part, scale=48**-0.5), mixed, 1e-5)
    x = torch.randn(2, prefix + count, DIM)
    close(encoding.tokens(gather(x, 1), part), gather(encoding.tokens(x, full), 1), 1e-5)


@pytest.mark.parametrize("name, axes", PAIRS)
@pytest.mark.parametrize("prefix", [0, 2])
def test_cross_attention(name, axes, prefix):
    """Fewer queries than keys: each query gets what it gets among all of them."""
    if refuses_dropping(name):
        return
    encoding = build(name, axes, prefix=prefix)
    torch.manual_seed(0)
    cross = CrossAttention(DIM, num_heads=HEADS, context_dim=40)
    pos = grid_positions(axes, prefix=prefix)
    count = pos.coords.shape[1]
    keep = torch.tensor([count - 1, 0, 2])
    index = torch.cat((torch.arange(prefix), keep + prefix))
    x, context = torch.randn(2, prefix + count, DIM), torch.randn(2, prefix + count, 40)
    all_ctx, some_ctx = encoding.prepare(pos), encoding.prepare(pos.take(keep))
    want = cross(x, context, encoding, all_ctx, all_ctx)[:, index]
    got = cross(x[:, index], context, encoding, some_ctx, all_ctx)
    assert got.shape == (2, prefix + 3, DIM)
    close(got, want, 1e-5)
    cross.fused_attn = False
    close(cross(x[:, index], context, encoding, some_ctx, all_ctx), want, 1e-5)
    fewer_keys = cross(x, context[:, index], encoding, all_ctx, some_ctx)
    assert fewer_keys.shape == x.shape
    close(fewer_keys[:, index], cross(x[:, index], context[:, index], encoding, some_ctx, some_ctx), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_order_of_tokens_does_not_matter(name):
    """Permuting tokens and positions together permutes the outputs of a whole ViT; a convolution refuses, clearly."""
    model = vit(name)
    pos = model.positions(3, 5)
    x = torch.randn(1, 15, DIM, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))

    def run(tokens, where):
        y, ctx = model.start(tokens, where)
        for i in range(len(model.blocks)):
            y = model.run_block(i, y, ctx)
        return y

    if refuses_dropping(name):
        with pytest.raises(ValueError, match=f"{name}: the tokens are no full grid"):
            run(x[:, order], pos.take(order))
        return
    index = torch.cat((torch.zeros(1, dtype=torch.long), order + 1))
    close(run(x[:, order], pos.take(order)), run(x, pos)[:, index], 2e-5)


@pytest.mark.parametrize("name, axes", PAIRS)
def test_batched_positions(name, axes):
    """Two images with positions of their own equal two batches of one."""
    if refuses_dropping(name):
        return
    encoding = build(name, axes)
    pos = grid_positions(axes)
    count = pos.coords.shape[1]
    rows = torch.stack((torch.arange(count), torch.arange(count).flip(0)))[:, :4]
    q, k, v = heads(4)
    x = torch.randn(2, 4, DIM)
    both = encoding.prepare(pos.take(rows))
    out = attend(q, k, v, encoding, both, both, scale=0.2)
    for i in (0, 1):
        one = encoding.prepare(pos.take(rows[i]))
        single = attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], encoding, one, one, scale=0.2)
        close(out[i : i + 1], single, 1e-5)
        close(encoding.tokens(x, both)[i : i + 1], encoding.tokens(x[i : i + 1], one), 1e-5)


@pytest.mark.parametrize("name, axes", PAIRS)
def test_positions_in_half_precision_models(name, axes):
    """A bfloat16 module computes the same angles, 65536 cells from the origin too, as its rounded parameters do in float32."""
    free = accepts_free(name, axes)
    pos = free_positions(axes, offset=65536.0) if free else grid_positions(axes)
    half = build(name, axes).bfloat16()
    got, want = tensors(half.prepare(pos)), tensors(build(name, axes).bfloat16().float().prepare(pos))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stack = EncodingStack(name, dim=DIM, num_heads=HEADS, depth=1, axes=axes, facts=facts(name, axes))
        cast = tensors(stack.prepare(pos))
    assert {t.dtype for t in cast if t.is_floating_point()} <= {torch.float32}
    assert len(got) == len(want)
    for a, b in zip(got, want):
        if free:
            assert a.dtype == b.dtype and torch.equal(a, b)
        else:  # rows of a parameter come in its own dtype
            torch.testing.assert_close(a.float(), b.float(), rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("name, axes", ROTARY)
def test_far_positions_stay_apart(name, axes):
    """Sixteen neighbours at 65536 have sixteen different contexts (bfloat16 positions have one)."""
    encoding = build(name, axes).bfloat16()
    line = torch.zeros(16, axes)
    line[:, -1] = 65536 + torch.arange(16.0)
    q = torch.ones(1, HEADS, 16, DIM // HEADS, dtype=torch.bfloat16)
    ctx = encoding.prepare(custom_positions(line))
    angles = ctx.cos[0] + 2 * ctx.sin[0]  # (H or 1, N, P)
    assert len(angles[0].unique(dim=0)) == 16
    turned, _ = encoding.qk(q, q, ctx, ctx)
    assert turned.dtype == torch.bfloat16 and len(turned[0, 0].unique(dim=0)) == 16


@pytest.mark.parametrize("name, axes", ROTARY)
def test_wavelengths(name, axes):
    """A step of one wavelength along a frequency vector is a full turn."""
    encoding = excite(build(name, axes))
    grid = grid_positions(axes).grid
    waves = encoding.wavelengths(grid)
    assert waves.shape == encoding.frequencies().shape[::2] and (waves > 0).all()
    step = Positions(torch.eye(axes)[None], extent=grid, train=grid).to(encoding.units, encoding.resize)
    step = step - Positions(torch.zeros(1, 1, axes), extent=grid, train=grid).to(encoding.units, encoding.resize)
    turn = (encoding.frequencies().detach() * step[0].diagonal()[:, None]).norm(dim=1) * waves
    finite = waves.isfinite()
    close(turn[finite], torch.full_like(turn[finite], 2 * torch.pi), 1e-4)
    assert build("learned" if axes == 2 else "none", axes).wavelengths(grid) is None
