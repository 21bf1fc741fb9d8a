"""The names in timm's registry."""

import pickle
import subprocess
import sys

import pytest
import timm
import torch
from model_helpers import TINY, ZOO, images, vit
from timm.models import get_pretrained_cfg, is_model

import vispe
from vispe.encodings import ENCODINGS
from vispe.models import vit_zoo
from vispe.models.vit_zoo import COMPOSITIONS, SIZES, VARIANTS

NAMES = [f"vit_{size}_{variant}" for size in SIZES for variant in VARIANTS]


def test_every_name_is_listed():
    assert sorted(timm.list_models("vit_*", module="vit_zoo")) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES) == len(SIZES) * len(VARIANTS)
    assert all(is_model(name) for name in NAMES)
    assert set(vit_zoo.__all__) == set(NAMES)
    assert set(COMPOSITIONS) == {"rope_axial_ape", "rope_mixed_ape", "irpe_k", "irpe_qk", "irpe_qkv", "cpe_gap"}
    grids = {n for n, c in ENCODINGS.items() if 2 in c.card.axes and set(c.card.needs) <= {"coords", "grid"}}
    assert grids == set(VARIANTS) - set(COMPOSITIONS)


def test_names_are_registered_once():
    """timm warns when a name is overwritten, by a second registration of ours or of its own names by ours."""
    code = "import timm; before = set(timm.list_models()); import vispe; assert not before & set(vispe.models.vit_zoo.__all__)"
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_modules_do_not_collide_with_those_of_timm():
    """timm files a name under the last component of its module."""
    own = {name.split(".")[-1] for name in sys.modules if name.startswith("vispe.models.")}
    theirs = {n.split(".")[-1] for n in sys.modules if n.startswith("timm.models.")} | set(timm.list_modules())
    theirs -= {"vit_zoo", "video_zoo", "glyph_zoo"}
    assert "vit_zoo" in own and not own & theirs


def test_untrained_names_are_not_offered_as_pretrained():
    assert not [n for n in timm.list_models(pretrained=True) if n.split(".")[0] in NAMES]
    for name in ("vit_s_comrope", "vit_s_comrope.untrained"):
        with pytest.raises(RuntimeError, match="No pretrained weights"):
            timm.create_model(name, pretrained=True)


def test_wrong_names_and_arguments():
    with pytest.raises(RuntimeError, match="Invalid pretrained tag"):
        timm.create_model("vit_s_comrope.in1k")
    with pytest.raises(RuntimeError, match="Unknown model"):
        timm.create_model("vit_s_comropes")
    with pytest.raises(TypeError, match="rope_thetta"):
        timm.create_model("vit_s_rope_axial", rope_thetta=1.0, depth=1)
    with pytest.raises(ValueError, match="rope_axial: unknown option 'thetta'; did you mean 'theta'"):
        timm.create_model("vit_s_rope_axial", encoding_kwargs={"thetta": 1.0}, depth=1)
    with pytest.raises(ValueError, match="unknown encoding 'rope_axal': did you mean 'rope_axial'"):
        timm.create_model("vit_s_none", encoding="rope_axal", depth=1)
    for argument in ({"pos_embed": "learn"}, {"dynamic_img_size": False}, {"no_embed_class": True}):
        with pytest.raises(TypeError, match="is not an argument here"):
            timm.create_model("vit_s_learned", depth=1, **argument)
    with pytest.raises(ValueError, match=r"image size \(30, 48\) is no multiple of the patch size"):
        vit("none", img_size=(30, 48))
    with pytest.raises(ValueError, match=r"multiples of the patch size \(8, 8\), got \(36, 48\)"):
        vit("none")(images(36, 48))
    with pytest.raises(ValueError, match="patch_drop_rate"):
        vit("none", patch_drop_rate=1.0)


@pytest.mark.parametrize("name", NAMES)
def test_default_cfg_and_entry(name):
    cfg = get_pretrained_cfg(name)
    assert (cfg.first_conv, cfg.classifier, cfg.input_size, cfg.tag) == ("patch_embed.proj", "head", (3, 224, 224), "untrained")
    assert not cfg.has_weights and not cfg.fixed_input_size
    entry = getattr(vit_zoo, name)
    assert entry.__name__ == entry.__qualname__ == name and name.split("_", 2)[2] in entry.__doc__
    assert pickle.loads(pickle.dumps(entry)) is entry
    assert timm.models.model_entrypoint(name) is entry


@pytest.mark.parametrize("size, millions", [("ti", 5.5), ("s", 21.7), ("b", 85.6), ("l", 303.1)])
def test_sizes(size, millions):
    """Without a position table these are timm's ViT-Ti/S/B/L at patch 16."""
    words = {"ti": "tiny", "s": "small", "b": "base", "l": "large"}
    with torch.device("meta"):
        model = timm.create_model(f"vit_{size}_none")
        plain = timm.create_model(f"vit_{words[size]}_patch16_224")
    count = sum(p.numel() for p in model.parameters())
    assert count == sum(p.numel() for n, p in plain.named_parameters() if n != "pos_embed")
    assert count / 1e6 == pytest.approx(millions, abs=0.5 + model.head.weight.numel() / 1e6)


@pytest.mark.parametrize("variant", ZOO)
def test_papers_compositions(variant):
    model = vit(variant)
    parts = VARIANTS[variant]["encoding"].split("+")
    assert list(model.encoding) == parts
    if variant == "cpe_gap":
        assert model.num_prefix_tokens == 0 and model.global_pool == "avg"
    if variant.startswith("irpe_"):
        assert model.encoding.first("irpe").on == variant.removeprefix("irpe_")
        assert model.encoding.first("learned").prefix_rows == 1
    if variant.endswith("_ape"):
        assert model.encoding.first("learned").prefix_rows == 0 and not model.encoding.first("learned").antialias


def test_a_full_size_model_end_to_end():
    """The name, the classes and the non-square size of the documentation: forward, backward, export, compile."""
    torch.manual_seed(0)
    model = timm.create_model("vit_b_comrope", num_classes=10, img_size=(160, 224))
    x = torch.randn(1, 3, 160, 224)
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval().requires_grad_(False)
    want = model(x)
    assert want.shape == (1, 10)
    program = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(program(x), want, rtol=1e-4, atol=1e-4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


def test_any_option_is_reached_by_name():
    model = vit("rope_axial", encoding_kwargs={"theta": 50.0}, img_size=64, reg_tokens=2)
    assert model.encoding["rope_axial"].theta == 50.0 and model.num_prefix_tokens == 3
    composed = timm.create_model(
        "vit_ti_none", encoding="learned+cpe", encoding_kwargs={"cpe": {"after": (0, 1)}}, **{**TINY, "depth": 2}
    )
    assert list(composed.encoding) == ["learned", "cpe"] and composed(images()).shape == (2, 5)


@pytest.mark.parametrize("name, near", [("vit_b_comrop", "vit_b_comrope"), ("vit_s_rope_mixd", "vit_s_rope_mixed")])
def test_a_misspelt_model_names_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"unknown model '{name}'; did you mean .*'{near}'"):
        vispe.create_model(name)
