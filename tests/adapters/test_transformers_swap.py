"""Swapping position schemes in models of transformers: oracles, generation, padding, beams, training, files."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys

import pytest
import torch
import transformers as tf
from torch import nn
from transformers_helpers import IMAGE, MIXED, PICTURES, VIDEO, follows, generated, grown, line, logits, prompt, qwen

import vispe
from vispe.adapters import transformers as adapter
from vispe.positions.masks import batch_mask
from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Image, Text, Tiles, Video
from vispe.positions.sequence import build_ids

OWN = {
    "qwen2_vl": ("mrope", {"preset": "transformers_5"}),
    "qwen2_5_vl": ("mrope_time", {"preset": "transformers_5"}),
    "qwen3_vl": ("mrope_interleave", {}),
    "internvl": ("rope1d", {}),
    "llava": ("rope1d", {}),
}
MODELS = {kind: (line if kind in ("internvl", "llava") else qwen)(kind) for kind in OWN}


def batch_of(kind: str, **options):
    return prompt(kind, PICTURES if kind in ("internvl", "llava") else MIXED, **options)


@pytest.mark.parametrize("kind", OWN)
def test_the_own_scheme_changes_nothing(kind):
    model, (scheme, options), batch = MODELS[kind], OWN[kind], batch_of(kind)
    other, keep = vispe.swap(model, scheme, encoding_kwargs=options), batch["attention_mask"].bool()
    assert logits(model, batch).std() > 0.1
    torch.testing.assert_close(logits(other, batch)[keep], logits(model, batch)[keep], atol=1e-5, rtol=0)
    assert torch.equal(generated(model, batch)[0], generated(other, batch)[0])
    assert other.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("rope", [
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "linear", "factor": 3.0},
])  # fmt: skip
def test_scaling_of_the_configuration_stays(rope):
    model, batch = qwen("qwen3_vl", rope=rope), batch_of("qwen3_vl")
    keep = batch["attention_mask"].bool()
    other = vispe.swap(model, "mrope_interleave")
    torch.testing.assert_close(logits(other, batch)[keep], logits(model, batch)[keep], atol=1e-5, rtol=0)
    assert (logits(other, batch) - logits(MODELS["qwen3_vl"], batch))[keep].abs().max() > 0.01


class Given(nn.Module):
    """A rotary of fixed ids (4, B, S), pair k reads row k mod 4; written without vispe's."""

    def __init__(self, ids):
        super().__init__()
        self.ids = ids

    def forward(self, x, position_ids):
        angle = torch.stack([self.ids[k % 4].float() * 100.0 ** (-k / 8) for k in range(8)], dim=-1).repeat(1, 1, 2)
        return angle.cos(), angle.sin()


def test_vrope_is_what_its_ids_say():
    model = MODELS["qwen2_vl"]
    row = [Text(2), Image(2, 3), Text(1), Video(2, 2, 2, seconds=1.0), Text(3)]
    batch = prompt("qwen2_vl", [row])
    plain = copy.deepcopy(model)
    plain.model.language_model.rotary_emb = Given(build_ids(row, "vrope")[0][:, None])
    torch.testing.assert_close(logits(vispe.swap(model, "vrope"), batch), logits(plain, batch), atol=1e-5, rtol=0)


def test_heads_that_all_read_time_are_as_pairs_that_do():
    for kind in ("qwen2_vl", "qwen3_vl"):  # without and with a norm of queries and keys
        batch = batch_of(kind)
        heads = vispe.swap(MODELS[kind], "mhrope", sections=(2, 0, 0))
        pairs = vispe.swap(MODELS[kind], "mrope_interleave_reset", allocation="chunked", sections=(8, 0, 0))
        torch.testing.assert_close(logits(heads, batch), logits(pairs, batch), atol=1e-5, rtol=0)
        other = logits(vispe.swap(MODELS[kind], "mhrope", sections=(0, 1, 1)), batch)
        assert (other - logits(heads, batch)).abs().max() > 0.01


@pytest.mark.parametrize(("kind", "decoder"), [("internvl", "qwen3"), ("llava", "mistral"), ("internvl", "llama")])
def test_other_decoders(kind, decoder):
    model, batch = line(kind, decoder=decoder), batch_of(kind)
    keep = batch["attention_mask"].bool()
    torch.testing.assert_close(
        logits(vispe.swap(model, "rope1d"), batch)[keep], logits(model, batch)[keep], atol=1e-5, rtol=0
    )  # fmt: skip
    for scheme in ("mhrope", "v2pe", "cca"):
        other = vispe.swap(model, scheme)
        assert (logits(other, batch) - logits(model, batch))[keep].abs().max() > 0.01
        assert follows(other, batch, 3) < 1e-5


