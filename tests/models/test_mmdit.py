"""The joint transformer: every encoding on image tokens only, both orders the same function, masks, saving, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vispe.encodings import EncodingStack
from vispe.encodings.base import Encoding
from vispe.layers import attend
from vispe.models.dit_zoo import COMPOSITIONS, VARIANTS
from vispe.models.mmdit import EncodedMMDiT
from vispe.models.mmdit_parts import OnImage
from vispe.positions import patch_grid

TINY = dict(hidden_size=64, depth=2, num_heads=2, input_size=8, text_dim=16)
NAMES = [name for name in VARIANTS if name not in COMPOSITIONS]


def tiny(encoding: str = "rope_axial", *, live: bool = True, **options) -> EncodedMMDiT:
    torch.manual_seed(0)
    model = EncodedMMDiT(encoding=encoding, **(TINY | options))
    if live:
        for name, p in model.named_parameters():
            if not name.startswith("encoding."):
                nn.init.normal_(p, std=0.08)
    return model.eval()


def batch(height: int = 8, width: int = 8, words: int = 5):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, height, width, generator=generator)
    return x, torch.tensor([10.0, 700.0]), torch.randn(2, words, 16, generator=generator)


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding(name):
    model = tiny(name, single_depth=1).train()
    for size in ((8, 8), (4, 12)):
        x, t, text = batch(*size)
        out = model(x, t, text)
        assert out.shape == x.shape and out.isfinite().all()
    out.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["rope_mixed", "irpe", "swin_bias", "gta2d", "comrope", "urpe", "lepe", "mix_ffn", "cpe"])
def test_the_order_changes_nothing(name):
    a, b = (tiny(name, order=order, single_depth=1) for order in ("text_image", "image_text"))
    b.load_state_dict(a.state_dict())
    torch.testing.assert_close(a(*batch(4, 12)), b(*batch(4, 12)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("order", ["text_image", "image_text"])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("none", "learned", "sincos2d", "sincos3d")])
def test_text_sees_no_positions(name, order):
    """Logits, values and results of text tokens alone are those without an encoding; of image tokens alone, those with it."""
    torch.manual_seed(0)
    stack = EncodingStack(
        name, dim=64, num_heads=2, depth=1, facts={"grid": (3, 4), "train_grid": (3, 4), "prefix": 0, "patch_size": (2, 2)}
        | {"mlp_dim": 256},
    )  # fmt: skip
    for p in stack.parameters():
        p.data += 0.2 * torch.randn_like(p)
    encoding, ctx = stack.layer(stack.prepare(patch_grid(3, 4)), 0)
    q, k, v = torch.randn(3, 2, 2, 12 + 5, 32).unbind(0)
    on_image, ahead = OnImage(encoding, 5, order), order == "text_image"
    image, words = (slice(5, None), slice(0, 5)) if ahead else (slice(0, 12), slice(12, None))

    def only(keep: slice) -> torch.Tensor:
        mask = torch.zeros(17, dtype=torch.bool)
        mask[keep] = True
        return attend(q, k, v, on_image, ctx, ctx, scale=0.2, mask=mask[None, None, None])[:, :, keep]

    none = Encoding.__new__(Encoding)
    nn.Module.__init__(none)
    wanted = attend(*(x[:, :, words] for x in (q, k, v)), none, None, None, scale=0.2)
    torch.testing.assert_close(only(words), wanted, atol=1e-5, rtol=1e-5)
    wanted = attend(*(x[:, :, image] for x in (q, k, v)), encoding, ctx, ctx, scale=0.2)
    torch.testing.assert_close(only(image), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", ["text_image", "image_text"])
def test_masked_text_is_as_if_absent(order):
    model = tiny("rope_axial", order=order, single_depth=1)
    x, t, text = batch()
    mask = torch.tensor([[True, True, True, False, False]]).expand(2, -1)
    torch.testing.assert_close(model(x, t, text, text_mask=mask), model(x, t, text[:, :3]), atol=1e-5, rtol=1e-4)
    assert (model(x, t, text) - model(x, t, text[:, :3])).abs().max() > 1e-4


def test_pooled_text_checkpointing_and_start():
    x, t, text = batch()
    assert not tiny(live=False)(x, t, text).any()
    grads = []
    for checkpointing in (False, True):
        model = tiny(pooled_dim=8, single_depth=1).train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        model(x, t, text, torch.ones(2, 8)).square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-6)


def test_saved_and_reloaded(tmp_path):
    model = tiny("rope_mixed", order="image_text")
    model.save_pretrained(tmp_path)
    again = EncodedMMDiT.from_pretrained(tmp_path).eval()
    assert again.order == "image_text"
    torch.testing.assert_close(again(*batch(4, 16)), model(*batch(4, 16)), atol=1e-6, rtol=1e-6)
    assert model.no_weight_decay() == {f"encoding.{n}" for n in model.encoding.no_weight_decay()}


def test_bad_input():
    model, (x, t, text) = tiny(), batch()
    with pytest.raises(ValueError, match="5x8 cells is no multiple of the patch"):
        model(x[..., :5, :], t, text)
    with pytest.raises(ValueError, match=r"text must be \(2, tokens, 16\), got \(2, 5, 15\)"):
        model(x, t, text[..., :15])
    with pytest.raises(ValueError, match=r"text_mask must be \(2, 5\)"):
        model(x, t, text, text_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match="pooled_dim > 0"):
        model(x, t, text, torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"timesteps must be one number or \(2,\), got \(3,\)"):
        model(x, torch.ones(3), text)
    with pytest.raises(ValueError, match="positions must hold 16 tokens"):
        model(x, t, text, positions=patch_grid(3, 4))
    with pytest.raises(ValueError, match="order must be"):
        tiny(order="mixed")
    with pytest.raises(ValueError, match="depth=0"):
        tiny(depth=0)
