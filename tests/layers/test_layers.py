"""Attention, blocks and patch embedding: timm's own numbers without an encoding, a plain softmax with one."""

import pytest
import timm
import torch
from timm.layers import PatchEmbed as TimmPatchEmbed
from timm.layers import set_fused_attn
from timm.layers.attention import Attention as TimmAttention

from vispe.encodings import Composed, Encoding, create_encoding
from vispe.encodings.base import Card
from vispe.layers import Attention, Block, CrossAttention, PatchEmbed, attend
from vispe.positions import patch_grid

NONE = create_encoding("none", dim=32, num_heads=4)


class Everything(Encoding):
    """Every attention hook, each with a number that is easy to follow."""

    card = Card("test", "test", (2,), ("qk", "v", "out", "bias", "mix"), "")

    def __init__(self, mixing=False):
        super().__init__(dim=32, num_heads=4)
        self.table = torch.nn.Parameter(torch.randn(4, 5, 5))
        self.mixing = mixing

    def qk(self, q, k, ctx_q, ctx_k):
        return q * 2, k + 1

    def v(self, v, ctx_k):
        return v * 3

    def out(self, o, ctx_q):
        return o - 1

    def bias(self, q, k, ctx_q, ctx_k):
        return self.table + (q @ k.mT) * 0.1

    def mix(self, p, v, ctx_q, ctx_k):
        return p @ v + (p.square() @ v if self.mixing else 0)

    @property
    def mixes(self):
        return self.mixing


def qkv(count=5, seed=0):
    return torch.randn(3, 2, 4, count, 8, generator=torch.Generator().manual_seed(seed)).unbind(0)


@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "bool_row"])
def test_every_hook_against_a_plain_softmax(mixing, fused, mask):
    """Bias from untransformed q and k, added to scaled logits of the transformed ones; then v, mix, out."""
    torch.manual_seed(0)
    encoding, (q, k, v) = Everything(mixing), qkv()
    masks = {
        "none": None,
        "bool": torch.rand(2, 1, 5, 5) > 0.3,
        "float": torch.randn(5, 5),
        "bool_row": torch.tensor([1, 1, 0, 1, 1], dtype=torch.bool)[None, None, None],
    }
    m = masks[mask]
    if mask == "bool":
        m = m | torch.eye(5, dtype=torch.bool)
    logits = (2 * q) @ (k + 1).mT * 0.3 + encoding.table + (q @ k.mT) * 0.1
    if m is not None:
        logits = logits + m if m.is_floating_point() else logits.masked_fill(~m, float("-inf"))
    p = logits.softmax(-1)
    want = p @ (3 * v) + (p.square() @ (3 * v) if mixing else 0) - 1
    got = attend(q, k, v, encoding, None, None, scale=0.3, mask=m, fused=fused)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    got.sum().backward()
    a = encoding.table.grad.clone()
    encoding.table.grad = None
    want.sum().backward()
    torch.testing.assert_close(a, encoding.table.grad, rtol=1e-4, atol=1e-5)


def test_compositions_apply_in_order_and_undo_in_reverse():
    class Scale(Encoding):
        card = Card("test", "test", (2,), ("qk", "v", "out", "bias"), "")

        def __init__(self, by, plus):
            super().__init__(dim=32, num_heads=4)
            self.by, self.plus = by, plus

        def qk(self, q, k, ctx_q, ctx_k):
            return q * self.by + ctx_q, k * self.by + ctx_k

        def v(self, v, ctx_k):
            return v * self.by + ctx_k

        def out(self, o, ctx_q):
            return (o - ctx_q) / self.by

        def bias(self, q, k, ctx_q, ctx_k):
            return None if self.plus is None else torch.full((1, 1, 5, 5), self.plus)

    pair = Composed([Scale(2.0, None), Scale(3.0, 0.5)])
    q, k, v = qkv()
    a, b = pair.qk(q, k, (1.0, 2.0), (4.0, 5.0))
    assert torch.equal(a, (q * 2 + 1) * 3 + 2) and torch.equal(b, (k * 2 + 4) * 3 + 5)
    torch.testing.assert_close(pair.out(pair.v(v, (1.0, 2.0)), (1.0, 2.0)), v)
    assert torch.equal(pair.bias(q, k, (0, 0), (0, 0)), torch.full((1, 1, 5, 5), 0.5)) and not pair.mixes
    assert Composed([Scale(1.0, None)]).bias(q, k, (0,), (0,)) is None
    both = Composed([Everything(), Everything(mixing=True)])
    assert both.mixes and torch.equal(both.mix(q, v.mT, (0, 0), (0, 0)), q @ v.mT + q.square() @ v.mT)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("options", [{}, dict(qk_norm=True), dict(qkv_bias=True, proj_bias=False), dict(scale_norm=True)])