def test_a_decoder_that_pairs_channels_otherwise_is_refused():
    with pytest.raises(ValueError, match="decoder 'cohere'; there are"):
        vispe.swap(line("llava", decoder="cohere"), "vrope")


SCHEMES = [
    "rope1d", "v2pe", "mrope", "mrope_interleave_reset", "mhrope", "vrope", "videorope", "hope", "circle_rope", "il_rope",
    "mm_rope", "cca", "pype", "shared_position",
]  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_generation_with_a_cache_is_one_forward(scheme):
    model = vispe.swap(MODELS["qwen2_vl"], scheme)
    batch = batch_of("qwen2_vl")
    assert (logits(model, batch) - logits(MODELS["qwen2_vl"], batch)).abs().max() > 0.01
    assert follows(model, batch, 3) < 1e-5


@pytest.mark.parametrize(("kind", "scheme"), [
    ("qwen2_5_vl", "mrope_time"), ("qwen2_5_vl", "vrope"), ("qwen2_5_vl", "hope"), ("qwen3_vl", "vrope"),
    ("qwen3_vl", "videorope"), ("qwen3_vl", "circle_rope"), ("qwen3_vl", "mca"), ("internvl", "v2pe"), ("internvl", "vrope"),
    ("internvl", "pype"), ("llava", "v2pe"), ("llava", "mrope"), ("llava", "cca"), ("llava", "mhrope"),
])  # fmt: skip
def test_generation_of_other_models(kind, scheme):
    assert follows(vispe.swap(MODELS[kind], scheme), batch_of(kind), 3) < 1e-5


@pytest.mark.parametrize("scheme", ["vrope", "videorope", "hope", "v2pe", "circle_rope", "pype", "mrope_interleave_reset"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_mixed_batch_are_as_alone(scheme, side):
    """Section 6, case 17, and padding on either side (D39)."""
    model = vispe.swap(MODELS["qwen2_vl"], scheme)
    together = prompt("qwen2_vl", MIXED, side=side, pixels=False)
    many, keep = logits(model, together), together["attention_mask"].bool()
    assert many.isfinite().all()
    for i, row in enumerate(MIXED):
        alone = prompt("qwen2_vl", [row], pixels=False)
        alone["input_ids"] = together["input_ids"][i : i + 1, keep[i]]
        torch.testing.assert_close(many[i, keep[i]], logits(model, alone)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "scheme"), [("qwen2_vl", "videorope"), ("qwen3_vl", "vrope"), ("internvl", "v2pe")])
def test_beams_with_a_cache_are_those_without(kind, scheme):
    model, batch = vispe.swap(MODELS[kind], scheme), batch_of(kind)
    found = [generated(model, batch, 4, num_beams=3, use_cache=c)[0] for c in (True, False)]
    assert torch.equal(*found)


def test_v2pe_of_a_step_of_one_is_plain():
    batch = batch_of("internvl")
    one = vispe.swap(MODELS["internvl"], "v2pe", encoding_kwargs={"delta": 1.0})
    keep = batch["attention_mask"].bool()
    torch.testing.assert_close(logits(one, batch)[keep], logits(MODELS["internvl"], batch)[keep], atol=1e-5, rtol=0)


def test_several_tiles_are_one_block_of_internvl():
    model = vispe.swap(MODELS["internvl"], "v2pe", encoding_kwargs={"delta": 0.25})
    ids = torch.tensor([[5, 6, *[IMAGE] * 12, 7]])
    slot = adapter.positions(model, {"input_ids": ids})["position_ids"]
    assert slot[1, 0].tolist() == [0, 1, *(1 + 0.25 * j for j in range(1, 13)), 5]
    dhr = vispe.swap(MODELS["internvl"], "rope_dhr")
    with pytest.raises(ValueError, match="row 0 has an image of several tiles"):
        adapter.positions(dhr, {"input_ids": ids})
    placed = adapter.place(dhr, [[Text(2), Tiles(2, 1, 2, 2, thumbnail=(2, 2)), Text(1)]])
    assert placed["position_ids"][1, 0].tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 2, 3, 4, 5, 6]
    with torch.no_grad():
        assert dhr(input_ids=ids, pixel_values=torch.randn(3, 3, 8, 8), **placed).logits.isfinite().all()


@pytest.mark.parametrize(("kind", "scheme"), [("qwen2_vl", "pype"), ("qwen3_vl", "mhrope"), ("internvl", "circle_rope")])
def test_training_with_checkpointing(kind, scheme):
    model, batch = vispe.swap(MODELS[kind], scheme), batch_of(kind)
    grads = []
    for on in (False, True):
        model.gradient_checkpointing_enable() if on else None
        model.train().zero_grad()
        model(**batch, labels=batch["input_ids"], use_cache=False).loss.backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and any("q_proj" in n for n in grads[0])
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["cca", "vrope"])
def test_eager_attention_is_as_sdpa(scheme):
    batch = batch_of("qwen2_vl")
    keep = batch["attention_mask"].bool()
    one, two = (logits(vispe.swap(qwen("qwen2_vl", implementation=i), scheme), batch) for i in ("sdpa", "eager"))
    torch.testing.assert_close(one[keep], two[keep], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "scheme"), [("qwen2_vl", "vrope"), ("qwen3_vl", "videorope"), ("internvl", "v2pe")])
