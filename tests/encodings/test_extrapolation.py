"""Extrapolation through encodings and hosts: every rotary encoding of the table, every method."""

import copy
import math

import pytest
import torch
from generic_helpers import HEADS, SIZES, build, close, heads, images, scores, vit

from vispe.encodings import ENCODINGS, EncodingStack, create_encoding
from vispe.encodings.extrapolation import BY_TIME, PRESETS, WITHOUT_SERIES, Extrapolation, Method
from vispe.encodings.factorised import FactorisedStack
from vispe.encodings.rotary import Rotary
from vispe.models import EncodedVisionTransformer
from vispe.positions import Positions, custom_positions, full_grid, patch_grid, with_noise
from vispe.positions import extrapolate as ex

ROTARY = [(name, axes) for name, cls in ENCODINGS.items() for axes in cls.card.axes if issubclass(cls, Rotary)]
METHODS = Method.__args__


def positions(axes, *, grow=1, prefix=0):
    train = SIZES[axes]
    return with_noise(full_grid(tuple(n * grow for n in train), train=train, prefix=prefix), 0.5)


def works(encoding, method):
    return encoding.series() is not None or method in WITHOUT_SERIES


@pytest.mark.parametrize("name, axes", ROTARY)
def test_interpolation_is_rescaling(name, axes):
    """Scores on a grid whose axes grew differently are those of coordinates squeezed onto the train grid."""
    encoding = build(name, axes)
    train = SIZES[axes]
    pos = full_grid((2 * train[0], *(n + 1 for n in train[1:])), train=train)
    q, k, _ = heads(pos.coords.shape[1])
    encoding.set_extrapolation("pi")
    ctx = encoding.prepare(pos)
    got = scores(encoding, q, k, ctx, ctx)
    encoding.set_extrapolation(None)
    if name == "eva02_at" and axes == 3:  # frames are never rescaled; interpolation has them so
        pos = Positions(pos.coords * torch.tensor([0.5, 1, 1]), extent=pos.extent, train=pos.train)
    encoding.resize = "rescale"
    ctx = encoding.prepare(pos)
    close(got, scores(encoding, q, k, ctx, ctx), 2e-4)
    encoding.resize = "extend"
    ctx = encoding.prepare(pos)
    assert (got - scores(encoding, q, k, ctx, ctx)).abs().max() > 1e-3


@pytest.mark.parametrize("name, axes", ROTARY)
def test_nothing_changes_at_the_trained_size(name, axes):
    encoding = build(name, axes)
    pos = positions(axes, prefix=1)
    q, k, _ = heads(pos.coords.shape[1] + 1)
    encoding.resize = "extend"
    ctx = encoding.prepare(pos)
    want = scores(encoding, q, k, ctx, ctx)
    for method in METHODS:
        if works(encoding, method):
            encoding.set_extrapolation(Extrapolation(method, temperature="yarn"))
            ctx = encoding.prepare(pos)
            close(scores(encoding, q, k, ctx, ctx), want, 1e-5)
    encoding.set_extrapolation(None)
    assert encoding.resize == "extend" and encoding.extrapolation is None


@pytest.mark.parametrize("name, axes", ROTARY)
def test_every_method_slows_down(name, axes):
    """On a larger grid no frequency grows, none falls below its interpolated value, and something changes; or it is refused."""
    encoding = build(name, axes)
    pos = positions(axes, grow=3)
    own = encoding.frequencies().double()
    for method in METHODS:
        if not works(encoding, method):
            with pytest.raises(ValueError, match=f"{method}.*no base to change; .*'pi', 'yarn'.* work"):
                encoding.set_extrapolation(method)
            continue
        encoding.set_extrapolation(method)
        moved = encoding.extrapolated(encoding.frequencies(), pos)[0].double()
        assert moved.shape == own.shape and moved.isfinite().all()
        if method != "riflex":
            lowest = 3 ** (1.0 if method != "dype_ntk" else 2.0) * 1.01  # DyPE goes past interpolation while it is noisy
            assert (moved.abs() <= own.abs() * 1.00001).all() and (moved.abs() * lowest >= own.abs()).all(), method
        assert torch.equal(moved == 0, own == 0)
        if method in ("pi", "yarn"):
            assert not torch.equal(moved, own)
        assert encoding.prepare(pos).cos.isfinite().all()


