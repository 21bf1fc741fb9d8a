"""TULIP's and Long-CLIP's text towers in open_clip: rotation, stretched tables, lengths, distillation."""

import copy
import pickle

import pytest
import torch
from model_helpers import close
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.transformer import TextTransformer
from torch.nn.utils import parametrize

from vispe.models.clip_text import (
    distillation_loss,
    rotate_text,
    stretch_table,
    stretch_text,
    student_of,
    text_tower,
    tokenize,
)
from vispe.positions import custom_positions

TEXT = dict(context_length=12, vocab_size=50, width=32, heads=4, layers=2)


def tower(seed=0, **options):
    torch.manual_seed(seed)
    return TextTransformer(**TEXT, output_dim=16, **options).eval()


def clip(kind=CLIP):
    torch.manual_seed(0)
    vision = dict(image_size=16, patch_size=8, width=32, layers=1, head_width=16)
    return kind(embed_dim=16, vision_cfg=vision, text_cfg=TEXT).eval()


def words(*lengths, width=None, seed=1):
    """Token rows of these lengths that end with the highest id, padded with zeros."""
    width = width or max(lengths)
    g = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, n in zip(rows, lengths):
        row[: n - 1] = torch.randint(1, 48, (n - 1,), generator=g)
        row[n - 1] = 49
    return rows


