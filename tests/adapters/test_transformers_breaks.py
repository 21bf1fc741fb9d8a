"""What breaks when ids are plugged into transformers by hand, each case of the list with a swapped model.

The numbers are those of a list of cases in transformers 5.24: floats cut off, the step of generate, loops by hand, stale state,
new images in a cache, packed samples, masks that ids turn into packs, kernels that look at ids, images that touch, half
precision, tables by head, dynamic scaling, missing types and seconds.
"""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers_helpers import (
    CACHE,
    END,
    IMAGE,
    MIXED,
    PICTURES,
    START,
    VIDEO,
    follows,
    generated,
    grown,
    line,
    logits,
    prompt,
    qwen,
)

import vispe
from vispe.adapters import transformers as adapter
from vispe.positions.segments import Image, Text, Video

MODELS = {kind: (line if kind in ("internvl", "llava") else qwen)(kind) for kind in
          ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl")}  # fmt: skip
ROW = [Text(3), Image(2, 3), Text(2), Video(3, 2, 2, seconds=1.5), Text(3)]


def swapped(kind, scheme, **options):
    return vispe.swap(MODELS[kind], scheme, encoding_kwargs=options)


def tokens(n, rows=1, seed=5):
    return torch.randint(2, 80, (rows, n), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mask", [True, False])
def test_1_fractions_are_kept(mask):
    model = swapped("qwen2_vl", "videorope", scale=1.25)
    batch = prompt("qwen2_vl", [ROW], mask=mask)
    ids = adapter.positions(model, batch)["position_ids"]
    assert ids.is_floating_point() and (ids[1] % 1 != 0).any()
    whole = logits(swapped("qwen2_vl", "videorope", scale=1.0), batch)
    assert (logits(model, batch) - whole).abs().max() > 0.01
    torch.testing.assert_close(logits(model, batch), logits(model, prompt("qwen2_vl", [ROW], mask=not mask)))


@pytest.mark.parametrize(("scheme", "options", "step"), [
    ("tad_rope", {}, "2.0"), ("il_rope", {"text_axes": "zero"}, "1.0, 0.0, 0.0"), ("omni_rope", {"text_axes": "zero"}, "0.0"),
    ("regional_rope", {}, "0.0, 0.0, 0.0"),
])  # fmt: skip
def test_2_generate_refuses_schemes_that_do_not_step_by_one(scheme, options, step):
    model, batch = swapped("qwen2_vl", scheme, **options), prompt("qwen2_vl", [ROW])
    assert logits(model, batch).isfinite().all()
    with pytest.raises(ValueError, match=rf"generate: '{scheme}' moves its ids by \[.*{step}"):
        model.generate(**batch, max_new_tokens=2)


def test_2_generate_refuses_prompts_that_it_cannot_continue():
    ends_in_image = prompt("qwen2_vl", [ROW, [*ROW, Image(2, 3)]])
    with pytest.raises(ValueError, match="row 1 ends in an image or a video, behind which 'videorope' goes on at"):
        swapped("qwen2_vl", "videorope").generate(**ends_in_image, max_new_tokens=2)
    assert generated(swapped("qwen2_vl", "rope1d"), ends_in_image, 2)[0].shape == (2, 2)
    with pytest.raises(ValueError, match="row 0 ends in padding"):
        swapped("qwen2_vl", "vrope").generate(**prompt("qwen2_vl", MIXED, side="right"), max_new_tokens=2)


@pytest.mark.parametrize("scheme", ["mrope_time", "vrope"])
def test_2_a_long_clip_goes_on_where_a_forward_does(scheme):
    """transformers' own Qwen2.5-VL continues it by another rule than the one it trains with."""
    batch = prompt("qwen2_5_vl", [[Text(2), Video(4, 2, 2, seconds=3.0), Text(2)]])
    assert follows(swapped("qwen2_5_vl", scheme), batch) < 1e-5


@pytest.mark.parametrize("scheme", ["vrope", "tad_rope", "il_rope", "pype", "circle_rope"])
@pytest.mark.parametrize("kind", ["qwen2_vl", "internvl"])
@pytest.mark.parametrize("mask", [True, False])
def test_3_loops_by_hand(kind, scheme, mask):
    model = swapped(kind, scheme, **({"text_axes": "zero"} if scheme == "il_rope" else {}))
    rows = PICTURES if kind == "internvl" else MIXED
    batch = prompt(kind, rows if mask else rows[:1], mask=mask)
    new = tokens(5, rows=len(batch["input_ids"]))
    whole = logits(model, grown(batch, new))[:, -5:]
    cache = model(**batch, use_cache=True)[CACHE]
    full, found = batch.get("attention_mask"), []
    for part in (new[:, :1], new[:, 1:3], new[:, 3:]):  # single tokens, and several at once
        full = torch.cat((full, torch.ones_like(part)), 1) if mask else None
        with torch.no_grad():
            found.append(model(input_ids=part, attention_mask=full, **{CACHE: cache}).logits)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-5, rtol=0)


def test_3_a_prompt_that_ends_in_an_image_goes_on_by_hand():
    model = swapped("qwen2_vl", "videorope")
    batch, new = prompt("qwen2_vl", [[*ROW, Image(2, 3)]]), tokens(2)
    cache = model(**batch, use_cache=True)[CACHE]
    torch.testing.assert_close(logits(model, {"input_ids": new}, **{CACHE: cache}), logits(model, grown(batch, new))[:, -2:],
                               atol=1e-5, rtol=0)  # fmt: skip


def test_4_nothing_is_left_from_the_last_prompt():
    """Also D37: a second prompt, of another size, by embeddings or by ids."""
    model = swapped("qwen2_vl", "vrope")
    text = {"input_ids": tokens(6, rows=2)}
    fresh = logits(model, text)
    generated(model, prompt("qwen2_vl", [ROW] * 4), 2)
    embeds = model.get_input_embeddings()(text["input_ids"])
    torch.testing.assert_close(logits(model, {"inputs_embeds": embeds}), fresh)
    torch.testing.assert_close(logits(model, text), fresh)
    assert model.model.rope_deltas is None


TURNS = [Text(2), Image(2, 3), Text(3)], [Text(2), Image(2, 2), Text(2)]
PIXELS = ("pixel_values", "image_grid_thw")


@pytest.mark.parametrize(("kind", "scheme"), [("qwen2_vl", "vrope"), ("qwen3_vl", "videorope"), ("qwen2_vl", "cca"),
                                              ("qwen2_5_vl", "circle_rope"), ("qwen2_vl", "v2pe")])  # fmt: skip
def test_5_a_new_image_in_the_second_turn(kind, scheme):
    model, (one, two) = swapped(kind, scheme), TURNS
    first, second = prompt(kind, [one]), prompt(kind, [two], seed=1)
    both = {k: torch.cat((first[k], second[k]), 0 if k in PIXELS else 1) for k in first}
    whole = logits(model, both)[:, -second["input_ids"].shape[1] :]

    cache = model(**first, use_cache=True)[CACHE]
    by_hand = logits(model, second | {"attention_mask": both["attention_mask"]}, **{CACHE: cache})
    torch.testing.assert_close(by_hand, whole, atol=1e-5, rtol=0)

    cache = model(**first, use_cache=True)[CACHE]
    _, steps = generated(model, {**both, **{k: second[k] for k in PIXELS}}, 1, **{CACHE: cache})
    torch.testing.assert_close(steps[:, 0], whole[:, -1], atol=1e-5, rtol=0)


def test_5_turns_of_generation_share_a_cache():
    model, (one, two) = swapped("qwen2_vl", "vrope"), TURNS
    first, cache = prompt("qwen2_vl", [one]), DynamicCache(config=MODELS["qwen2_vl"].config.text_config)
    answer, _ = generated(model, first, 3, **{CACHE: cache})
    second = prompt("qwen2_vl", [two], seed=1)
    both = {k: torch.cat((grown(first, answer)[k], second[k]), 0 if k in PIXELS else 1) for k in first}
    _, steps = generated(model, {**both, **{k: second[k] for k in PIXELS}}, 2, **{CACHE: cache})
    _, afresh = generated(model, both, 2)
    torch.testing.assert_close(steps, afresh, atol=1e-5, rtol=0)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize(("kind", "scheme"), [("qwen2_vl", "vrope"), ("qwen3_vl", "v2pe"), ("internvl", "v2pe"),
                                              ("qwen2_vl", "cca"), ("internvl", "circle_rope")])  # fmt: skip
def test_6_packed_samples_do_not_see_each_other(kind, scheme, use_cache, implementation):
    model = vispe.swap((line if kind == "internvl" else qwen)(kind, implementation=implementation), scheme)
    rows = PICTURES if kind == "internvl" else [ROW, [Text(2), Image(2, 2), Text(1)], [Text(4)]]
    alone = [prompt(kind, [row], seed=i, mask=False) for i, row in enumerate(rows)]
    batch = adapter.packed(model, alone)
    want = torch.cat([logits(model, one) for one in alone], 1)
    torch.testing.assert_close(logits(model, batch, use_cache=use_cache), want, atol=1e-5, rtol=0)
    del batch["attention_mask"]
    torch.testing.assert_close(logits(model, batch, use_cache=use_cache), want, atol=1e-5, rtol=0)
    leaky = {**batch, "position_ids": batch["position_ids"][1:]}  # without the count nobody knows
    assert (logits(model, leaky) - want).abs().max() > 0.01


@pytest.mark.parametrize("scheme", ["v2pe", "cca", "shared_position", "rope_dhr", "circle_rope"])
def test_7_ids_that_do_not_step_by_one_are_no_packs(scheme):
    """A decoder of one id a token takes them for packed samples where it gets no mask; the adapter always passes one."""
    model, batch = swapped("internvl", scheme), prompt("internvl", PICTURES[:1])
    bare = {k: v for k, v in batch.items() if k != "attention_mask"}
    seen = {}
    hook = model.model.language_model.register_forward_pre_hook(lambda m, a, k: seen.update(k), with_kwargs=True)
    torch.testing.assert_close(logits(model, bare, use_cache=False), logits(model, batch), atol=1e-5, rtol=0)
    hook.remove()
    assert seen["attention_mask"] is not None and adapter.positions(model, bare)["attention_mask"].all()


def test_7_the_trap_is_there():
    stock, batch = MODELS["internvl"], prompt("internvl", PICTURES[:1])
    ids = adapter.positions(swapped("internvl", "v2pe"), batch)["position_ids"][1]
    masked = logits(stock, {**batch, "position_ids": ids})
    del batch["attention_mask"]
    assert (logits(stock, {**batch, "position_ids": ids}, use_cache=False) - masked).abs().max() > 0.1


@pytest.mark.parametrize(("kind", "scheme"), [("internvl", "shared_position"), ("qwen2_vl", "vrope"), ("qwen3_vl", "cca")])
def test_8_kernels_that_look_for_packs_see_a_plain_count(kind, scheme):
    from transformers.modeling_flash_attention_utils import _is_packed_sequence

    model = swapped(kind, scheme)
    row = [Image(2, 2), Text(3)]
    seen = []
    for layer in model.model.language_model.layers:
        layer.self_attn.register_forward_pre_hook(lambda m, a, k: seen.append(k.get("position_ids")), with_kwargs=True)
    logits(model, prompt(kind, [row]))
    assert len(seen) == 2
    for ids in seen:
        assert ids is None or ids.tolist() == [list(range(7))] and not ids.is_floating_point()
        assert not _is_packed_sequence(ids, batch_size=1)


def test_9_images_that_touch():
    model = swapped("qwen2_vl", "vrope")
    ids = torch.tensor([[5, START, *[IMAGE] * (6 + 4), END, 6]])
    grids = torch.tensor([[1, 4, 6], [1, 4, 4]])
    slot = adapter.positions(model, {"input_ids": ids, "image_grid_thw": grids})["position_ids"][1:, 0]
    from vispe.positions.sequence import build_ids

    assert torch.equal(slot, build_ids([Text(2), Image(2, 3), Image(2, 2), Text(2)], "vrope")[0])
    batch = {"input_ids": ids, "image_grid_thw": grids, "pixel_values": torch.randn(40, 24)}
    assert logits(model, batch).isfinite().all()


def test_9_a_generated_placeholder_is_text_where_the_types_say_so():
    model = swapped("qwen2_vl", "vrope")
    batch = prompt("qwen2_vl", [TURNS[0]], pixels=False)
    again = grown(batch, torch.tensor([[11, IMAGE, 12]]))
    whole = grown(batch, torch.tensor([[11, 13, 12]]))
    one, two = (adapter.positions(model, b)["position_ids"] for b in (again, whole))
    assert torch.equal(one, two)
    del again["mm_token_type_ids"]
    with pytest.raises(ValueError, match="row 0 has 1 image tokens from its token 12 on .*image 1 has no grid"):
        adapter.positions(model, again)


def test_9_a_generated_placeholder_in_a_cache():
    model, batch = swapped("qwen2_vl", "vrope"), prompt("qwen2_vl", [TURNS[0]])
    out = model.generate(**batch, max_new_tokens=4, return_dict_in_generate=True,
                         logits_processor=[lambda ids, scores: scores.index_fill(1, torch.tensor([IMAGE]), 1e9)])  # fmt: skip
    assert out.sequences[0, -4:].tolist() == [IMAGE] * 4
    text = {"input_ids": tokens(2)}
    found = logits(model, text, **{CACHE: getattr(out, CACHE)})
    whole = grown(grown(batch, torch.full((1, 3), IMAGE)), text["input_ids"])
    ids = adapter.positions(model, whole)["position_ids"]
    assert torch.equal(ids[1:, 0, -2:].diff(dim=-1), torch.ones(4, 1, dtype=torch.long)) and found.isfinite().all()
    assert getattr(out, CACHE).vispe_state.next_ids.item() == ids[1, 0, -1] + 1


def test_10_half_precision():
    model = swapped("qwen2_vl", "vrope")
    rotary = model.model.language_model.rotary_emb
    ids = torch.arange(300).expand(5, 1, -1)
    want = rotary(torch.zeros(1), ids)
    got = model.to(torch.bfloat16).model.language_model.rotary_emb(torch.zeros(1), ids)
    assert torch.equal(want[0], got[0]) and torch.equal(want[1], got[1]) and not list(rotary.buffers())
    batch = prompt("qwen2_vl", [ROW])
    assert logits(model, batch).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="bfloat16 cannot hold position_ids"):
        logits(model, {**batch, "position_ids": adapter.positions(model, batch)["position_ids"].bfloat16()})


