"""HARoPE: the matrices, both modes, half precision, folding, and what the paper's claims come to."""

import copy
import math
from unittest import mock

import pytest
import torch
from generic_helpers import build, close, excite, heads, images, scores, vit

from vispe.encodings import create_encoding, harope
from vispe.encodings.expm import skew_exp
from vispe.encodings.skew import skew_matrix
from vispe.layers import Attention
from vispe.models import EncodedVisionTransformer
from vispe.positions import custom_positions, patch_grid


def by_definition(encoding):
    """M and M⁻ᵀ head by head, with torch's own exponential in float64."""
    out = []
    for u, v, sigma in zip(encoding.skew_u.double(), encoding.skew_v.double(), encoding.sigma.double()):
        u, v = (torch.linalg.matrix_exp(skew_matrix(x, encoding.head_dim)) for x in (u, v))
        m = u @ torch.diag(torch.log1p(sigma.exp()) + 1e-6) @ v.T
        out.append(torch.stack((m, torch.linalg.inv(m).T)))
    return torch.stack(out, dim=1)


def test_matrices_are_those_of_the_definition():
    encoding = build("harope")
    of_q, of_k = harope.HARoPE.head_matrices([encoding])
    want = by_definition(encoding)
    close(of_q[0].double(), want[0], 1e-5)
    close(of_k[0].double(), want[1], 1e-5)
    close(of_q[0].mT @ of_k[0], torch.eye(48).expand(2, 48, 48), 1e-5)  # queries and keys undo each other
    shared = harope.HARoPE.head_matrices([build("harope", mode="shared")])
    assert torch.equal(*shared)


def test_scores_start_as_plain_rotary():
    encoding, plain = (create_encoding(name, dim=96, num_heads=2, axes=2) for name in ("harope", "rope3d"))
    pos = patch_grid(4, 16)
    q, k, _ = heads(64)
    ctx, bare = encoding.prepare(pos), plain.prepare(pos)
    close(scores(encoding, q, k, ctx, ctx), scores(plain, q, k, bare, bare), 1e-5)
    assert encoding.sigma.unique().item() == pytest.approx(math.log(math.e - 1))
    assert sum(p.numel() for p in encoding.parameters()) == 2 * (48 * 47 + 48)


def test_conjugate_keeps_scores_at_equal_positions_and_frequencies():
    """MᵀR M⁻ᵀ has R's eigenvalues, so that no frequency is moved; the paper's first version is another function."""
    pos = custom_positions(torch.tensor([[0.0, 0.0], [3.0, 1.0]]))
    q, k, _ = heads(2)
    conjugate, shared = build("harope"), build("harope", mode="shared")
    same = (q * k).sum(-1) * 48**-0.5
    for encoding, equal in ((conjugate, True), (shared, False)):
        ctx = encoding.prepare(pos)
        diagonal = scores(encoding, q, k, ctx, ctx).diagonal(dim1=-2, dim2=-1)
        assert ((diagonal - same).abs().max() < 1e-4) == equal
    of_q, of_k = (m[0, 0].double() for m in harope.HARoPE.head_matrices([conjugate]))
    angle = conjugate.prepare(pos)
    c, s = (getattr(angle, n)[0, 0, 1].double() for n in ("cos", "sin"))
    turn = torch.block_diag(*(torch.stack((torch.stack((a, -b)), torch.stack((b, a)))) for a, b in zip(c, s)))
    found = torch.linalg.eigvals(of_q.mT @ turn @ of_k)
    close(found.real.sort().values, c.repeat_interleave(2).sort().values, 1e-5)


def test_first_gradients():
    """At the start M depends on S_u − S_v only."""
    encoding = create_encoding("harope", dim=96, num_heads=2)
    pos = patch_grid(3, 4)
    q, k, _ = heads(12)
    ctx = encoding.prepare(pos)
    scores(encoding, q, k, ctx, ctx).square().sum().backward()
    close(encoding.skew_u.grad, -encoding.skew_v.grad, 1e-3)
    assert encoding.skew_u.grad.abs().max() > 0 and encoding.sigma.grad.abs().max() > 0
    assert all(n in encoding.no_decay for n, _ in encoding.named_parameters())