def test_other_ways_to_generate(kind, scheme):
    model, batch = vispe.swap(MODELS[kind], scheme), batch_of(kind)
    want = generated(model, batch)
    static = generated(model, batch, cache_implementation="static", disable_compile=True)
    assert torch.equal(static[0], want[0])
    torch.testing.assert_close(static[1], want[1], atol=1e-5, rtol=0)
    alone = prompt(kind, (PICTURES if kind == "internvl" else MIXED)[:1])
    guessed = generated(model, alone, 5, prompt_lookup_num_tokens=2)[0]
    assert torch.equal(guessed, generated(model, alone, 5)[0])


def test_ring_schemes_refuse_masks_that_are_not_theirs():
    model, batch = vispe.swap(MODELS["qwen2_vl"], "cca"), batch_of("qwen2_vl")
    with pytest.raises(ValueError, match="'cca' makes a mask of its own .* static caches"):
        generated(model, batch, cache_implementation="static", disable_compile=True)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("scheme", ["cca", "mca", "pype"])
@pytest.mark.parametrize(("kind", "rows"), [
    ("qwen2_vl", [[Text(1), Image(3, 3), Image(2, 4), Text(1)], [Video(2, 3, 4, seconds=1.0), Text(2)], [Text(2)]]),
    ("qwen3_vl", [[Text(1), Image(4, 3), Text(1)], [Text(1), Image(3, 3)]]),
    ("internvl", [[Text(2), Tiles(3, 1, 2, 2), Text(1), Tiles(2, 1, 2, 2)], [Image(2, 2), Text(1)]]),
    ("llava", [[Text(1), Image(2, 2), Image(2, 2), Text(1)], [Text(3)]]),
])  # fmt: skip
def test_masks_of_rings_are_those_of_segments(kind, rows, scheme, side):
    """What the tokens of every layer see is `batch_mask`; layers of pype differ, so one in two keeps a ring less."""
    model = vispe.swap(MODELS[kind], scheme, encoding_kwargs={"layers_per_step": 1} if scheme == "pype" else None)
    batch = prompt(kind, [[Image(2 * s.rows, 2) if isinstance(s, Tiles) else s for s in row] for row in rows], side=side)
    layers, seen = model.model.language_model.layers, []
    hooks = [
        layer.self_attn.register_forward_pre_hook(lambda m, a, k: seen.append(k["attention_mask"][:, 0] == 0), with_kwargs=True)
        for layer in layers
    ]
    logits(model, batch)
    [hook.remove() for hook in hooks]
    own = create_scheme(scheme, **model.model.vispe_adapter.setup.encoding_kwargs)
    for number, mask in enumerate(seen):
        wanted = batch_mask(rows, own.for_layer(number, len(layers)), side=side)
        for i in range(len(rows)):
            tokens = batch["attention_mask"][i].bool()  # what padding looks at changes nothing
            assert torch.equal(mask[i, tokens], wanted[i, tokens])


@pytest.mark.parametrize(("kind", "scheme", "options"), [
    ("qwen2_vl", "vrope", {}), ("internvl", "v2pe", {"delta": 0.125}), ("qwen3_vl", "mm_rope", {"scale": (1.0, 2.0, 2.0)}),
])  # fmt: skip
def test_saving_and_loading(tmp_path, kind, scheme, options):
    model, batch = vispe.swap(MODELS[kind], scheme, encoding_kwargs=options), batch_of(kind)
    adapter.save(model, tmp_path)
    again = adapter.load(tmp_path)
    assert torch.equal(logits(again, batch), logits(model, batch))
    assert again.model.vispe_adapter.setup == model.model.vispe_adapter.setup
    plain = type(model).from_pretrained(tmp_path)  # the folder is one of transformers' own, too
    torch.testing.assert_close(logits(plain, batch), logits(MODELS[kind], batch))


def test_copies_stand_for_themselves():
    model, batch = vispe.swap(MODELS["qwen2_vl"], "mhrope"), batch_of("qwen2_vl")
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin, batch), logits(model, batch))
    assert twin.model.vispe_adapter is not model.model.vispe_adapter
    assert torch.equal(generated(twin, batch)[0], generated(model, batch)[0])
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(logits(again, batch), logits(model, batch))
    assert torch.equal(generated(again, batch)[0], generated(model, batch)[0])


