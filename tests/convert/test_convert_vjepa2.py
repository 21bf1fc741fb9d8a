"""V-JEPA 2 encoders: both layouts, all wrappers, and a refusal wherever another function would result."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import vispe
from vispe.cli import main
from vispe.convert import recognise
from vispe.convert.guess import guess

SIZE = {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 4, "tubelet_size": 2, "img_size": 16, "num_frames": 8}
KWARGS = {**SIZE, "num_classes": 0, "fc_norm": False, "encoding_kwargs": {"preset": "vjepa2"}}


def official() -> dict[str, torch.Tensor]:
    """Random weights under the original's names."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"patch_embed.proj.weight": (32, 3, 2, 4, 4)}
    shapes |= {"patch_embed.proj.bias": (32,), "norm.weight": (32,), "norm.bias": (32,)}
    for i in range(2):
        for name, shape in (
            ("norm1.weight", (32,)), ("norm1.bias", (32,)), ("attn.qkv.weight", (96, 32)), ("attn.qkv.bias", (96,)),
            ("attn.proj.weight", (32, 32)), ("attn.proj.bias", (32,)), ("norm2.weight", (32,)), ("norm2.bias", (32,)),
            ("mlp.fc1.weight", (128, 32)), ("mlp.fc1.bias", (128,)), ("mlp.fc2.weight", (32, 128)), ("mlp.fc2.bias", (32,)),
        ):  # fmt: skip
            shapes[f"blocks.{i}.{name}"] = shape
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def transformers_names(state: dict[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    """The same weights as transformers' VJEPA2Model keeps them."""
    out = {}
    for key, tensor in state.items():
        key = key.replace("patch_embed.", "embeddings.patch_embeddings.").replace("blocks.", "layer.")
        key = "layernorm" + key.removeprefix("norm") if key.startswith("norm.") else key.replace("attn.", "attention.")
        if "qkv" in key:
            for side, part in zip(("query", "key", "value"), tensor.chunk(3)):
                out[f"{prefix}encoder.{key.replace('qkv', side)}"] = part.clone()
        else:
            out[f"{prefix}encoder.{key}"] = tensor
    return out


def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The released rotation of (B, H, N, 16), written anew: 4 channels an axis, cos and sin laid out (a, b, a, b)."""
    out = x.clone()
    rates = torch.tensor([1.0, 10000.0**-0.5])
    for axis in range(3):
        part = x[..., 4 * axis : 4 * axis + 4]
        angle = (places[:, axis, None] * rates).repeat(1, 2)
        swapped = torch.stack((-part[..., 1], part[..., 0], -part[..., 3], part[..., 2]), dim=-1)
        out[..., 4 * axis : 4 * axis + 4] = part * angle.cos() + swapped * angle.sin()
    return out


def oracle(state: dict[str, torch.Tensor], video: torch.Tensor) -> torch.Tensor:
    """The encoder's tokens, from its equations."""
    x = F.conv3d(video, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=(2, 4, 4))
    places = torch.cartesian_prod(*(torch.arange(float(n)) for n in x.shape[2:]))
    x = x.flatten(2).mT
    for i in range(2):
        p = {k.removeprefix(f"blocks.{i}."): v for k, v in state.items() if k.startswith(f"blocks.{i}.")}
        y = F.layer_norm(x, (32,), p["norm1.weight"], p["norm1.bias"], 1e-6)
        q, k, v = (F.linear(y, p["attn.qkv.weight"], p["attn.qkv.bias"]).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4))
        y = F.scaled_dot_product_attention(turned(q, places), turned(k, places), v).transpose(1, 2).flatten(2)
        x = x + F.linear(y, p["attn.proj.weight"], p["attn.proj.bias"])
        y = F.layer_norm(x, (32,), p["norm2.weight"], p["norm2.bias"], 1e-6)
        x = x + F.linear(F.gelu(F.linear(y, p["mlp.fc1.weight"], p["mlp.fc1.bias"])), p["mlp.fc2.weight"], p["mlp.fc2.bias"])
    return F.layer_norm(x, (32,), state["norm.weight"], state["norm.bias"], 1e-6)


LAYOUTS = {
    "bare": lambda state: state,
    "hub": lambda state: {
        "encoder": {k: torch.zeros_like(v) for k, v in state.items()}, "predictor": {"mask_tokens": torch.ones(1)},
        "target_encoder": {f"module.backbone.{k}": v for k, v in state.items()}, "epoch": 3,
    },
    "transformers": lambda state: {**transformers_names(state), "predictor.layernorm.weight": torch.ones(4)},
    "probe": lambda state: {**transformers_names(state, "vjepa2."), "pooler.x": torch.ones(1), "classifier.x": torch.ones(2)},
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("frames, height, width", [(8, 16, 16), (6, 12, 20)])
def test_layouts(layout, frames, height, width):
    state = official()
    model = timm.create_model("vid_s_rope3d", **KWARGS).eval()
    report = vispe.load(model, LAYOUTS[layout](state))
    assert report.source == "vjepa2" and report.complete
    assert len(report.dropped) == {"transformers": 1, "probe": 2}.get(layout, 0)
    video = torch.randn(2, 3, frames, height, width, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(video), oracle(state, video), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes, message", [
    ({"encoding_kwargs": {}}, "encoding='rope3d' with encoding_kwargs={'preset': 'vjepa2'}"),
    ({"encoding": "none", "encoding_kwargs": {}}, "pass source='vispe'"),
    ({"fc_norm": True}, "fc_norm=False"),
])  # fmt: skip
def test_another_function_is_refused(changes, message):
    model = timm.create_model("vid_s_rope3d", **{**KWARGS, **changes})
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        vispe.load(model, official())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_own_weights_come_back_when_named():
    model = timm.create_model("vid_s_rope3d", **{**KWARGS, "encoding_kwargs": {}})
    other = timm.create_model("vid_s_rope3d", **{**KWARGS, "encoding_kwargs": {}})
    assert vispe.load(other, model.state_dict(), source="vispe").complete


def test_first_version_with_its_table_is_another_layout():
    """V-JEPA (1) adds a table; its keys are else the same, and nothing may be dropped."""
    state = official() | {"pos_embed": torch.zeros(1, 64, 32)}
    assert recognise(state) == "plain"
    with pytest.raises(ValueError, match="pos_embed: the model has no learned table"):
        vispe.load(timm.create_model("vid_s_rope3d", **KWARGS), state)


def test_command_finds_the_model(tmp_path, capsys):
    wide = official()
    with pytest.raises(ValueError, match="32 channels are of none of the released"):
        guess(wide, "vjepa2")
    big = {"patch_embed.proj.weight": torch.zeros(1408, 3, 2, 16, 16), "blocks.39.norm1.weight": torch.zeros(1408),
           "blocks.0.mlp.fc1.weight": torch.zeros(6144, 1408)}  # fmt: skip
    name, kwargs = guess(big, "vjepa2")
    assert name == "vid_b_rope3d" and (kwargs["depth"], kwargs["num_heads"], int(kwargs["mlp_ratio"] * 1408)) == (40, 22, 6144)
    save_file(wide, tmp_path / "in.safetensors")
    given = str({**SIZE, "num_classes": 0, "fc_norm": False, "encoding_kwargs": {"preset": "vjepa2"}})
    given = given.replace("'", '"').replace("False", "false")
    out = tmp_path / "out.safetensors"
    files = [str(tmp_path / "in.safetensors"), str(out)]
    code = main(["convert", "auto", *files, "--model", "vid_s_rope3d", "--model-kwargs", given])
    assert code == 0 and out.is_file() and "vjepa2" in capsys.readouterr().out