@pytest.mark.parametrize("size", [4, 12, 64])
def test_exponential_and_its_gradient(size):
    """Against torch.linalg.matrix_exp, at small and at large angles."""
    torch.manual_seed(0)
    for scale in (0.01, 1.0, 6.0):
        upper = (scale * torch.randn(2, size * (size - 1) // 2, dtype=torch.float64)).requires_grad_()
        weight = torch.randn(2, size, size, dtype=torch.float64)
        grads = []
        for f in (skew_exp, torch.linalg.matrix_exp):
            y = f(skew_matrix(upper, size))
            grads.append((y, torch.autograd.grad((y * weight).sum(), upper)[0]))
        for a, b in zip(*grads):
            close(a, b, 1e-9)


def test_half_precision():
    """torch's bfloat16 matrix_exp gives 1e30 for zeros; ours never sees bfloat16, nor does autocast see the products."""
    encoding = build("harope")
    half = copy.deepcopy(encoding).bfloat16()
    want = torch.stack(harope.HARoPE.head_matrices([copy.deepcopy(half).float()]))  # of the same rounded weights
    ctx = half.prepare(patch_grid(2, 3))
    got = torch.stack((ctx.of_q, ctx.of_k))
    assert got.dtype == torch.float32 and got.isfinite().all()
    assert torch.equal(got, want[:, 0])
    fresh = create_encoding("harope", dim=96, num_heads=2).bfloat16().prepare(patch_grid(2, 3))
    assert (torch.stack((fresh.of_q, fresh.of_k)) - torch.eye(48)).abs().max() < 2e-2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        of_q, of_k = harope.HARoPE.head_matrices([encoding])
    close(of_q.mT @ of_k, torch.eye(48).expand(1, 2, 48, 48), 1e-5)
    q, k, _ = (x.bfloat16() for x in heads(6))
    turned = half.qk(q, k, ctx, ctx)
    assert all(x.dtype == torch.bfloat16 and x.isfinite().all() for x in turned)


def test_one_exponential_for_all_layers():
    model = vit("harope", depth=3)
    with mock.patch.object(harope, "skew_exp", side_effect=skew_exp) as called:
        model(images())
    assert called.call_count == 1 and called.call_args[0][0].shape == (3, 2, 2, 48, 48)


@pytest.mark.parametrize("mode", ["conjugate", "shared"])
@pytest.mark.parametrize("bias", [True, False])
def test_folding(mode, bias):
    """Attention and whole models, at several grids; what is left is plain rotary without parameters."""
    model = vit("harope", encoding_kwargs={"mode": mode}, qkv_bias=bias)
    folded = copy.deepcopy(model).fold()
    assert not list(folded.encoding.parameters())
    for size in ((32, 48), (40, 24), (32, 128)):
        close(folded(images(*size)), model(images(*size)), 1e-5)
    x, pos = torch.randn(2, 25, 96), model.positions(4, 6)
    one, other = model.blocks[0].attn, folded.blocks[0].attn
    args = [(m.encoding["harope"][0], m.encoding["harope"][0].prepare(pos)) for m in (model, folded)]
    close(one(x, *args[0]), other(x, *args[1]), 1e-5)


def test_no_folding_through_a_norm():
    model = vit("harope", qk_norm=True)
    with pytest.raises(ValueError, match="harope cannot be folded through q_norm and k_norm; use the model unfolded"):
        model.fold()


def test_the_matrices_act_behind_a_query_key_norm():
    """There M is more than a reparametrisation: no W_q gives the same."""
    torch.manual_seed(0)
    layer = Attention(96, num_heads=2, qk_norm=True, norm_layer=torch.nn.LayerNorm)
    encoding, plain = build("harope"), create_encoding("rope3d", dim=96, num_heads=2, axes=2)
    x, pos = torch.randn(1, 12, 96), patch_grid(3, 4)
    q, k, v = layer.qkv(x).unflatten(-1, (3, 2, 48)).permute(2, 0, 3, 1, 4).unbind(0)
    m_q, m_k = (m[0] for m in harope.HARoPE.head_matrices([encoding]))
    q, k = layer.q_norm(q) @ m_q.mT, layer.k_norm(k) @ m_k.mT
    q, k = plain.qk(q, k, plain.prepare(pos), plain.prepare(pos))
    want = layer.proj(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    close(layer(x, encoding, encoding.prepare(pos)), want, 1e-5)


def test_checkpointing_does_not_repeat_the_exponential():
    """The exponential runs outside checkpointed blocks, once a forward."""
    model = excite(vit("harope").train())
    model.set_grad_checkpointing(True)
    with mock.patch.object(harope, "skew_exp", side_effect=skew_exp) as called:
        model(images()).square().sum().backward()
    assert called.call_count == 1
    assert all(p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in model.encoding.parameters())


@pytest.mark.parametrize("head_dim, axes, words", [(6, 2, "multiple of 4"), (10, 3, "multiple of 6")])
def test_bad_input(head_dim, axes, words):
    with pytest.raises(ValueError, match=f"harope: a head of {head_dim} channels.*{words}"):
        create_encoding("harope", dim=2 * head_dim, num_heads=2, axes=axes)
    with pytest.raises(ValueError, match="'conjugate' or 'shared', got 'both'"):
        EncodedVisionTransformer("harope", {"mode": "both"}, img_size=16, patch_size=8, embed_dim=16, num_heads=2, depth=1)
    assert create_encoding("harope", dim=144, num_heads=2).head_dim == 72  # DiT-XL