def test_11_tables_by_head_pass_stock_attention():
    model, batch = swapped("qwen3_vl", "mhrope"), prompt("qwen3_vl", MIXED)
    cos, _ = model.model.language_model.rotary_emb(torch.zeros(1), adapter.positions(model, batch)["position_ids"])
    assert cos.shape == (3, 2, batch["input_ids"].shape[1], 16)
    assert follows(model, batch) < 1e-5


def test_12_dynamic_scaling_and_a_cache():
    rope = {"rope_type": "dynamic", "factor": 4.0}
    model = vispe.swap(qwen("qwen2_vl", rope=rope, max_position_embeddings=12), "vrope")
    batch = prompt("qwen2_vl", [ROW])
    with pytest.raises(ValueError, match="dynamic scaling changes all frequencies beyond 12 ids"):
        model.generate(**batch, max_new_tokens=3)
    new, steps = generated(model, batch, 3, use_cache=False)
    whole = logits(model, grown(batch, new[:, :-1]), use_cache=False)
    torch.testing.assert_close(steps[:, -1], whole[:, -1], atol=1e-5, rtol=0)
    short = prompt("qwen2_vl", [[Text(2), Image(1, 2), Text(1)]])
    assert follows(model, short) < 1e-5  # all within 12 ids


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_13_types_are_not_needed(kind):
    model, batch = swapped(kind, "vrope"), prompt(kind, MIXED)
    want = logits(model, batch)
    del batch["mm_token_type_ids"]
    torch.testing.assert_close(logits(model, batch), want)
    assert follows(model, prompt(kind, MIXED) | {}) < 1e-5
    with pytest.raises(ValueError, match="inputs_embeds do not tell where images are"):
        model(inputs_embeds=model.get_input_embeddings()(batch["input_ids"]), image_grid_thw=batch["image_grid_thw"])


