"""The joint transformer: every encoding on image tokens only, both orders the same function, masks, saving, refusals."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from torch import nn

import vispe
from vispe.encodings import EncodingStack
from vispe.encodings.base import Encoding
from vispe.layers import attend
from vispe.models.dit_pipeline import EncodedDiTPipeline
from vispe.models.dit_zoo import COMPOSITIONS, VARIANTS, list_dits
from vispe.models.mmdit import EncodedMMDiT
from vispe.models.mmdit_parts import OnImage
from vispe.models.mmdit_pipeline import EncodedMMDiTPipeline
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
    with pytest.raises(ValueError, match=r"timesteps must be one number or \(2,\), one a sample; got \(3,\)"):
        model(x, torch.ones(3), text)
    with pytest.raises(ValueError, match=r"positions must hold 1 or 2 samples of 16 tokens \(a grid of 4x4 patches\)"):
        model(x, t, text, positions=patch_grid(3, 4))
    with pytest.raises(ValueError, match="order must be"):
        tiny(order="mixed")
    with pytest.raises(ValueError, match="depth=0"):
        tiny(depth=0)


# ---- classes as learned texts, names, and sampling --------------------------------------------------------------------------


def test_a_class_is_a_text_of_its_own():
    model = tiny(num_classes=5, class_tokens=3, pooled_dim=16)
    x, t, _ = batch()
    y = torch.tensor([1, 4])
    out = model(x, t, y=y)
    words = model.y_embedder.embedding_table.weight[y].view(2, 3, 16)
    given = tiny(pooled_dim=16)
    given.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("y_embedder")})
    torch.testing.assert_close(given(x, t, words, words.mean(1)), out)
    assert (model(x, t, y=y.flip(0)) - out).abs().max() > 1e-4
    null = model(x, t, y=torch.tensor([5, 5]))
    torch.testing.assert_close(model(x, t, y=y, drop_classes=torch.tensor([True, True])), null)
    torch.testing.assert_close(model(x, t, y=y, drop_classes=torch.tensor([True, False]))[1], out[1])
    with pytest.raises(ValueError, match=r"class ids must lie in 0..5 \(5 classes; 5 is the null class\), got 1..6"):
        model(x, t, y=torch.tensor([1, 6]))
    with pytest.raises(ValueError, match=r"needs class ids y \(2,\) int64, got None"):
        model(x, t)
    with pytest.raises(ValueError, match="got text, but the model has classes"):
        model(x, t, words, y=y)
    with pytest.raises(ValueError, match="got classes, but the model takes text"):
        given(x, t, words, words.mean(1), y=y)
    with pytest.raises(ValueError, match="pooled_dim 0 or text_dim=16"):
        tiny(num_classes=5, pooled_dim=8)


def test_names():
    model = vispe.create_model("mmdit_s_4_comrope", depth=1, input_size=(8, 16))
    assert isinstance(model, EncodedMMDiT) and model.train_grid == model.own_grid == (2, 4)
    assert (model.config.hidden_size, model.config.num_heads, model.encoding.first("comrope").num_heads) == (384, 6, 6)
    assert {f"mmdit_xl_2_{name}" for name in NAMES} <= set(list_dits())
    with pytest.raises(ValueError, match="did you mean 'mmdit_b_2_rope_axial'"):
        vispe.create_model("mmdit_b_2_rope_axal")
    with pytest.raises(ValueError, match="unknown diffusion transformer 'mmdit_s_2_sit'"):
        vispe.create_model("mmdit_s_2_sit")  # compositions are those of class-conditional DiTs
    with pytest.raises(TypeError, match="unknown argument 'learn_sigma'"):
        vispe.create_model("mmdit_s_2_none", learn_sigma=False)


def test_other_sizes_and_frequencies():
    model = tiny("rope_axial", num_classes=5)
    (x, t, _), y = batch(16, 16), torch.tensor([0, 1])
    plain = model(x, t, y=y)
    model.set_coords("rescale")
    squeezed = model(x, t, y=y)
    model.set_coords(None)
    model.set_extrapolation("pi")  # linear interpolation of positions is the same as rescaled coordinates
    assert (squeezed - plain).abs().max() > 1e-4
    torch.testing.assert_close(model(x, t, y=y), squeezed, atol=1e-4, rtol=1e-4)
    model.set_extrapolation("lumina")  # depends on the noise level, which it has from t
    with pytest.raises(ValueError, match="EncodedMMDiT: extrapolation that depends on the time needs one time"):
        model(x, t, y=y)
    assert model(x, torch.tensor(500.0), y=y).isfinite().all()
    table = tiny("learned")
    assert table.set_input_size((16, 8)) and table.own_grid == (8, 4) and table.train_grid == (4, 4)


def test_sampling_by_class_is_sampling_by_its_text():
    model = tiny(num_classes=5, class_tokens=3)
    by_class = EncodedDiTPipeline(model, FlowMatchEulerDiscreteScheduler())
    given = tiny()
    given.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("y_embedder")})
    by_text = EncodedMMDiTPipeline(given, FlowMatchEulerDiscreteScheduler())
    for pipe in (by_class, by_text):
        pipe.set_progress_bar_config(disable=True)
    words = model.y_embedder.embedding_table.weight.detach().view(6, 3, 16)
    run = dict(num_inference_steps=3, guidance_scale=2.0, output_type="latent", latents=torch.randn(4, 4, 8, 12))
    found = by_class([1, 4], samples_per_class=2, **run).images
    assert found.isfinite().all()
    torch.testing.assert_close(by_text(words[[1, 4]], null_text=words[5:], samples_per_text=2, **run).images, found)
    padded = torch.cat((words, torch.ones(6, 2, 16)), dim=1)  # two tokens that a mask takes away again
    mask = torch.tensor([[True] * 3 + [False] * 2])
    masks = dict(text_mask=mask, null_text_mask=mask)
    longer = by_text(padded[[1, 4]], null_text=padded[5:], samples_per_text=2, **masks, **run).images
    torch.testing.assert_close(longer, found, atol=1e-4, rtol=1e-4)

    with pytest.raises(ValueError, match="guidance needs null_text"):
        by_text(words[[1, 4]], samples_per_text=2, **run)
    with pytest.raises(ValueError, match=r"text is \(4, 3, 16\) and null_text \(4, 5, 16\); they must be alike"):
        by_text(words[[1, 4]], null_text=padded[5:], samples_per_text=2, **run)
    with pytest.raises(ValueError, match="null_text is for 3 texts|text is for 3 texts, there are 2"):
        by_text(words[[1, 4]], null_text=words[:3], samples_per_text=2, **run)
    with pytest.raises(ValueError, match="the model takes texts; use EncodedMMDiTPipeline"):
        EncodedDiTPipeline(given, FlowMatchEulerDiscreteScheduler())(None)
    with pytest.raises(ValueError, match="the model has classes and takes no text"):
        EncodedMMDiTPipeline(model, FlowMatchEulerDiscreteScheduler())(words)
    with pytest.raises(ValueError, match="the model takes no crop"):
        by_class([1, 4], samples_per_class=2, crop=torch.tensor([[0.0, 0.0, 1.0, 1.0]]), **run)
    with pytest.raises(ValueError, match="the model predicts 'flow_prediction', DDIMScheduler is set to 'epsilon'"):
        EncodedMMDiTPipeline(given, DDIMScheduler())


def test_a_pipeline_is_one_folder(tmp_path):
    pipe = EncodedMMDiTPipeline(tiny("comrope"), FlowMatchEulerDiscreteScheduler(shift=2.0))
    pipe.save_pretrained(tmp_path)
    again = EncodedMMDiTPipeline.from_pretrained(tmp_path)
    assert again.scheduler.config.shift == 2.0
    text = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    run = dict(num_inference_steps=2, output_type="pt", latents=torch.ones(2, 4, 8, 8))
    torch.testing.assert_close(again(text, **run).images, pipe(text, **run).images)