@pytest.mark.parametrize("name, axes", ROTARY)
def test_the_length_of_a_cell(name, axes):
    encoding = build(name, axes)
    train = SIZES[axes]
    encoding.resize = "extend"
    here, there = (
        encoding.places(Positions(torch.full((1, 1, axes), float(x)), extent=train, train=train))[0, 0] for x in (0, 1)
    )
    close(torch.tensor(encoding.cell(train)), there - here, 1e-6)


@pytest.mark.parametrize("name, axes", ROTARY)
def test_fixed_frequencies_name_their_series(name, axes):
    """What opens every method to them; learned ones have none."""
    encoding = create_encoding(name, dim=96, num_heads=HEADS, axes=axes)
    assert (encoding.series() is None) == any(p.requires_grad for p in encoding.parameters()) or name == "harope"


FIXED = [(n, a) for n, a in ROTARY if create_encoding(n, dim=96, num_heads=HEADS, axes=a).series() is not None]


@pytest.mark.parametrize("name, axes", [*FIXED, ("md_lrpe", 2)])
def test_series_are_those_of_the_frequencies(name, axes):
    options = {"learn_theta": False} if name == "md_lrpe" else {}
    encoding = create_encoding(name, dim=96, num_heads=HEADS, axes=axes, **options)
    for freqs, series in zip(encoding.frequencies().unbind(1), encoding.series()):
        place = series.places(freqs)
        own = freqs[freqs != 0].double()
        close(series.top * series.theta ** -(place[freqs != 0] / series.pairs), own, 1e-6)
        close(place, place.round(), 1e-4)
        assert place.min() > -1e-4 and place.max() < series.pairs


@pytest.mark.parametrize("preset", ["eva02", "naver_axial", "naver_mixed", "pe", "pe_gigantic", "dinov3", "mrope", "pixel"])
def test_families_of_timm(preset):
    encoding = create_encoding("rope_timm", dim=96, num_heads=HEADS, preset=preset)
    assert (encoding.series() is None) == (preset in ("naver_mixed", "pixel"))
    train = (5, 4)
    encoding.resize = "extend"
    ends = [encoding.places(Positions(torch.full((1, 1, 2), float(x)), extent=train, train=train))[0, 0] for x in (0, 1)]
    close(torch.tensor(encoding.cell(train)), ends[1] - ends[0], 1e-6)
    if encoding.series() is not None:
        for freqs, series in zip(encoding.frequencies()[0], encoding.series()):
            close(series.places(freqs), series.places(freqs).round(), 1e-4)


def test_each_axis_by_its_own_growth():
    """wildminder/ComfyUI-DyPE#2: a scale for squares only. Rows grow here, columns do not."""
    encoding = create_encoding("harope", dim=64, num_heads=2)
    own = encoding.frequencies()
    pos = patch_grid(12, 4, train=(4, 4))
    for method in ("pi", "ntk", "by_parts", "yarn"):
        encoding.set_extrapolation(method)
        moved, _ = encoding.extrapolated(own, pos)
        assert torch.equal(moved[:, 1], own[:, 1]) and not torch.equal(moved[:, 0], own[:, 0])
        tall = patch_grid(4, 12, train=(4, 4))
        close(encoding.extrapolated(own, tall)[0][0, 1, 8:], moved[0, 0, :8], 1e-7)
        encoding.set_extrapolation(Extrapolation(method, axes="longest"))
        both, _ = encoding.extrapolated(own, pos)
        close(both[0, 1, 8:], both[0, 0, :8], 1e-7)
        assert torch.equal(both[:, 0], moved[:, 0])
    encoding.set_extrapolation(Extrapolation("pi", axes="area"))
    close(encoding.extrapolated(own, pos)[0], own / math.sqrt(3), 1e-6)
    encoding.set_extrapolation(Extrapolation("pi", factor=4.0, train=(4, 4)))
    close(encoding.extrapolated(own, pos)[0], own / torch.tensor([4.0, 1.0])[:, None], 1e-7)