def test_14_seconds_reach_generation_and_are_not_made_up():
    """Also D36."""
    model = swapped("qwen2_5_vl", "mrope_time")
    slow, fast = (prompt("qwen2_5_vl", [[Text(2), Video(3, 2, 2, seconds=s), Text(2)]]) for s in (2.0, 0.5))
    assert (generated(model, slow, 1)[1] - generated(model, fast, 1)[1]).abs().max() > 1e-3
    assert follows(model, slow) < 1e-5
    del slow["second_per_grid_ts"]
    for call in (lambda: logits(model, slow), lambda: generated(model, slow, 1)):
        with pytest.raises(ValueError, match=r"row 0, segment 1 \(video 1\): .*counts seconds, and this video has none"):
            call()


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_14_seconds_of_models_without_them(kind):
    """Their forward takes no seconds: explicit ids do, in generation too."""
    model, row = swapped(kind, "mrope_time"), [Text(2), Video(3, 2, 2, seconds=2.0), Text(2)]
    batch = prompt(kind, [row])
    timed = {**batch, "second_per_grid_ts": torch.tensor([2.0])}
    given = {**batch, **adapter.positions(model, timed)}
    torch.testing.assert_close(logits(model, timed), logits(model, given))
    new, steps = generated(model, given, 3)
    longer = {**timed, **{k: v for k, v in grown(batch, new[:, :-1]).items() if k in ("input_ids", "attention_mask")}}
    del longer["mm_token_type_ids"]
    torch.testing.assert_close(logits(model, longer)[:, -3:], steps, atol=1e-5, rtol=0)


