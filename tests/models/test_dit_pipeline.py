"""The sampling pipeline: schedulers of every kind, sizes, guidance, saving, and refusals that name what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
)
from torch import nn

from vispe.models.dit_pipeline import EncodedDiTPipeline
from vispe.models.dit_zoo import create_dit
from vispe.models.guidance import check_interval, guide
from vispe.positions import patch_grid

TINY = dict(hidden_size=32, depth=1, num_heads=2, num_classes=5, input_size=8, in_channels=3)


def seed(n: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(n)


def pipeline(scheduler=None, vae=None, variant: str = "rope_axial", **options) -> EncodedDiTPipeline:
    torch.manual_seed(0)
    model = create_dit(f"dit_s_2_{variant}", **(TINY | options)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.08)
    made = EncodedDiTPipeline(model, scheduler or DDIMScheduler(), vae)
    made.set_progress_bar_config(disable=True)
    return made


def small_vae() -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4, norm_num_groups=4, layers_per_block=1,
    ).eval()  # fmt: skip


SCHEDULERS = {
    "ddpm": (lambda: DDPMScheduler(), "rope_axial", {}),
    "ddpm, learned variance": (lambda: DDPMScheduler(variance_type="learned_range"), "rope_axial", {}),
    "ddim": (lambda: DDIMScheduler(), "rope_axial", {"learn_sigma": False}),
    "ddim, v": (lambda: DDIMScheduler(prediction_type="v_prediction"), "harope", {"prediction_type": "v_prediction"}),
    "dpm": (lambda: DPMSolverMultistepScheduler(), "sincos2d", {}),
    "flow": (lambda: FlowMatchEulerDiscreteScheduler(shift=3.0), "learned", {"prediction_type": "flow_prediction"}),
    "sit": (lambda: FlowMatchEulerDiscreteScheduler(), "sit", {}),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_three_steps_at_two_sizes(name):
    make, variant, options = SCHEDULERS[name]
    pipe = pipeline(make(), variant=variant, **options)
    for height, width in ((8, 8), (4, 16)):
        run = dict(height=height, width=width, num_inference_steps=3, guidance_scale=2.0, output_type="pt")
        images = pipe([1, 3], generator=seed(), **run).images
        assert images.shape == (2, 3, height, width) and images.isfinite().all() and images.min() >= 0 and images.max() <= 1
        assert torch.equal(images, pipe([1, 3], generator=seed(), **run).images)
        assert not torch.equal(images, pipe([1, 3], generator=seed(1), **run).images)


def test_sit_follows_its_own_ordinary_differential_equation():
    """Three Euler steps by hand in SiT's convention: t from 0 (noise) to 1 (data), x += dt · v."""
    pipe = pipeline(FlowMatchEulerDiscreteScheduler(), variant="sit")
    x = torch.randn(2, 3, 8, 8, generator=seed())
    found = pipe([1, 2], latents=x, num_inference_steps=3, output_type="latent").images
    sigmas = pipe.scheduler.sigmas
    with torch.no_grad():
        for now, then in zip(sigmas[:-1], sigmas[1:]):
            x = x + (now - then) * pipe.transformer(x, 1 - now, torch.tensor([1, 2]))
    torch.testing.assert_close(found, x, atol=1e-4, rtol=1e-4)


def test_guidance():
    pipe = pipeline()
    x = torch.randn(2, 3, 8, 8, generator=seed())
    run = dict(latents=x, num_inference_steps=3, output_type="latent")
    plain = pipe([1, 2], **run).images
    guided = pipe([1, 2], guidance_scale=4.0, **run).images
    assert (plain - guided).abs().max() > 1e-4
    never = pipe([1, 2], guidance_scale=4.0, guidance_interval=(0.99, 1.0), **run).images
    torch.testing.assert_close(never, plain)
    late = pipe([1, 2], guidance_scale=4.0, guidance_interval=(0.0, 0.5), **run).images
    assert (late - plain).abs().max() > 1e-5 and (late - guided).abs().max() > 1e-5
    first = pipe([1, 2], guidance_scale=4.0, guide_channels=1, **run).images
    assert (first - guided).abs().max() > 1e-5
    null = pipe([5, 5], guidance_scale=4.0, **run).images  # guided from the null class to the null class
    torch.testing.assert_close(null, pipe([5, 5], **run).images, atol=1e-4, rtol=1e-4)


def test_guide():
    cond, uncond = torch.randn(2, 2, 4, 3, 3).unbind(0)
    torch.testing.assert_close(guide(cond, uncond, 1.5), uncond + 1.5 * (cond - uncond))
    some = guide(cond, uncond, 1.5, channels=3)
    assert torch.equal(some[:, 3:], cond[:, 3:]) and torch.equal(some[:, :3], guide(cond, uncond, 1.5)[:, :3])
    with pytest.raises(ValueError, match="channels must lie in 1..4"):
        guide(cond, uncond, 1.5, channels=5)
    with pytest.raises(ValueError, match="0 <= low <= high <= 1"):
        check_interval((0.8, 0.2))