def test_other_units_have_the_same_formula():
    """Frequencies per cell come out the same whether coordinates count cells, reference cells or image widths."""
    train, pos = (48, 48), patch_grid(96, 72, train=(48, 48))
    setting = Extrapolation("yarn", turns=(4.0, 0.5))
    per_cell = {}
    for name, options in {
        "rope3d": dict(axes=2), "harope": {}, "rope_eva02": dict(pretrain_grid=48), "rope_dinov3": dict(base=10000.0),
    }.items():  # fmt: skip
        encoding = create_encoding(name, dim=64, num_heads=1, **options)
        encoding.set_extrapolation(setting)
        unit = torch.tensor(encoding.cell(train))[:, None]
        moved = encoding.extrapolated(encoding.frequencies(), pos)[0][0] * unit
        per_cell[name] = moved / (encoding.frequencies()[0] * unit).clamp(min=1e-9)
    close(per_cell["rope3d"], per_cell["harope"], 1e-6)
    close(per_cell["rope3d"], per_cell["rope_eva02"], 1e-6)
    assert (per_cell["rope_dinov3"] - per_cell["harope"]).abs().max() > 0.01  # its fastest pair is π/24 a cell, not 1


@pytest.mark.parametrize("name", ["rope_axial", "comrope", "gta2d", "harope", "md_lrpe", "rope3d", "string_circulant"])
def test_temperature_is_on_the_logits(name):
    """And on nothing else: GTA's values and its output keep their size."""
    encoding = build(name)
    pos = patch_grid(6, 8, train=(3, 4))
    q, k, v = heads(48)
    plain, warm = [], []
    for temperature, into in (("none", plain), ("log_n", warm)):
        encoding.set_extrapolation(Extrapolation("pi", temperature=temperature))
        ctx = encoding.prepare(pos)
        into += [scores(encoding, q, k, ctx, ctx), encoding.out(encoding.v(v, ctx), ctx)]
    close(warm[0], plain[0] * ex.log_n_scale(48, 12), 1e-4)
    close(warm[1], plain[1])
    warm = Extrapolation("yarn", temperature="yarn")
    assert warm.logits((6, 8), (3, 4), 48) == 0.1 * math.log(2) + 1
    assert Extrapolation("ntk", temperature="log_n_up").logits((2, 2), (3, 4), 4) == 1.0


def test_time_comes_with_the_positions():
    encoding = create_encoding("rope_axial", dim=32, num_heads=2)
    pos = patch_grid(8, 8, train=(4, 4))
    for method in BY_TIME:
        encoding.set_extrapolation(method)
        with pytest.raises(ValueError, match=r"depends on the diffusion time; prepare it with with_noise"):
            encoding.prepare(pos)
        noisy, clean = (encoding.prepare(with_noise(pos, t)).cos for t in (1.0, 0.0))
        assert not torch.equal(noisy, clean)
    stack = EncodingStack("learned+rope_axial", dim=32, num_heads=2, depth=1, facts={"grid": (4, 4)})
    for setting, wants in (("yarn", False), ("lumina_next", True), (None, False)):
        stack.set_extrapolation(setting)
        assert stack.wants_noise == wants
    encoding.set_extrapolation("dype_yarn")
    close(encoding.prepare(with_noise(pos, 0.0)).cos, create_encoding("rope_axial", dim=32, num_heads=2).prepare(pos).cos, 1e-6)
    with pytest.raises(ValueError, match="from 0 .data. to 1 .pure noise., got 1.5"):
        with_noise(pos, 1.5)


def test_riflex_is_for_longer_videos():
    encoding = create_encoding("rope3d", dim=96, num_heads=2, axes=3, theta=256.0)
    own = encoding.frequencies()
    encoding.set_extrapolation(Extrapolation("riflex", repeats=48))
    short = full_grid((4, 6, 6), train=(4, 3, 3))
    assert torch.equal(encoding.extrapolated(own, short)[0], own)
    moved, _ = encoding.extrapolated(own, full_grid((9, 3, 3), train=(4, 3, 3)))
    changed = (moved != own).nonzero()
    assert len(changed) == 1 and changed[0, 1] == 0
    assert changed[0, 2] + 1 == ex.intrinsic_pair(256.0, 16, 48)[0]
    close(moved.flatten()[(moved != own).flatten()], torch.tensor([0.9 * 2 * math.pi / 9]))


# ---- hosts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["rope_axial", "comrope", "harope", "rope_mixed_ape"])
def test_a_vit(variant):
    model, small, large = vit(variant), images(32, 48), images(64, 96)
    want = model(small), model(large)
    setting = "yarn" if variant in ("comrope", "rope_mixed_ape") else "vision_ntk"
    model.set_extrapolation(setting)
    assert (model(large) - want[1]).abs().max() > 1e-5
    close(model(small), want[0], 1e-5)
    assert set(model.state_dict()) == set(vit(variant).state_dict())
    twin = copy.deepcopy(model)
    assert torch.equal(twin(large), model(large))
    model.set_extrapolation(None)
    assert torch.equal(model(large), want[1]) and torch.equal(model(small), want[0])