def naive(model, text):
    """Pre-norm blocks with rotated queries and keys, written out token by token for the scores."""
    x = model.token_embedding(text)
    batch, length, width = x.shape
    heads, d = model.heads, width // model.heads
    for block in model.transformer.resblocks:
        h = block.ln_1(x)
        qkv = h @ block.attn.in_proj_weight.T + block.attn.in_proj_bias
        q, k, v = (t.view(batch, length, heads, d) for t in qkv.chunk(3, dim=-1))

        def turned(t, p):
            freqs = 10000.0 ** (-2 * torch.arange(d // 2) / d)
            z = torch.view_as_complex(t[:, p].reshape(batch, heads, d // 2, 2).contiguous())
            return torch.view_as_real(z * torch.polar(torch.ones(d // 2), p * freqs)).flatten(-2)

        o = torch.zeros(batch, length, heads, d)
        for i in range(length):
            scores = torch.stack([(turned(q, i) * turned(k, j)).sum(-1) for j in range(i + 1)], dim=-1) / d**0.5
            p = scores.softmax(-1)
            o[:, i] = sum(p[..., j, None] * v[:, j] for j in range(i + 1))
        x = x + block.attn.out_proj(o.flatten(2))
        x = x + block.mlp(block.ln_2(x))
    x = model.ln_final(x)
    return x[torch.arange(batch), text.argmax(-1)] @ model.text_projection


@pytest.mark.parametrize("block_type", [None, "custom"])
def test_rotated_tower_is_the_naive_one(block_type):
    model = rotate_text(tower(block_type=block_type), context_length=20)
    text = words(5, 9, 3)
    close(model(text), naive(model, text))
    assert model.context_length == model.num_pos == 20 and model.attn_mask.shape == (20, 20)


def test_both_kinds_of_blocks_agree_and_keep_their_names():
    plain, custom = tower(), tower(block_type="custom")
    names = set(plain.state_dict())
    custom.load_state_dict(plain.state_dict())
    text = words(12, 20)
    a, b = rotate_text(plain, context_length=30), rotate_text(custom, context_length=30)
    close(a(text), b(text))
    assert names - set(a.state_dict()) == {"positional_embedding"} and set(a.state_dict()) <= names


@pytest.mark.parametrize("kind", [CLIP, CustomTextCLIP])
def test_whole_clip_at_any_length(kind):
    model = rotate_text(clip(kind), context_length=40)
    short = words(6, 9)
    long = words(6, 9, width=40)
    close(model.encode_text(short), model.encode_text(long))  # causal, pooled at the end of the text: padding is not seen
    assert model.context_length == 40
    image, text, scale = model(torch.randn(2, 3, 16, 16), short)
    assert image.shape == text.shape == (2, 16) and scale > 0
    with pytest.raises(ValueError, match="text of 41 tokens: longer than the context of 40"):
        model.encode_text(words(41))


def test_order_is_seen_and_shifts_are_not():
    model = rotate_text(tower(no_causal_mask=True), context_length=30)
    text = words(8)
    swapped = text[:, [0, 2, 1, *range(3, 8)]]
    assert (model(text) - model(swapped)).abs().max() > 1e-4
    positions, q = model.transformer.resblocks[0].attn.positions, torch.randn(1, 4, 8, 8)
    logits = []
    for start in (0.0, 5.0):
        ctx = positions.prepare(custom_positions(torch.arange(8.0)[:, None] + start))
        turned, keys = positions.qk(q, q, ctx, ctx)
        logits.append(turned @ keys.mT)
    close(logits[0], logits[1])


def test_gradients_checkpointing_and_copies():
    model = rotate_text(tower(), context_length=20).train()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    twin.set_grad_checkpointing()
    text = words(5, 11)
    for m in (model, twin):
        m(text).square().sum().backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        assert p.grad is not None and p.grad.isfinite().all()
        close(p.grad, q.grad)


def test_cosine_attention_heads_and_norms_of_open_clip():
    text = words(6, 9)
    for options in ({"scaled_cosine_attn": True}, {"qk_norm": True}, {"scale_heads": True, "scale_attn_inner": True}):
        model = rotate_text(tower(**options), context_length=15)
        assert model(text).isfinite().all()


def test_custom_attention_without_rotation_is_open_clips():
    """With frequency 0 in place of every rotation the subclass computes what its parent does."""
    plain = tower(qk_norm=True, scale_heads=True, scale_attn_inner=True)
    with torch.no_grad():
        plain.positional_embedding.zero_()
        for block in plain.transformer.resblocks:
            block.attn.head_scale.uniform_(0.5, 2)
    still = rotate_text(copy.deepcopy(plain), context_length=12)
    for block in still.transformer.resblocks:
        block.attn.positions.frequencies = lambda: torch.zeros(1, 1, 4)
    text = words(12, 7)
    close(still(text), plain(text))


def test_other_encodings_in_the_text():
    model = rotate_text(tower(), context_length=20, encoding="alibi2d")
    text = words(8)
    assert (model(text) - rotate_text(tower(), context_length=20)(text)).abs().max() > 1e-4


def test_refusals_of_rotation():
    model = rotate_text(tower())
    with pytest.raises(ValueError, match="no learned table any more"):
        rotate_text(model)
    with pytest.raises(ValueError, match="appended class token"):
        rotate_text(tower(embed_cls=True))
    with pytest.raises(ValueError, match="has no open_clip text transformer"):
        rotate_text(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="context_length must be at least 1"):
        rotate_text(tower(), context_length=0)
    with pytest.raises(ValueError, match="unknown option 'thetta'"):
        rotate_text(tower(), options={"thetta": 1.0})


def test_stretched_table_row_by_row():
    old = torch.randn(77, 6)
    new = stretch_table(old)
    assert new.shape == (248, 6)
    for row in range(248):
        if row < 20:
            want = old[row]
        else:
            j, s = divmod(row - 20, 4)
            a, b = (old[20 + j], old[21 + j]) if 20 + j < 76 else (old[76], 2 * old[76] - old[75])
            want = a + s / 4 * (b - a)
        close(new[row], want)
    with pytest.raises(ValueError, match="at least keep"):
        stretch_table(torch.randn(20, 6))


@pytest.mark.parametrize("kind", [CLIP, CustomTextCLIP])
def test_stretched_tower_trains_the_stretched_rows(kind):
    model = stretch_text(clip(kind), keep=4, ratio=3)
    place = text_tower(model)
    assert place.positional_embedding.shape == (4 + 3 * 8, 32) and model.context_length == 28
    before = place.positional_embedding.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=1.0)
    model.encode_text(words(20, 28, width=28)).square().sum().backward()
    optimizer.step()
    after = place.positional_embedding.detach()
    assert torch.equal(after[:4], before[:4]) and (after[4:] != before[4:]).all()
    parametrize.remove_parametrizations(place, "positional_embedding")
    assert torch.equal(place.positional_embedding.detach(), after)


def test_stretching_keeps_short_texts():
    """Texts inside the kept rows mean what they meant."""
    model = clip()
    text = words(5, 8, width=12)
    want = model.encode_text(text)
    longer = stretch_text(copy.deepcopy(model), keep=8, ratio=2)
    close(longer.encode_text(torch.nn.functional.pad(text, (0, longer.context_length - 12))), want)


def test_tokens_are_never_cut_off():
    import open_clip

    ids = tokenize(["a dog left of a red apple", "grid"], 12)
    assert torch.equal(ids, open_clip.tokenize(["a dog left of a red apple", "grid"], 12))
    long = " ".join(["apple"] * 80)
    assert tokenize(long, 82).shape == (1, 82) and (tokenize(long, 82) > 0).all()
    with pytest.raises(ValueError, match=r"text 1 has 82 tokens with start and end, the context is 77; 'apple apple .* lost"):
        tokenize(["short", long])


def test_other_tokenizers():
    import open_clip

    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    assert torch.equal(tokenize("red bus", 9, tokenizer=tokenizer), tokenize("red bus", 9))
    with pytest.raises(ValueError, match="object does not say where a text begins and ends"):
        tokenize("red bus", 9, tokenizer=object())


def test_distillation_brings_the_student_to_the_teacher():
    teacher = tower().requires_grad_(False)
    student = student_of(teacher, context_length=24)
    assert not student.token_embedding.weight.requires_grad and student.ln_final.weight.requires_grad
    assert "positional_embedding" in dict(teacher.named_parameters())
    a, b = torch.randn(5, 8), torch.randn(5, 8)
    want = sum(1 - a[i] @ b[i] / (a[i].norm() * b[i].norm()) for i in range(5)) / 5
    close(distillation_loss(a, b), want)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=1e-3)
    text = words(*range(3, 13), width=12)
    losses = []
    for _ in range(30):
        loss = distillation_loss(student(text), teacher(text))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert student(words(24)).isfinite().all()
