"""Image weights in video transformers: still videos are seen as their image, and every key is accounted for."""

import pytest
import timm
import torch

import vispe  # noqa: F401  registers the names
from vispe.convert.inflate import inflate, inflate_kernel

IMAGE = dict(embed_dim=48, depth=2, num_heads=2, patch_size=8, img_size=(16, 24), num_classes=3)
POOLED = dict(class_token=False, global_pool="avg")


def image(variant, **options):
    torch.manual_seed(0)
    model = timm.create_model(f"vit_ti_{variant}", **{**IMAGE, **POOLED, **options})
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return model.eval()


def video(variant, **options):
    torch.manual_seed(1)
    return timm.create_model(f"vid_s_{variant}", **{**IMAGE, "num_frames": 6, **options}).eval()


def still(frames):
    x = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(2))
    return x, x[:, :, None].expand(-1, -1, frames, -1, -1)


@pytest.mark.parametrize("kind", ["joint", "factorised"])
@pytest.mark.parametrize("variant", ["rope_mixed", "comrope", "cpe", "learned_spacetime", "none"])
def test_still_videos_are_seen_as_their_image(variant, kind):
    """Of one tubelet in joint attention; of any number by turns, where time has no say yet."""
    source = image(variant)
    model = video(variant, attention=kind)
    state, report = inflate(source.state_dict(), model, kernel="mean", source_grid=(2, 3))
    assert not report.unexpected and not report.dropped, report.full()
    assert all(".time." in key for key in report.missing), report.missing
    model.load_state_dict(state, strict=False)
    x, clip = still(2 if kind == "joint" else 6)
    torch.testing.assert_close(model(clip), source(x), rtol=1e-4, atol=1e-4)


def test_kernels():
    weight = torch.randn(4, 3, 2, 2)
    centre, mean = inflate_kernel(weight, 3, "centre"), inflate_kernel(weight, 3, "mean")
    assert torch.equal(centre[:, :, 1], weight) and not centre[:, :, [0, 2]].any()
    for grown in (centre, mean):
        torch.testing.assert_close(grown.sum(2), weight)
    torch.testing.assert_close(mean[:, :, 0], weight / 3)


def test_centre_sees_the_middle_frame_alone():
    source, model = image("none"), video("none", num_frames=2)
    model.load_state_dict(inflate(source.state_dict(), model)[0])
    x, clip = still(2)
    clip = clip.clone()
    clip[:, :, 0] = 7.0
    torch.testing.assert_close(model(clip), source(x), rtol=1e-4, atol=1e-4)


def test_a_plain_vit_with_a_class_token():
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", **{**IMAGE, "img_size": 24})
    kept = video("learned_spacetime", class_token=True, global_pool="token")
    state, report = inflate(plain.state_dict(), kept)
    assert report.complete, report.full()
    assert report.resampled == {"encoding.learned_spacetime.space": "3x3 to 2x3"}
    torch.testing.assert_close(state["cls_token"], plain.cls_token + plain.pos_embed[:, :1])
    pooled = video("learned_spacetime", attention="factorised", num_classes=7)
    state, report = inflate(plain.state_dict(), pooled)
    assert set(report.dropped) == {"cls_token", "head.weight", "head.bias"} and not report.unexpected
    assert set(report.used["fc_norm.weight"]) == {"norm.weight"}
    accounted = {name for origin in report.used.values() for name in origin} | set(report.dropped)
    assert accounted == set(plain.state_dict())
    assert set(report.missing) == {"head.weight", "head.bias"}
    assert not state["blocks.0.attn_time.proj.weight"].any()
    assert torch.equal(state["blocks.0.attn_time.qkv.weight"], plain.state_dict()["blocks.0.attn.qkv.weight"])
    pooled.load_state_dict(state, strict=False)
    assert pooled(still(6)[1]).isfinite().all()


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="kernel must be 'centre' or 'mean'"):
        inflate(image("none").state_dict(), video("none"), kernel="center")
    with pytest.raises(ValueError, match=r"needs an image model's patch_embed.proj.weight .* got \(48, 3, 2, 8, 8\)"):
        inflate(video("none").state_dict(), video("none"))
    report = inflate(image("learned").state_dict(), video("rope_mixed"))[1]
    assert "no table of space" in report.unexpected["encoding.learned.pos_embed"]
    with pytest.raises(ValueError, match="are no grid"):
        inflate(image("learned", img_size=(32, 96)).state_dict(), video("learned_spacetime"), source_grid=(3, 4))
    assert inflate(image("none", patch_size=4).state_dict(), video("none"))[1].resampled