def test_15_sound_is_not_in_these_models():
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    with pytest.raises(ValueError, match="a vision-language model of transformers with a rotary decoder is expected"):
        vispe.swap(LlamaForCausalLM(small), "tmrope")


def test_16_the_old_name_of_the_cache():
    model, batch, new = swapped("qwen2_vl", "vrope"), prompt("qwen2_vl", [ROW]), tokens(2)
    out = model(**batch, use_cache=True)
    kept = model(input_ids=new, past_key_values=out.past_key_values)
    torch.testing.assert_close(kept.logits, logits(model, grown(batch, new))[:, -2:], atol=1e-5, rtol=0)


def test_caches_that_the_model_does_not_know():
    model, batch = swapped("qwen2_vl", "vrope"), prompt("qwen2_vl", [ROW])
    foreign = MODELS["qwen2_vl"](**batch, use_cache=True)[CACHE]
    with pytest.raises(ValueError, match="the cache has 26 tokens for 1 rows, and this model knows of nothing"):
        model(input_ids=tokens(1), **{CACHE: foreign})
    cut = model(**batch, use_cache=True)[CACHE]
    cut.crop(-2)
    with pytest.raises(ValueError, match="the cache has 24 tokens for 1 rows, and this model knows of 26 tokens"):
        model(input_ids=tokens(1), **{CACHE: cut})


