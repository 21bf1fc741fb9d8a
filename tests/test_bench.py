"""The benchmark: its syntax, its arithmetic, and that it measures what it says."""

import gc

import pytest
import torch

from vispe.bench import Settings, bench, peak_allocation, quiet, ratios, spread
from vispe.contenders import parse_contender, timm_contenders

TINY = Settings(size="ti", img=32, batch=1, depth=1, repeats=2, warmup=1)


def test_syntax():
    plain = parse_contender("rope_axial", "b")
    assert (plain.model, plain.kwargs, plain.fold) == ("vit_b_rope_axial", {}, False)
    options = parse_contender("comrope:block_size=4,multiplier=per_head@fold", "s", depth=3)
    assert options.model == "vit_s_comrope" and options.fold
    assert options.kwargs == {"depth": 3, "encoding_kwargs": {"block_size": 4, "multiplier": "per_head"}}
    assert parse_contender("comrope@jitter", "b").kwargs == {"encoding_kwargs": {"jitter": 1.0}}
    lists = parse_contender("cpe:after=[0,1],kernel_size=5", "b").kwargs["encoding_kwargs"]
    assert lists == {"after": [0, 1], "kernel_size": 5}


def test_options_of_a_composition_keep_its_own():
    kwargs = parse_contender("irpe_k:irpe.ratio=2", "b").kwargs["encoding_kwargs"]
    assert kwargs["irpe"] == {"on": "k", "ratio": 2} and kwargs["learned"]["prefix_rows"] is True


@pytest.mark.parametrize(
    "text, message",
    [
        ("rope_axail", "did you mean 'rope_axial'"),
        ("comrope@folded", "variant"),
        ("comrope:block_size", "option=value"),
        ("irpe_k:ratio=2", "member.option=value"),
        ("comrope:comrope.jitter=1", "option=value"),
        ("com rope", "form"),
    ],
)
def test_bad_contenders_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_contender(text, "b")


@pytest.mark.parametrize(
    "field, value",
    [("size", "xl"), ("img", 100), ("repeats", 0), ("dtype", "int8"), ("clock", "sun"), ("depth", 99)],
)
def test_bad_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Settings(**{field: value})


def test_ratios_follow_the_baseline_between_its_samples():
    base = [(0.0, 1.0), (2.0, 3.0)]
    assert ratios([(1.0, 4.0)], base) == [2.0]
    assert ratios([(3.0, 6.0)], base) == [2.0]
    assert ratios([(0.0, 1.0), (1.0, 4.0), (2.0, 3.0)], [(0.0, 1.0), (1.0, 4.0), (2.0, 3.0)], same=True) == [2.0]


def test_spread_is_median_and_quartiles():
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.3, 0.2])
    assert (found.low, found.median, found.high, found.seconds) == (2.0, 3.0, 4.0, 0.2)
    assert spread([1.5], [1.0]).low == 1.5


def test_peak_allocation_sees_what_is_held_at_once():
    size = 1 << 20

    def one_then_one():
        torch.empty(size)
        torch.empty(size)

    def two_at_once():
        held = [torch.empty(size), torch.empty(size)]
        return len(held)

    assert peak_allocation(one_then_one) == pytest.approx(4 * size, rel=0.01)
    assert peak_allocation(two_at_once) == pytest.approx(8 * size, rel=0.01)


def test_quiet_restores_what_it_changes():
    threads = torch.get_num_threads()
    with quiet(1):
        assert not gc.isenabled()
    assert gc.isenabled() and torch.get_num_threads() == threads


def test_results_have_a_line_for_every_contender_and_baseline():
    contenders = [parse_contender(name, "ti", 1) for name in ("rope_mixed", "comrope@jitter", "comrope@fold")]
    results = {r.label: r for r in bench(contenders, TINY)}
    assert list(results) == ["none", "rope_mixed", "comrope@jitter", "comrope@fold"]
    assert results["none"].memory_ratio == 1.0
    assert all(r.forward.median > 0 and r.memory > 0 for r in results.values())
    assert results["comrope@fold"].train is None and results["comrope@jitter"].train.median > 0
    # a folded forward holds no gradients
    assert results["comrope@fold"].memory < results["none"].memory


def test_learned_tables_cost_the_memory_of_the_table_and_its_gradient():
    settings = Settings(size="ti", img=224, batch=1, depth=1, repeats=1, warmup=1)
    none, learned = bench([parse_contender("learned", "ti", 1)], settings)
    table = 197 * 192 * 4
    assert table <= learned.memory - none.memory <= 4 * table


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "rope_dinov3", "comrope", "comrope@jitter", "cpe", "sincos2d"])
def test_training_takes_the_memory_of_no_encoding(name):
    settings = Settings(size="s", img=112, batch=8, depth=4, repeats=1, warmup=1)
    _, result = bench([parse_contender(name, "s", 4)], settings)
    assert result.memory_ratio < 1.05


def test_timm_models_run_against_their_plain_counterparts():
    contenders = timm_contenders("s", 1)
    results = {r.label: r for r in bench(contenders, Settings(size="s", img=32, batch=1, depth=1, repeats=1, warmup=1))}
    assert results["timm vit_small_patch16_rope_224"].baseline == "timm plain (rope)"
    assert results["timm vit_small_patch16_dinov3"].baseline == "timm plain (dinov3)"
    assert results["timm plain (rope)"].memory_ratio == 1.0
    with pytest.raises(ValueError, match="no rotary models"):
        timm_contenders("ti")


def test_the_plain_counterpart_has_no_rotation():
    import timm

    plain, rotary = timm_contenders("s", 1)[:2]
    assert plain.model == rotary.model and plain.kwargs["use_rot_pos_emb"] is False
    model = timm.create_model(plain.model, img_size=32, **plain.kwargs)
    assert model.rope is None and model.pos_embed is None


def test_compiled_models_run():
    (none,) = bench([], TINY, mode="compiled")
    assert none.mode == "compiled" and none.forward.seconds > 0 and none.train.seconds > 0
