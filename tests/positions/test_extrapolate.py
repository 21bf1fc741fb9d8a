"""Frequencies at sizes never trained: definitions, guards, and the bugs of others."""

import math

import pytest
import torch

from vispe.positions import extrapolate as ex

THETA, D, N0 = 10000.0, 36, 16


def close(a, b, tol=1e-12):
    torch.testing.assert_close(a.double(), b.double(), rtol=tol, atol=tol)


def test_ntk_is_another_base():
    freqs = ex.base_frequencies(THETA, D)
    close(ex.ntk(freqs, 2.0), ex.base_frequencies(ex.ntk_base(THETA, D, 2.0), D))
    moved = ex.ntk(freqs, 3.0)
    close(moved[0], freqs[0])
    close(moved[-1], freqs[-1] / 3)  # the slowest pair is interpolated
    close(ex.ntk(torch.ones(1), 3.0), torch.ones(1))  # a single pair is the fastest one
    with pytest.raises(ValueError, match="more than 2 channels"):
        ex.ntk_base(THETA, 2, 2.0)


def yarn_by_loops(theta, channels, scale, length, fast=32, slow=1):
    """Pair by pair, as language models define it."""

    def place(turns):
        return channels * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(place(fast)), 0), min(math.ceil(place(slow)), channels - 1)
    out = []
    for i in range(channels // 2):
        f = theta ** (-2 * i / channels)
        ramp = min(max((i - low) / ((high - low) or 0.001), 0), 1)
        out.append(f / scale * ramp + f * (1 - ramp))
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("theta, channels, scale, length", [(1e4, 128, 8.0, 4096), (5e5, 64, 4.0, 8192), (1e4, 36, 2.0, 16)])
def test_yarn_of_language_models(theta, channels, scale, length):
    freqs = ex.base_frequencies(theta, channels)
    close(ex.yarn(freqs, scale, theta=theta, span=length), yarn_by_loops(theta, channels, scale, length))
    smooth = ex.yarn(freqs, scale, theta=theta, span=length, truncate=False)
    assert (smooth <= freqs + 1e-15).all() and (smooth >= freqs / scale - 1e-15).all()
    assert ex.yarn_temperature(scale) == 0.1 * math.log(scale) + 1
    assert ex.yarn_temperature(0.5) == 1.0
    assert ex.dynamic_growth(3 * length, length, 2.0) == 5.0 and ex.dynamic_growth(5, length, 2.0) == 1.0


def test_kept_frequencies_have_the_original_base():
    """Not that of NTK (paiml/aprender#2161): fast pairs come out bit-equal."""
    freqs = ex.base_frequencies(THETA, 128)
    moved = ex.yarn(freqs, 8.0, theta=THETA, span=4096)
    fast = freqs * 4096 / (2 * math.pi) > 40
    assert fast.sum() > 10 and torch.equal(moved[fast], freqs[fast])
    slow = freqs * 4096 / (2 * math.pi) < 0.9
    close(moved[slow], freqs[slow] / 8)


def test_yarn_without_a_base_goes_by_turns():
    """On a series both definitions agree where all is kept and where nothing is."""
    freqs = ex.base_frequencies(THETA, 128)
    by_turns = ex.yarn(freqs, 8.0, theta=None, span=4096)
    turns = freqs * 4096 / (2 * math.pi)
    assert torch.equal(by_turns[turns >= 32], freqs[turns >= 32])
    close(by_turns[turns <= 1], freqs[turns <= 1] / 8)
    shuffled = freqs[torch.randperm(64, generator=torch.Generator().manual_seed(0))] * -1
    close(ex.yarn(shuffled, 8.0, theta=None, span=4096).abs().sort().values, by_turns.sort().values)


@pytest.mark.parametrize("channels, span", [(56, 64), (24, 64), (36, 16)])
def test_dype_comes_back_to_the_base(channels, span):
    """The released ramps turn round near the data and interpolate every pair; ours keep what is kept a little earlier."""
    freqs = ex.base_frequencies(THETA, channels)
    for noise in (0.0, 1e-6, 0.001, 0.005):
        close(ex.dype_parts(freqs, 4.0, noise, theta=THETA, span=span), freqs)
        close(ex.dype_ntk(freqs, 4.0, noise), freqs, 1e-3)
    turned = ex.dype_parts(freqs, 4.0, 0.001, theta=THETA, span=span, ends="released")
    close(turned, freqs / 4)  # the bug
    early = ex.ntk_by_parts(freqs, 4.0, theta=THETA, span=span, last=channels // 2)
    close(ex.dype_parts(freqs, 4.0, 1.0, theta=THETA, span=span), early)
    close(ex.dype_ntk(freqs, 4.0, 1.0), ex.ntk(freqs, 16.0))
    speeds = torch.stack([ex.dype_parts(freqs, 4.0, t, theta=THETA, span=span) for t in torch.linspace(0, 1, 50).tolist()])
    assert (speeds.diff(dim=0) <= 1e-12).all()  # the noisier, the slower


def test_a_span_without_any_turn():
    """So few trained tokens that every pair is slow: guarded, they are interpolated."""
    freqs = ex.base_frequencies(THETA, 24)
    index = torch.arange(12.0)
    assert ex.kept(index, (16.0, 2.0), theta=THETA, channels=24, span=3)[1:].max() == 0
    assert ex.kept(index, (16.0, 2.0), theta=THETA, channels=24, span=3, ends="released").min() == 1
    close(ex.yarn(freqs, 2.0, theta=THETA, span=2)[1:], freqs[1:] / 2)
    with pytest.raises(ValueError, match="'guarded' or 'released', got 'open'"):
        ex.kept(index, (16.0, 2.0), theta=THETA, channels=24, span=3, ends="open")


def test_nothing_changes_at_the_trained_size():
    freqs = ex.base_frequencies(THETA, D).float()
    s = ex.growth(12, 16)
    assert s == 1.0 == ex.growth(16, 16)
    for moved in (
        ex.interpolate(freqs, s), ex.ntk(freqs, s), ex.yarn(freqs, s, theta=THETA, span=N0), ex.dype_ntk(freqs, s, 0.5),
        ex.ntk_by_parts(freqs, s, theta=THETA, span=N0), ex.lumina(freqs, s, 0.9), ex.lumina(freqs, s, 0.1),
        ex.dype_parts(freqs, s, 0.5, theta=THETA, span=N0), ex.yarn(freqs, s, theta=None, span=N0),
    ):  # fmt: skip
        assert torch.equal(moved.float(), freqs)
    with pytest.raises(ValueError, match="must be positive, got 0"):
        ex.growth(3, 0)


def test_lumina_switches_at_the_watershed():
    freqs = ex.base_frequencies(THETA, D)
    close(ex.lumina(freqs, 2.0, 0.9, watershed=0.3), freqs / 2)
    for t in (0.2, 0.3, 0.6, 0.9):  # official: t = 1 - noise, t < watershed
        close(ex.lumina(freqs, 2.0, 1 - t, watershed=t), ex.base_frequencies(THETA * 2, D))


def test_riflex_moves_one_pair():
    freqs = ex.base_frequencies(256.0, 16)
    moved = ex.riflex(freqs, 66, pair=4)
    close(moved[3] * 66, torch.tensor(0.9 * 2 * math.pi).double(), 1e-6)
    assert torch.equal(moved[[0, 1, 2, 4, 5, 6, 7]], freqs[[0, 1, 2, 4, 5, 6, 7]])
    assert ex.intrinsic_pair(256.0, 16, 48) == (4, 50)  # HunyuanVideo
    with pytest.raises(ValueError, match="counts from 1 to 8, got 9"):
        ex.riflex(freqs, 66, pair=9)


def test_temperatures():
    assert ex.log_n_scale(1024, 256) == math.sqrt(1.25)
    assert ex.fit_proportion(16, 16) == pytest.approx(1.118, abs=1e-3)  # the doubled length
    with pytest.raises(ValueError, match="more than one token"):
        ex.log_n_scale(4, 1)


def test_float64_inside():
    """A table of 4096 places from float32 frequencies is as good as from float64 ones."""
    freqs = ex.base_frequencies(THETA, D)
    far = 4096 * ex.ntk(freqs.float(), 8.0)
    assert far.dtype == torch.float64
    close(far, 4096 * ex.ntk(freqs, 8.0), 4096 * 6e-8)
