"""What swapped attention layers compute, against diffusers' own processors with HARoPE's formulas written out by hand."""

import pytest
import torch
import torch.nn.functional as F
from diffusers.models import attention_processor
from diffusers.models.transformers import transformer_flux, transformer_lumina2
from diffusers_helpers import run, shaken, tiny

import vispe


def skew(upper, d):
    a = torch.zeros(d, d, dtype=torch.float64)
    i = 0
    for row in range(d):
        for column in range(row + 1, d):
            a[row, column], a[column, row] = upper[i], -upper[i]
            i += 1
    return a


def matrices(layer, mode="conjugate"):
    """M of every head for queries and for keys, (2, H, d, d)."""
    d, out = layer.sigma.shape[1], []
    for h in range(layer.sigma.shape[0]):
        u, v = (torch.matrix_exp(skew(part[h].detach().double(), d)) for part in (layer.skew_u, layer.skew_v))
        s = F.softplus(layer.sigma[h].detach().double()) + 1e-6
        m = u @ torch.diag(s) @ v.T
        out.append(torch.stack((m, m if mode == "shared" else torch.linalg.inv(m).T)))
    return torch.stack(out, dim=1)


def harope_layers(model):
    return [p.encodings["harope"] for p in model.modules() if hasattr(p, "encodings") and hasattr(p, "number")]


class ByTurns:
    """Stands for apply_rotary_emb, which a processor calls for q and then for k in each layer: M first, then the rotary."""

    def __init__(self, layers, mode, rotary):
        self.maps = [m for layer in layers for m in matrices(layer, mode)]
        self.rotary, self.calls = rotary, 0

    def __call__(self, x, *args, **kwargs):  # x (B, N, H, d)
        m = self.maps[self.calls].to(x.dtype)
        self.calls += 1
        m = m[: x.shape[2]]  # keys of fewer heads
        return self.rotary(torch.einsum("hij,bnhj->bnhi", m, x), *args, **kwargs)


@pytest.mark.parametrize("mode", ["conjugate", "shared"])
def test_flux_is_its_own_attention_with_matrices_ahead_of_the_rotary(mode, monkeypatch):
    model = tiny("flux")
    swapped = shaken(vispe.swap(model, "harope", encoding_kwargs={"mode": mode}))
    spy = ByTurns(harope_layers(swapped), mode, transformer_flux.apply_rotary_emb)
    ours = run(swapped, "flux")
    plain = run(model, "flux")
    monkeypatch.setattr(transformer_flux, "apply_rotary_emb", spy)
    torch.testing.assert_close(ours, run(model, "flux"), rtol=0, atol=2e-5)
    assert spy.calls == 8 and (ours - plain).abs().max() > 1e-3


def test_lumina2_with_as_many_key_heads(monkeypatch):
    model = tiny("lumina2", num_kv_heads=2)
    swapped = shaken(vispe.swap(model, "harope"))
    layers, ours = harope_layers(swapped), run(swapped, "lumina2")
    rotary = transformer_lumina2.apply_rotary_emb
    spy = ByTurns(layers, "conjugate", rotary)

    def skipping_captions(x, *args, **kwargs):  # the caption layer comes first and has no encoding
        return rotary(x, *args, **kwargs) if x.shape[1] == 5 else spy(x, *args, **kwargs)

    monkeypatch.setattr(transformer_lumina2, "apply_rotary_emb", skipping_captions)
    torch.testing.assert_close(ours, run(model, "lumina2"), rtol=0, atol=2e-5)
    assert spy.calls == 6


class Functional:
    """torch.nn.functional, but attention first applies HARoPE to image tokens, and its matrices to text tokens behind them."""

    def __init__(self, layers, grid):
        self.layers, self.grid, self.calls = layers, grid, 0

    def __getattr__(self, name):
        return getattr(F, name)

    def turned(self, x, m):  # (B, H, N, d), rows then columns, pairs of neighbours
        x = torch.einsum("hij,bhnj->bhni", m.to(x.dtype), x)
        d, (rows, columns) = x.shape[-1], self.grid
        for n in range(rows * columns):
            place = (n // columns, n % columns)
            for pair in range(d // 2):
                axis, i = divmod(pair, d // 4)
                angle = torch.tensor(place[axis] * 10000.0 ** (-i / (d // 4)), dtype=torch.float64)
                a, b = x[:, :, n, 2 * pair].clone(), x[:, :, n, 2 * pair + 1].clone()
                x[:, :, n, 2 * pair] = a * angle.cos() - b * angle.sin()
                x[:, :, n, 2 * pair + 1] = a * angle.sin() + b * angle.cos()
        return x

    def scaled_dot_product_attention(self, q, k, v, **options):
        of_q, of_k = matrices(self.layers[self.calls])
        self.calls += 1
        return F.scaled_dot_product_attention(self.turned(q, of_q), self.turned(k, of_k), v, **options)


@pytest.mark.parametrize("host,count", [("sd3", 3), ("dit", 2)])
@torch.no_grad()
def test_sd3_and_dit_with_harope_in_the_place_of_their_table(host, count, monkeypatch):
    grid = (3, 4) if host == "sd3" else (4, 4)
    model = tiny(host)
    swapped = shaken(vispe.swap(model, "harope", old="remove", start="init"))
    assert not any(name.endswith("gate") for name in swapped.state_dict())
    spy, ours = Functional(harope_layers(swapped), grid), run(swapped, host, grid)
    plain = run(model, host, grid)
    model.pos_embed.pos_embed = None
    monkeypatch.setattr(attention_processor, "F", spy)
    torch.testing.assert_close(ours, run(model, host, grid), rtol=0, atol=2e-5)
    assert spy.calls == count and (ours - plain).abs().max() > 1e-3


def test_an_open_gate_is_the_encoding_itself():
    torch.manual_seed(0)
    gated = vispe.swap(tiny("sd3"), "harope")
    plain = vispe.swap(tiny("sd3"), "harope", start="init")
    state = shaken(plain).state_dict()
    with torch.no_grad():
        for name, p in gated.named_parameters():
            p.fill_(1.0) if name.endswith("gate") else p.copy_(state[name])
    torch.testing.assert_close(run(gated, "sd3"), run(plain, "sd3"), rtol=0, atol=1e-6)