def test_positions_and_crops_go_to_the_model():
    pipe = pipeline(micro_conditioning=True)
    x = torch.randn(2, 3, 8, 8, generator=seed())
    run = dict(latents=x, num_inference_steps=2, output_type="latent", guidance_scale=2.0)
    plain = pipe([1, 2], **run).images
    torch.testing.assert_close(pipe([1, 2], positions=patch_grid(4, 4), **run).images, plain)
    far = patch_grid(8, 8).crop((4, 0), (4, 4)).take(torch.arange(16).expand(2, -1))
    far = type(far)(far.coords * 3)
    assert (pipe([1, 2], positions=far, **run).images - plain).abs().max() > 1e-6
    crop = torch.tensor([[0.2, 0.2, 0.5, 0.5]])
    assert (pipe([1, 2], crop=crop, **run).images - plain).abs().max() > 1e-6


def test_output_types_and_counts():
    pipe = pipeline()
    pictures = pipe(2, samples_per_class=3, num_inference_steps=2, generator=seed(), height=4, width=16).images
    assert len(pictures) == 3 and pictures[0].size == (16, 4)
    arrays = pipe(2, num_inference_steps=2, generator=seed(), output_type="np").images
    assert isinstance(arrays, np.ndarray) and arrays.shape == (1, 8, 8, 3)
    (latent,) = pipe(2, num_inference_steps=2, generator=[seed()], output_type="latent", return_dict=False)
    assert latent.shape == (1, 3, 8, 8)
    free = pipeline(num_classes=0)
    assert free(samples_per_class=2, num_inference_steps=2, output_type="pt").images.shape == (2, 3, 8, 8)


def test_with_an_autoencoder(tmp_path):
    pipe = pipeline(vae=small_vae(), in_channels=4)
    assert pipe.vae_factor == 2
    images = pipe(1, height=8, width=24, num_inference_steps=2, output_type="pt", generator=seed()).images
    assert images.shape == (1, 3, 8, 24)
    same = pipe(1, height=4, width=12, unit="latent", num_inference_steps=2, output_type="pt", generator=seed()).images
    assert torch.equal(images, same)
    pipe.save_pretrained(tmp_path)
    again = EncodedDiTPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    found = again(1, height=8, width=24, num_inference_steps=2, output_type="pt", generator=seed()).images
    torch.testing.assert_close(found, images, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="height=6 pixels is no multiple of 4 .a patch of 2 cells of 2 pixels.; take e.g. 4"):
        pipe(1, height=6)
    with pytest.raises(ValueError, match="the vae has 4 latent channels, the model takes 3"):
        pipeline(vae=small_vae())


def test_saved_without_an_autoencoder(tmp_path):
    pipe = pipeline(FlowMatchEulerDiscreteScheduler(shift=2.0), variant="sit")
    pipe.save_pretrained(tmp_path)
    again = EncodedDiTPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    run = dict(num_inference_steps=3, output_type="latent", guidance_scale=1.5)
    found, wanted = (p(1, generator=seed(), **run).images for p in (again, pipe))
    assert again.vae is None and again.scheduler.config.shift == 2.0
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_scheduler_of_another_prediction_is_refused():
    with pytest.raises(ValueError, match="the model predicts 'epsilon', DDIMScheduler is set to 'v_prediction'"):
        pipeline(DDIMScheduler(prediction_type="v_prediction"))
    with pytest.raises(ValueError, match="FlowMatchEulerDiscreteScheduler is set to 'flow_prediction'; create"):
        pipeline(FlowMatchEulerDiscreteScheduler())
    with pytest.raises(ValueError, match="predicts 'sit_velocity', DDPMScheduler is set to 'epsilon'; .* flow-matching"):
        pipeline(DDPMScheduler(), variant="sit")
    with pytest.raises(ValueError, match="the model gives no variance"):
        pipeline(DDPMScheduler(variance_type="learned_range"), learn_sigma=False)
    pipe = pipeline()
    pipe.scheduler = DDIMScheduler(prediction_type="sample")  # put in later
    with pytest.raises(ValueError, match="is set to 'sample'"):
        pipe(1)


def test_bad_calls():
    pipe = pipeline()
    with pytest.raises(ValueError, match="needs class_labels in 0..4"):
        pipe()
    with pytest.raises(ValueError, match="got 7..7"):
        pipe(7)
    with pytest.raises(ValueError, match="whole numbers"):
        pipe([1.5])
    with pytest.raises(ValueError, match="width=7 pixels is no multiple of 2"):
        pipe(1, width=7)
    with pytest.raises(ValueError, match="unit must be"):
        pipe(1, unit="cells")
    with pytest.raises(ValueError, match="output_type must be"):
        pipe(1, output_type="png")
    with pytest.raises(ValueError, match="0 <= low <= high <= 1"):
        pipe(1, guidance_interval=(0.5, 2.0))
    with pytest.raises(ValueError, match=r"latents must be \(1, 3\) x height x width"):
        pipe(1, latents=torch.zeros(1, 4, 8, 8))
    with pytest.raises(ValueError, match="4 channels are no picture"):
        pipeline(in_channels=4)(1, num_inference_steps=1)
    with pytest.raises(ValueError, match="needs a model with classes and a null class"):
        pipeline(null_class=False, class_dropout=0.0)(1, guidance_scale=2.0)
    with pytest.raises(ValueError, match="unconditional; leave class_labels out"):
        pipeline(num_classes=0)(1)