def test_draws_in_training_are_one_for_each_image():
    model = vispe.swap(MODELS["internvl"], "v2pe")
    batch = batch_of("internvl")
    one, two = (adapter.positions(model, batch, generator=torch.Generator().manual_seed(3))["position_ids"] for _ in range(2))
    assert torch.equal(one, two)
    steps = adapter.positions(model, batch, rates=[[0.5, 0.125], [1.0], []])["position_ids"][1].diff(dim=-1)
    image = batch["input_ids"] == IMAGE
    assert set(steps[0, image[0, 1:]].tolist()) == {0.5, 0.125} and set(steps[1, image[1, 1:]].tolist()) == {1.0}
    given = {**batch, **adapter.positions(model, batch)}
    assert torch.equal(logits(model, given), logits(model, batch))


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl", "llava"])
def test_text_alone_is_as_it_was(kind):
    """Its ids are equal on all axes, and every axis map turns all pairs by the same frequencies."""
    batch = prompt(kind, [[Text(7)], [Text(4)]])
    keep = batch["attention_mask"].bool()
    want, answer = logits(MODELS[kind], batch), generated(MODELS[kind], batch)[0]
    for scheme in ("vrope", "videorope", "mrope", "circle_rope", "v2pe", "cca", "mm_rope", "shared_position"):
        model = vispe.swap(MODELS[kind], scheme)
        torch.testing.assert_close(logits(model, batch)[keep], want[keep], atol=1e-5, rtol=0)
        assert torch.equal(generated(model, batch)[0], answer)


def test_generation_from_embeddings():
    model, batch = vispe.swap(MODELS["qwen2_vl"], "vrope"), prompt("qwen2_vl", MIXED, pixels=False)
    embeds = model.get_input_embeddings()(batch["input_ids"])
    rest = {k: v for k, v in batch.items() if k != "input_ids"}
    torch.testing.assert_close(logits(model, {"inputs_embeds": embeds, **rest}), logits(model, batch))
    want = generated(model, batch)[0]
    options = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, suppress_tokens=[IMAGE, VIDEO])
    assert torch.equal(model.generate(inputs_embeds=embeds, **rest, **options), want)


def test_masks_of_pairs_that_layers_would_lose():
    model = vispe.swap(MODELS["internvl"], "cca")
    model.model.language_model.config.sliding_window = 4
    model.model.language_model.config.layer_types = ["sliding_attention"] * 2
    with pytest.raises(ValueError, match="sliding window"):
        logits(model, batch_of("internvl"))
    model.model.language_model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="not flash attention"):
        logits(model, batch_of("internvl"))


def test_without_the_library_the_extra_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("vispe.adapters.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install vispe\[vlm\]"):
        importlib.import_module("vispe.adapters.transformers")


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"image_grid is \(rows, columns\)"):
        vispe.swap(MODELS["llava"], "vrope", image_grid=(4,))
    with pytest.raises(ValueError, match="a vision-language model of transformers"):
        bert = tf.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
        vispe.swap(tf.BertModel(bert), "vrope")
    with pytest.raises(ValueError, match="unknown scheme 'vropee'"):
        vispe.swap(MODELS["qwen2_vl"], "vropee")
    with pytest.raises(ValueError, match="'vrope' already"):
        vispe.swap(vispe.swap(MODELS["qwen2_vl"], "vrope"), "mrope")
    with pytest.raises(ValueError, match="add up to 8"):
        vispe.swap(MODELS["qwen2_vl"], "mrope", sections=(1, 2, 3))
    with pytest.raises(ValueError, match="was not swapped"):
        adapter.positions(MODELS["qwen2_vl"], {"input_ids": torch.ones(1, 2, dtype=torch.long)})
    with pytest.raises(ValueError, match=r"has no vispe.json"):
        adapter.load("nowhere")
    model = vispe.swap(MODELS["qwen2_vl"], "vrope")
    with pytest.raises(ValueError, match=r"position_ids of 'vrope' are \(5 or 4, 1, 2\)"):
        model(input_ids=torch.ones(1, 2, dtype=torch.long), position_ids=torch.zeros(1, 2, dtype=torch.long))


def test_the_model_below_the_head_and_in_place():
    model, batch = qwen("qwen2_vl"), batch_of("qwen2_vl")
    want = vispe.swap(model, "vrope")
    inner = vispe.swap(model.model, "vrope")
    torch.testing.assert_close(model.lm_head(inner(**batch).last_hidden_state), want(**batch).logits)
    assert vispe.swap(model, "vrope", into="model") is model
    torch.testing.assert_close(logits(model, batch), logits(want, batch))
    assert grown(batch, batch["input_ids"][:, -1:])["attention_mask"].shape[1] == batch["input_ids"].shape[1] + 1