def test_attention_is_that_of_timm(fused, options):
    norm = dict(norm_layer=torch.nn.LayerNorm) if "qk_norm" in options or "scale_norm" in options else {}
    try:
        set_fused_attn(fused)
        theirs, ours = TimmAttention(32, num_heads=4, **options, **norm), Attention(32, num_heads=4, **options, **norm)
    finally:
        set_fused_attn(True)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(ours(x, NONE, None), theirs(x))
    mask = torch.randn(5, 5)
    torch.testing.assert_close(ours(x, NONE, None, mask), theirs(x, attn_mask=mask))


def test_block_is_that_of_timm():
    theirs = timm.models.vision_transformer.Block(32, 4, init_values=0.1, qkv_bias=True)
    ours = Block(32, 4, init_values=0.1, qkv_bias=True, attn_layer=Attention)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(ours(x, NONE, None), theirs(x))


def test_dropout_of_probabilities():
    """Only in training, on both routes."""
    q, k, v = qkv(64)
    drop = torch.nn.Dropout(0.5)
    want = attend(q, k, v, NONE, None, None, scale=0.1)
    for fused in (True, False):
        assert torch.equal(attend(q, k, v, NONE, None, None, scale=0.1, drop=drop.eval(), fused=fused), want) or not fused
        torch.manual_seed(0)
        mean = torch.stack(
            [attend(q, k, v, NONE, None, None, scale=0.1, drop=drop.train(), fused=fused) for _ in range(200)]
        ).mean(0)
        assert not torch.equal(mean, want)
        torch.testing.assert_close(mean, want, rtol=0.0, atol=0.15)


def test_cross_attention_by_hand():
    torch.manual_seed(0)
    cross = CrossAttention(32, num_heads=4, context_dim=16, qk_norm=True)
    x, context = torch.randn(2, 3, 32), torch.randn(2, 5, 16)
    q = cross.q_norm(cross.q(x).view(2, 3, 4, 8).transpose(1, 2))
    k, v = (t.view(2, 5, 4, 8).transpose(1, 2) for t in cross.kv(context).chunk(2, dim=-1))
    o = (q @ cross.k_norm(k).mT * 8**-0.5).softmax(-1) @ v
    want = cross.proj(o.transpose(1, 2).reshape(2, 3, 32))
    torch.testing.assert_close(cross(x, context, NONE, None, None), want)
    with pytest.raises(ValueError, match="CrossAttention: dim=30 must be a multiple of num_heads=4"):
        CrossAttention(30, num_heads=4)


def test_positions_on_one_side_only_matter_for_relative_encodings():
    """Queries of an image that attend to a part of it."""
    torch.manual_seed(0)
    rope = create_encoding("rope_axial", dim=32, num_heads=4)
    pos = patch_grid(3, 4)
    part = pos.crop((1, 1), (2, 2))
    q, k, v = qkv(12)
    all_keys = attend(q, k, v, rope, rope.prepare(pos), rope.prepare(pos), scale=0.3)
    index = part.indices[0]
    some = attend(q[:, :, index], k, v, rope, rope.prepare(part), rope.prepare(pos), scale=0.3)
    torch.testing.assert_close(some, all_keys[:, :, index])


def test_patch_embedding():
    torch.manual_seed(0)
    theirs = TimmPatchEmbed(img_size=(16, 24), patch_size=8, embed_dim=32, output_fmt="NHWC", strict_img_size=False)
    ours = PatchEmbed(img_size=(16, 24), patch_size=8, embed_dim=32)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 24, 16)
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ValueError, match=r"multiples of the patch size \(8, 8\), got \(20, 16\); resize"):
        ours(torch.randn(1, 3, 20, 16))
    padding = PatchEmbed(img_size=(16, 24), patch_size=8, embed_dim=32, dynamic_img_pad=True)
    assert padding(torch.randn(1, 3, 20, 17)).shape == (1, 3, 3, 32)
