"""Vision towers in open_clip: names, image sizes (public report open_clip#783), weight decay, locking."""

import builtins
import json
import tomllib
from pathlib import Path

import open_clip
import pytest
import timm
import torch

import vispe
from vispe.adapters.open_clip import CONFIGS

TEXT = dict(context_length=8, vocab_size=64, width=32, heads=2, layers=1)


def images(size=48):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def add(folder, name, tower="vit_ti_learned", image_size=48, **vision):
    """A small configuration, added to open_clip after ours."""
    vispe.open_clip.register()
    vision = dict(timm_model_name=tower, timm_model_pretrained=False, timm_proj="linear") | {"timm_pool": "token", **vision}
    config = dict(embed_dim=16, vision_cfg=dict(vision, image_size=image_size), text_cfg=TEXT)
    (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / f"{name}.json")
    return open_clip.create_model(name).eval()


def test_the_shipped_names():
    names = vispe.open_clip.register()
    assert names == vispe.open_clip.register() == sorted(path.stem for path in CONFIGS.glob("*.json"))
    assert set(names) <= set(open_clip.list_models())
    assert {"ViT-B-16-comrope", "ViT-B-16-rope_mixed", "ViT-B-16-irpe_k", "ViT-Ti-16-comrope"} <= set(names)
    for name in names:
        vision = open_clip.get_model_config(name)["vision_cfg"]
        size, encoding = name.split("-")[1].lower(), name.split("-")[-1]
        assert vision["timm_model_name"] == f"vit_{size}_{encoding}" and timm.is_model(vision["timm_model_name"])


def test_a_shipped_model_runs():
    vispe.open_clip.register()
    model, _, preprocess = open_clip.create_model_and_transforms("ViT-Ti-16-comrope")
    assert model.visual.trunk.encoding.spec == "comrope" and model.visual.trunk.patch_embed.img_size == (64, 64)
    assert preprocess.transforms[0].size == 64 or tuple(preprocess.transforms[0].size) == (64, 64)
    image, text, _ = model(images(64), open_clip.get_tokenizer("ViT-Ti-16-comrope")(["a cat", "two dogs"]))
    assert image.shape == text.shape == (2, 192)
    (image * text).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.visual.trunk.encoding.parameters())


@pytest.mark.parametrize("tower", ["vit_ti_learned", "vit_ti_liere", "vit_ti_swin_bias"])
def test_image_size_is_that_of_the_configuration(tower, tmp_path):
    trunk = add(tmp_path, f"sized-{tower}", tower).visual.trunk
    alone = timm.create_model(tower, img_size=48, num_classes=0).eval()
    assert trunk.patch_embed.img_size == (48, 48) and trunk.train_grid == alone.train_grid == (3, 3)
    alone.load_state_dict(trunk.state_dict(), strict=True)
    torch.testing.assert_close(trunk(images()), alone(images()), rtol=0, atol=0)
    other = timm.create_model(tower, num_classes=0).eval()  # at 224, what open_clip would have built
    assert other.train_grid == (14, 14)


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_pooling_is_that_of_the_configuration(pool, tmp_path):
    tower = add(tmp_path, f"pool-{pool}", "vit_ti_comrope", timm_pool=pool).visual
    wide = add(tmp_path, f"wide-{pool}", "vit_ti_comrope", image_size=224, timm_pool=pool).visual
    wide.load_state_dict(tower.state_dict(), strict=True)
    assert wide.trunk.patch_embed.img_size == (48, 48)  # the size of the weights
    torch.testing.assert_close(wide(images()), tower(images()), rtol=0, atol=0)
    tokens = tower.trunk.forward_features(images())
    pooled = tokens[:, 1:].mean(1) if pool == "avg" else tokens[:, 0]
    torch.testing.assert_close(tower(images()), tower.head(pooled))


def test_weights_keep_their_size_and_can_be_forced_to_another(tmp_path):
    model = add(tmp_path, "forced", "vit_ti_learned")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    same = open_clip.create_model("forced", pretrained=str(tmp_path / "weights.pt")).eval()
    torch.testing.assert_close(same.encode_image(images()), model.encode_image(images()), rtol=0, atol=0)
    larger = open_clip.create_model("forced", pretrained=str(tmp_path / "weights.pt"), force_image_size=64).eval()
    trunk = larger.visual.trunk
    assert trunk.patch_embed.img_size == (64, 64) and trunk.train_grid == (3, 3)
    assert larger.visual.sizes.tolist() == [[64, 64], [48, 48]]
    model.visual.set_input_size(64)
    torch.testing.assert_close(larger.encode_image(images(64)), model.encode_image(images(64)), rtol=0, atol=0)
    torch.save(larger.state_dict(), tmp_path / "larger.pt")  # and back into the configuration's 48
    again = open_clip.create_model("forced", pretrained=str(tmp_path / "larger.pt")).eval()
    torch.testing.assert_close(again.encode_image(images(64)), larger.encode_image(images(64)), rtol=0, atol=0)


def test_other_towers_are_as_before(tmp_path):
    model = add(tmp_path, "plain", "vit_tiny_patch16_224", image_size=224)
    assert model.visual.sizes is None and not any("sizes" in key for key in model.state_dict())
    assert model.visual.trunk.patch_embed.img_size == (224, 224)


def test_weight_decay_groups(tmp_path):
    model = add(tmp_path, "decay", "vit_ti_comrope")
    decayed, others = vispe.open_clip.param_groups(model, weight_decay=0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    ids = {id(p) for p in decayed["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in ids}
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))
    assert not any("encoding" in name or "positional_embedding" in name or "norm" in name for name in names)
    assert "visual.trunk.blocks.0.attn.qkv.weight" in names and "visual.head.proj.weight" in names
    torch.optim.AdamW([decayed, others], lr=1e-3)
    model.visual.lock()
    assert sum(len(group["params"]) for group in vispe.open_clip.param_groups(model)) < len(names)
    with pytest.raises(ValueError, match="negative"):
        vispe.open_clip.param_groups(model, weight_decay=-1)


def test_lock_leaves_the_last_groups_open(tmp_path):
    model = add(tmp_path, "lock", "vit_ti_comrope")
    model.lock_image_tower(unlocked_groups=2)
    trunk = model.visual.trunk
    trained = {name for name, p in trunk.named_parameters() if p.requires_grad}
    assert {name.split(".")[1] for name in trained if name.startswith("blocks.")} == {"10", "11"}
    assert {name.split(".")[2] for name in trained if name.startswith("encoding.")} == {"10", "11"}  # with its block
    assert "norm.weight" in trained
    model.lock_image_tower()
    assert not any(p.requires_grad for p in trunk.parameters())


def test_without_open_clip_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "open_clip" and (len(args) < 4 or args[3] == 0):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"vispe\[clip\]"):
        vispe.open_clip.register()


def test_the_extra_is_declared():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(need.startswith("open_clip_torch") for need in project["optional-dependencies"]["clip"])


def test_a_tower_can_be_swapped(tmp_path):
    model = add(tmp_path, "swapped", "vit_tiny_patch16_224", image_size=224)
    before = model.encode_image(images(224))
    model.visual.trunk = vispe.swap(model.visual.trunk, "comrope")
    torch.testing.assert_close(model.encode_image(images(224)), before, rtol=0, atol=1e-6)
    assert model.encode_image(images(96)).shape == (2, 16)  # and any other size
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, _ = vispe.open_clip.param_groups(model)
    assert not any("encoding" in names[id(p)] for p in decayed["params"])
