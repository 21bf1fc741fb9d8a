"""FiT and FiTv2 onto ours, against the forward pass written out from the formulas with official names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vispe.convert import load, recognise
from vispe.models.dit_parts import sinusoid
from vispe.models.dit_zoo import create_dit

DIM, HEADS, DEPTH, PATCH, CLASSES = 32, 2, 2, 2, 5


def official(version: int) -> dict[str, Tensor]:
    """A random state dict with the names and shapes of whlzy/FiT."""
    generator = torch.Generator().manual_seed(version)
    hidden = 4 * DIM if version == 1 else 4 * DIM * 2 // 3
    out = (8 if version == 1 else 4) * PATCH**2
    shapes = {
        "x_embedder.proj": (DIM, 4 * PATCH**2), "t_embedder.mlp.0": (DIM, 256), "t_embedder.mlp.2": (DIM, DIM),
        "final_layer.linear": (out, DIM), "final_layer.adaLN_modulation.1": (2 * DIM, DIM),
    }  # fmt: skip
    for i in range(DEPTH):
        b = f"blocks.{i}."
        shapes |= {b + "attn.qkv": (3 * DIM, DIM), b + "attn.proj": (DIM, DIM), b + "mlp.fc2": (DIM, hidden)}
        shapes |= {b + "mlp.fc1_g": (hidden, DIM), b + "mlp.fc1_x": (hidden, DIM)}
        lora = {b + "adaLN_modulation.1": (6, DIM), b + "adaLN_modulation.2": (6 * DIM, 6)}
        shapes |= lora if version == 2 else {b + "adaLN_modulation.1": (6 * DIM, DIM)}
    if version == 2:
        shapes["global_adaLN_modulation.1"] = (6 * DIM, DIM)
    state = {}
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * 0.2
        state[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.2
    return state | {"y_embedder.embedding_table.weight": torch.randn(CLASSES + 1, DIM, generator=generator) * 0.2}


def oracle(state: dict[str, Tensor], version: int, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Channels-first patches, rows turn the first half of a head's channels, columns the second."""

    def linear(name: str, h: Tensor) -> Tensor:
        return F.linear(h, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(h: Tensor) -> Tensor:
        return F.layer_norm(h, h.shape[-1:], eps=1e-6)

    rows, cols, p = x.shape[2] // PATCH, x.shape[3] // PATCH, PATCH
    h = linear("x_embedder.proj", F.unfold(x, p, stride=p).mT)  # (c p1 p2) a patch
    c = linear("t_embedder.mlp.2", F.silu(linear("t_embedder.mlp.0", sinusoid(t))))
    c = F.silu(c + state["y_embedder.embedding_table.weight"][y])
    d = DIM // HEADS
    freqs = 10000.0 ** -(torch.arange(0, d // 2, 2) / (d // 2))
    place = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij"), -1).flatten(0, 1)
    angle = torch.cat((place[:, :1] * freqs, place[:, 1:] * freqs), dim=-1)  # (N, d / 2)
    turn = torch.polar(torch.ones_like(angle), angle)
    everywhere = linear("global_adaLN_modulation.1", c) if version == 2 else 0.0
    for i in range(DEPTH):
        b = f"blocks.{i}."
        m = linear(b + "adaLN_modulation.1", c)
        m = linear(b + "adaLN_modulation.2", m) + everywhere if version == 2 else m
        shift1, scale1, gate1, shift2, scale2, gate2 = m[:, None].chunk(6, dim=-1)
        qkv = linear(b + "attn.qkv", norm(h) * (1 + scale1) + shift1).unflatten(-1, (3, HEADS, d))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if version == 2:
            q, k = norm(q), norm(k)
        q, k = (torch.view_as_real(torch.view_as_complex(s.unflatten(-1, (-1, 2))) * turn).flatten(-2) for s in (q, k))
        p_ = (q @ k.mT / d**0.5).softmax(-1)
        h = h + gate1 * linear(b + "attn.proj", (p_ @ v).transpose(1, 2).flatten(2))
        z = norm(h) * (1 + scale2) + shift2
        h = h + gate2 * linear(b + "mlp.fc2", F.silu(linear(b + "mlp.fc1_g", z)) * linear(b + "mlp.fc1_x", z))
    shift, scale = linear("final_layer.adaLN_modulation.1", c)[:, None].chunk(2, dim=-1)
    out = linear("final_layer.linear", norm(h) * (1 + scale) + shift)
    return F.fold(out.mT, (x.shape[2], x.shape[3]), p, stride=p)


def ours(version: int, **options):
    sizes = dict(hidden_size=DIM, num_heads=HEADS, depth=DEPTH, num_classes=CLASSES, input_size=8)
    return create_dit(f"dit_xl_2_fit{'v2' if version == 2 else ''}", **(sizes | options)).eval()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (4, 12)])
def test_the_same_function(version, size):
    state, model = official(version), ours(version)
    assert recognise(state) == "fit"
    report = load(model, state)
    assert report.complete and {k for keys in report.used.values() for k in keys} == set(state)
    x, y = torch.randn(2, 4, *size), torch.tensor([1, 5])
    t = torch.tensor([3.0, 800.0]) if version == 1 else torch.tensor([0.1, 0.9])
    wanted = oracle(state, version, x, t, y)
    with torch.no_grad():
        torch.testing.assert_close(model(x, t, y), wanted, atol=1e-4, rtol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"FiT embeds patches by a matrix \(C, 4 · 4 · 4\), got \(32, 16\)"):
        load(ours(1, patch_size=4), official(1))
    with pytest.raises(ValueError, match="rubbish: the model has no place"):
        load(ours(2), official(2) | {"rubbish": torch.ones(1)})


def test_the_command_finds_the_model(tmp_path):
    """Width, depth, patch, classes and the rest are in the weights; DiT and SiT cannot be told apart, and that is said."""
    from safetensors.torch import load_file, save_file

    from vispe.cli import main
    from vispe.convert.guess_dit import guess_dit

    made = create_dit("dit_s_2_fitv2", depth=1, num_classes=3, input_size=8)
    state = made.state_dict()
    root = "blocks.0.mlp."
    for kind in ("weight", "bias"):
        state[f"{root}fc1_g.{kind}"], state[f"{root}fc1_x.{kind}"] = state.pop(f"{root}fc1.{kind}").chunk(2)
    state["global_adaLN_modulation.1.weight"] = state["blocks.0.adaLN_modulation.1.weight"].clone()
    state["blocks.0.adaLN_modulation.2.weight"] = torch.randn(6 * 384, 5)
    state["blocks.0.adaLN_modulation.1.weight"] = torch.randn(5, 384)
    state["blocks.0.adaLN_modulation.2.bias"] = state["blocks.0.adaLN_modulation.1.bias"]
    state["blocks.0.adaLN_modulation.1.bias"] = torch.randn(5)
    state["x_embedder.proj.weight"] = state["x_embedder.proj.weight"].flatten(1)
    assert guess_dit(state, "fit") == ("dit_s_2_fitv2", {"depth": 1, "in_channels": 4, "num_classes": 3})
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "fit.safetensors")
    out = tmp_path / "ours.safetensors"
    assert main(["convert", "auto", str(tmp_path / "fit.safetensors"), str(out)]) == 0
    assert load(made, load_file(out), "vispe").complete
    with pytest.raises(ValueError, match="DiT .dit_s_2_sincos2d. and SiT .dit_s_2_sit. have the same keys"):
        guess_dit(made.state_dict(), "dit")