def test_d34_seconds_times_rate_is_floored_once():
    model = swapped("qwen2_5_vl", "mrope_time")
    for seconds, want in ((0.5, [0, 1, 2, 3]), (0.75, [0, 1, 3, 4])):
        batch = prompt("qwen2_5_vl", [[Text(1), Video(4, 1, 1, seconds=seconds), Text(1)]])
        assert adapter.positions(model, batch)["position_ids"][1, 0, 1:-1].tolist() == [1 + t for t in want]


def test_d38_grids_and_tokens_that_differ():
    model = swapped("qwen2_vl", "vrope")
    ids = torch.tensor([[5, *[IMAGE] * 10, 6]])
    with pytest.raises(ValueError, match="row 0 has 10 image tokens from its token 1 on but the grids need 6"):
        model(input_ids=ids, image_grid_thw=torch.tensor([[1, 4, 6]]))
    with pytest.raises(ValueError, match="row 0 has 10 image tokens .* but the grids need 16 .images 0 to 1"):
        model(input_ids=ids, image_grid_thw=torch.tensor([[1, 4, 6], [1, 4, 10]]))
    with pytest.raises(ValueError, match="2 image grids .* the rows hold 1"):
        model(input_ids=ids, image_grid_thw=torch.tensor([[1, 4, 10], [1, 4, 6]]))
    with pytest.raises(ValueError, match="image 0 has a grid of 1 x 4 x 5 patches"):
        model(input_ids=ids, image_grid_thw=torch.tensor([[1, 4, 5]]))
    tiles = torch.tensor([[5, *[IMAGE] * 4, 6], [*[IMAGE] * 5, 6]])
    with pytest.raises(ValueError, match="row 1, image 0 has 5 tokens, the grid of an image is 2 x 2"):
        swapped("internvl", "vrope")(input_ids=tiles)


def test_d39_a_row_of_padding_only_is_finite():
    model, batch = swapped("qwen2_vl", "vrope"), prompt("qwen2_vl", [[Text(4)], [Text(4)]])
    batch["attention_mask"][1] = 0
    assert logits(model, batch).isfinite().all()


def test_d40_image_video_image_by_hand():
    row = [Text(1), Image(1, 2), Text(1), Video(2, 1, 1, seconds=1.0), Text(1), Image(2, 1), Text(1)]
    ids = adapter.positions(swapped("qwen2_5_vl", "mrope_time"), prompt("qwen2_5_vl", [row]))["position_ids"][1:, 0]
    assert ids.tolist() == [
        [0, 1, 1, 3, 4, 6, 7, 8, 8, 10],
        [0, 1, 1, 3, 4, 4, 7, 8, 9, 10],
        [0, 1, 2, 3, 4, 4, 7, 8, 8, 10],
    ]


def test_the_rule_is_there_for_other_callers():
    model, batch = swapped("qwen2_vl", "vrope"), prompt("qwen2_vl", MIXED)
    slot, deltas = model.model.get_rope_index(**{k: v for k, v in batch.items() if "pixel" not in k})
    assert torch.equal(slot, adapter.positions(model, batch)["position_ids"])
    assert deltas[:, 0].tolist() == [int(slot[1, i, -1]) + 1 - int(batch["attention_mask"][i].sum()) for i in range(3)]
    torch.testing.assert_close(logits(model, {**batch, "position_ids": slot}), logits(model, batch))
    assert VIDEO in batch["input_ids"]
