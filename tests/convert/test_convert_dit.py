"""Official diffusion transformers onto ours and into diffusers: every key accounted for, both directions, clear refusals."""

from __future__ import annotations

import pytest
import torch

from vispe.convert import convert, load, recognise
from vispe.convert.diffusers_dit import diffusers_state, official_times, to_diffusers
from vispe.models.dit_zoo import create_dit

TINY = dict(hidden_size=32, depth=2, num_heads=2, num_classes=5, input_size=8)


def ours(name: str, **options):
    model = create_dit(f"dit_s_2_{name}", **(TINY | options)).eval()
    torch.manual_seed(1)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return model


def official(name: str) -> dict[str, torch.Tensor]:
    """A state dict in the official layout of that source."""
    state = ours(name).state_dict()
    table = ours("sincos2d").encoding["sincos2d"].prepare(ours("sincos2d").positions(4, 4))
    if name == "harope":
        new = {}
        for key, value in state.items():
            if key.startswith("encoding.harope."):
                layer, part = key.split(".")[2:]
                value = value if part == "sigma" else torch.randn(2, 16, 16)
                key = f"blocks.{layer}.attn.learnable_rot.{part.replace('skew', 'A')}"
            new[key] = value
        return new
    if name == "lightning":
        turn = ours("lightning").encoding.prepare(ours("lightning").positions(4, 4))[1]
        state = {k.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): v for k, v in state.items()}
        state["feat_rope.freqs_cos"] = turn.cos[0, 0].repeat_interleave(2, -1)
        state["feat_rope.freqs_sin"] = turn.sin[0, 0].repeat_interleave(2, -1)
    return state | {"pos_embed": table}


SOURCES = [("sincos2d", "dit"), ("sit", "dit"), ("lightning", "lightningdit"), ("harope", "harope")]


@pytest.mark.parametrize("name, source", SOURCES)
def test_official_layouts_load(name, source):
    state, model = official(name), ours(name)
    assert recognise(state) == source
    report = load(model, {"ema": state})
    origins = {key for keys in report.used.values() for key in keys}
    assert report.complete and origins | set(report.dropped) == set(state) and not origins & set(report.dropped)


def test_what_does_not_fit_is_refused():
    state = official("sincos2d")
    with pytest.raises(ValueError, match="pos_embed: the model adds no table; create it with encoding='sincos2d'"):
        load(ours("rope_axial"), state)
    with pytest.raises(ValueError, match="pos_embed: not the table that sincos2d computes on a grid of 4x4"):
        load(ours("sincos2d"), state | {"pos_embed": torch.ones(1, 16, 32)})
    with pytest.raises(ValueError, match="neither the model's grid"):
        load(ours("sincos2d"), state | {"pos_embed": torch.ones(1, 15, 32)})
    with pytest.raises(ValueError, match="SiT predicts data minus noise"):
        load(ours("sincos2d"), state, "sit")
    with pytest.raises(ValueError, match="create it with encoding='harope'"):
        load(ours("rope_axial"), official("harope"))
    with pytest.raises(ValueError, match="not the rotation of this model"):
        options = {"sincos2d": {"preset": "dit"}, "rope_eva02": {"pretrain_grid": 16}}
        load(ours("lightning", encoding_kwargs=options), official("lightning"))
    with pytest.raises(ValueError, match="rubbish: the model has no place for it"):
        load(ours("sincos2d"), state | {"rubbish": torch.ones(1)})


def test_learned_table_takes_the_official_one():
    state, model = official("sincos2d"), ours("learned", input_size=(8, 12))
    report = load(model, state)
    assert list(report.resampled) == ["encoding.learned.pos_embed"]
    report = load(ours("learned"), state)
    assert report.complete and not report.resampled


def test_repa_drops_its_projectors():
    state = official("sit") | {"projectors.0.0.weight": torch.ones(3)}
    report = load(ours("sit"), state)
    assert report.source == "sit" and list(report.dropped) == ["pos_embed", "projectors.0.0.weight"]


def test_to_diffusers_and_back():
    model, x = ours("sincos2d"), torch.randn(2, 4, 8, 8)
    t, y = torch.tensor([3, 950]), torch.tensor([5, 1])
    with torch.no_grad():
        wanted = model(x, t, y)
        exact = to_diffusers(model)
        torch.testing.assert_close(exact(x, timestep=t, class_labels=y).sample, wanted, atol=1e-5, rtol=1e-5)
        stock = to_diffusers(model, times="stock")(x, timestep=t, class_labels=y).sample
    assert (stock - wanted).abs().max() > 1e-3 * wanted.abs().max()  # diffusers' own frequencies
    back = ours("sincos2d")
    for p in back.parameters():
        torch.nn.init.zeros_(p)
    report = load(back, exact.state_dict())
    assert report.source == "diffusers_dit" and report.complete
    assert all("one embedder serves every block" in why for why in report.dropped.values())
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters()))


def test_diffusers_saved_and_reloaded(tmp_path):
    """eps survives in the configuration, the time frequencies have to be set again."""
    from diffusers import DiTTransformer2DModel

    model, x = ours("sincos2d"), torch.randn(1, 4, 8, 8)
    t, y = torch.tensor([700]), torch.tensor([2])
    to_diffusers(model).save_pretrained(tmp_path)
    again = DiTTransformer2DModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert not torch.allclose(again(x, timestep=t, class_labels=y).sample, model(x, t, y), atol=1e-4)
        found = official_times(again)(x, timestep=t, class_labels=y).sample
        torch.testing.assert_close(found, model(x, t, y), atol=1e-5, rtol=1e-5)


def test_embedders_trained_apart_are_refused():
    state = to_diffusers(ours("sincos2d")).state_dict()
    key = "transformer_blocks.1.norm1.emb.class_embedder.embedding_table.weight"
    state[key] = state[key] + 1
    _, report = convert(state, ours("sincos2d"))
    assert list(report.unexpected) == [key] and "trained apart" in report.unexpected[key]


@pytest.mark.parametrize(
    "name, options, reason",
    [
        ("rope_axial", {}, "its encoding is 'rope_axial'"),
        ("sincos2d", {"input_size": (8, 12)}, "is not square"),
        ("lightning", {}, "it has RMSNorm"),
        ("sincos2d", {"num_classes": 0}, "it has no classes"),
        ("sit", {}, "it predicts 'sit_velocity'"),
    ],
)
def test_what_diffusers_cannot_be(name, options, reason):
    with pytest.raises(ValueError, match=reason):
        to_diffusers(ours(name, **options))


def test_diffusers_state_refuses_what_it_has_no_place_for():
    with pytest.raises(ValueError, match="no place for 'encoding.learned.pos_embed'"):
        diffusers_state(ours("learned").state_dict())
