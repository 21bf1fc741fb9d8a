"""`Encoding.set_identity`: a model with the encoding computes what it does without, and can learn away from there."""

import pytest
import timm
import torch

from vispe.encodings import ENCODINGS
from vispe.models.vit_zoo import VARIANTS
from vispe.positions import full_grid, with_keypoints

SMALL = dict(embed_dim=32, depth=2, num_heads=2, mlp_ratio=2.0, patch_size=8, img_size=(24, 32), num_classes=5)
HOSTED = [name for name, cls in ENCODINGS.items() if name in VARIANTS]

# What has no such setting, and why. A new encoding is either listed here or has to pass.
WITHOUT = {
    "sincos2d": "fixed", "sincos3d": "fixed", "loope": "fixed", "rope_axial": "fixed", "rope_dinov3": "fixed",
    "rope_eva02": "fixed", "rope3d": "fixed", "eva02_at": "fixed", "gta2d": "fixed", "alibi2d": "fixed", "lookhere": "fixed",
    "rope_timm": "fixed, unless kind='mixed'", "ms_grape": "frequencies are exponentials, never 0",
    "grape_multimodal": "planes and mixing weights are normalised, never 0",
    "harope": "its rotation is fixed", "rope_points": "fixed", "rope_diffusers": "fixed",
    "swinv2_cpb": "16 times a sigmoid, never 0", "md_lrpe": "cosines are flat at 0, unless form='rotate'",
}  # fmt: skip

OPTIONS = [
    ("rope_timm", {"preset": "naver_mixed"}),
    ("md_lrpe", {"form": "rotate"}),
    ("irpe", {"on": "qkv"}),
    ("irpe", {"on": "qk", "method": "cross", "mode": "bias"}),
    ("seqpe", {"method": "attn_add"}),
    ("seqpe", {"method": "attn_scalar"}),
    ("seqpe", {"method": "input_add"}),
    ("comrope", {"block_size": 4, "jitter": 1.0}),
    ("liere", {"layers": "per_layer"}),
    ("cpe", {"after": [-1, 1]}),
]


def build(name, options=None):
    torch.manual_seed(0)
    model = timm.create_model(f"vit_ti_{name}", **SMALL, encoding=name, encoding_kwargs=options or {}).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def layers(model):
    return [encoding for _, encoding in model.encoding.encodings()]


def check(name, options=None):
    model = build(name, options)
    plain = build("none")
    missing, extra = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and all(key.startswith("encoding.") for key in extra)
    x = torch.randn(2, 3, 24, 40, generator=torch.Generator().manual_seed(1))
    assert all([encoding.set_identity() for encoding in layers(model)])
    out = model(x)
    torch.testing.assert_close(out, plain(x), rtol=0, atol=1e-6)
    parameters = [p for p in model.encoding.parameters() if p.requires_grad]
    if parameters:
        out.square().sum().backward()
        largest = max(float(p.grad.abs().max()) for p in parameters if p.grad is not None)
        assert largest > 1e-7, f"{name} cannot leave its identity: gradients up to {largest}"


@pytest.mark.parametrize("name", [name for name in HOSTED if name not in WITHOUT])
def test_identity_is_the_model_without_it(name):
    check(name)


@pytest.mark.parametrize("name,options", OPTIONS)
def test_identity_with_other_options(name, options):
    check(name, options)


@pytest.mark.parametrize("name", [name for name in HOSTED if name in WITHOUT])
def test_what_has_no_identity_says_so_and_stays(name):
    model = build(name)
    before = {key: value.clone() for key, value in model.encoding.state_dict().items()}
    assert not any(encoding.set_identity() for encoding in layers(model))
    for key, value in model.encoding.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def test_key_points():
    pos = with_keypoints(full_grid((3, 4)), torch.rand(2, 5, 2))
    encoding = ENCODINGS["kprpe"](dim=32, num_heads=2)
    with torch.no_grad():
        encoding.fc.weight.normal_()
    assert encoding.set_identity()
    ctx, q, k = encoding.prepare(pos), *torch.randn(2, 2, 2, 12, 16)
    bias = encoding.bias(q, k, ctx, ctx)
    assert float(bias.detach().abs().max()) == 0
    (bias * torch.randn_like(bias)).sum().backward()
    assert float(encoding.fc.weight.grad.abs().max()) > 0


def test_learned_tables_of_space_and_time():
    encoding = ENCODINGS["learned_spacetime"](dim=32, num_heads=2, axes=3, grid=(2, 3, 4))
    assert encoding.set_identity()
    x = torch.randn(2, 24, 32)
    torch.testing.assert_close(encoding.tokens(x, encoding.prepare(full_grid((2, 3, 4)))), x, rtol=0, atol=0)