@pytest.mark.parametrize(
    "variant, setting", [("comrope", "pi"), ("comrope", "yarn"), ("harope", "ntk"), ("string_cayley", "yarn")]
)
def test_folding_keeps_it(variant, setting):
    model = vit(variant)
    before = copy.deepcopy(model).fold()(images(64, 96))
    model.set_extrapolation(setting)
    want = model(images(64, 96))
    model.fold()
    close(model(images(64, 96)), want, 1e-4)
    model.set_extrapolation(None)
    close(model(images(64, 96)), before, 1e-4)


def test_factorised_videos():
    """Space and time by turns: each part's axes by their own growth."""
    torch.manual_seed(0)
    stack = FactorisedStack("rope_axial", dim=96, num_heads=HEADS, depth=1, facts={"grid": (2, 3, 4), "train_grid": (2, 3, 4)})
    small, large = (full_grid(size, train=(2, 3, 4)) for size in ((2, 3, 4), (2, 6, 4)))
    plain = [stack.prepare(pos) for pos in (small, large)]
    stack.set_extrapolation("pi")
    moved = [stack.prepare(pos) for pos in (small, large)]
    assert torch.equal(moved[0].space[0].cos, plain[0].space[0].cos) and torch.equal(moved[1].time[0].cos, plain[1].time[0].cos)
    assert not torch.equal(moved[1].space[0].cos, plain[1].space[0].cos)
    with pytest.raises(ValueError, match="no rotary frequencies"):
        FactorisedStack("none", dim=96, num_heads=HEADS, depth=1).set_extrapolation("pi")


def test_interpolating_comrope_is_its_own_rescaling():
    """The class token, too, which stands at the centre."""
    model, large = vit("comrope"), images(64, 72)
    want = model(large)
    model.set_extrapolation("pi")
    close(model(large), want, 2e-5)


@pytest.mark.parametrize("name, setting", [("rope_axial", "yarn"), ("rope_mixed", "yarn"), ("harope", "vision_ntk_pro2")])
def test_compiled(name, setting):
    """One program for sizes that grow; the same numbers."""
    torch.compiler.reset()
    model = vit(name, depth=1)
    model.set_extrapolation(setting)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for size in [(32, 48), (64, 72), (40, 96)]:
            close(compiled(images(*size)), model(images(*size)), 1e-5)
    torch.compiler.reset()


def test_gradients_of_learned_frequencies():
    encoding = build("rope_mixed").train()
    encoding.set_extrapolation("pi")
    pos = patch_grid(6, 8, train=(3, 4))
    q, k, _ = heads(48)
    ctx = encoding.prepare(pos)
    scores(encoding, q, k, ctx, ctx).square().sum().backward()
    assert encoding.freqs.grad.isfinite().all() and encoding.freqs.grad.abs().max() > 0


def test_bad_input():
    encoding = create_encoding("rope_axial", dim=32, num_heads=2)
    with pytest.raises(ValueError, match="no method 'yran'; there are .*'yarn'.*'vision_ntk'"):
        encoding.set_extrapolation("yran")
    for option in (dict(method="yran"), dict(axes="each"), dict(temperature="warm"), dict(ends="open"), dict(factor=0.5)):
        with pytest.raises(ValueError, match="must be"):
            Extrapolation(**option)
    encoding.set_extrapolation("yarn")
    with pytest.raises(ValueError, match="custom coordinates.*set_extrapolation.None."):
        encoding.prepare(custom_positions(torch.zeros(3, 2)))
    encoding.resize = "rescale"
    with pytest.raises(ValueError, match="act twice; call set_extrapolation after set_coords"):
        encoding.prepare(patch_grid(3, 3))
    stack = EncodingStack("learned", dim=32, num_heads=2, depth=1, facts={"grid": (2, 2)})
    with pytest.raises(ValueError, match="'learned' has no rotary frequencies.*set_coords"):
        stack.set_extrapolation("pi")
    stack.set_extrapolation(None)
    model = EncodedVisionTransformer("none", img_size=16, patch_size=8, embed_dim=16, num_heads=2, depth=1)
    with pytest.raises(ValueError, match="'none' has no rotary frequencies"):
        model.set_extrapolation("pi")
    assert all(isinstance(p, Extrapolation) for p in PRESETS.values())
