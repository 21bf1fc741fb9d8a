"""Axis maps: the published layouts written out, and what does not fit."""

from __future__ import annotations

import pytest

from vispe.encodings.axis_map import STILL, AxisMap, axis_map, default_sections
from vispe.positions.schemes import SCHEMES, create_scheme

T, H, W = 0, 1, 2


def test_chunked_is_qwen2() -> None:
    assert axis_map("chunked", pairs=64).axis == ((T,) * 16 + (H,) * 24 + (W,) * 24,)
    assert axis_map("chunked", pairs=8, sections=(0, 3, 5)).axis[0] == (H, H, H, W, W, W, W, W)


def test_interleaved_is_qwen3() -> None:
    """t h w twenty times over, then time alone."""
    assert axis_map("interleaved", pairs=64, sections=(24, 20, 20)).axis == ((T, H, W) * 20 + (T,) * 4,)
    assert axis_map("interleaved", pairs=64) == axis_map("interleaved", pairs=64, sections=[24, 20, 20])
    assert axis_map("interleaved", pairs=8, sections=(4, 2, 2)).axis[0] == (T, H, W, T, H, W, T, T)
    assert axis_map("interleaved", pairs=8, sections=(3, 3, 2)).axis[0] == (T, H, W, T, H, W, T, H)  # rows may reach further


@pytest.mark.parametrize("sections", [(2, 3, 3), (0, 8, 0), (0, 4, 4)])
def test_interleaved_sections_that_code_accepts_and_cannot_serve(sections: tuple[int, int, int]) -> None:
    """Released code takes these and gives time what it took from columns."""
    with pytest.raises(ValueError, match="interleaved sections .* do not fit.*use at most 3 for rows and 2 for columns"):
        axis_map("interleaved", pairs=8, sections=sections)


def test_interleaved_counts_are_the_sections() -> None:
    """Whatever is accepted gives each axis as many pairs as asked; whatever gives other numbers is refused."""
    for pairs in (1, 2, 5, 8, 12):
        for h in range(pairs + 1):
            for w in range(pairs + 1 - h):
                share = (pairs - h - w, h, w)
                released = [k % 3 if k % 3 and k < 3 * share[k % 3] else 0 for k in range(pairs)]
                honest = tuple(released.count(axis) for axis in range(3)) == share
                if honest:
                    assert list(axis_map("interleaved", pairs=pairs, sections=share).axis[0]) == released
                else:
                    with pytest.raises(ValueError, match="do not fit"):
                        axis_map("interleaved", pairs=pairs, sections=share)


def test_videorope_and_hope() -> None:
    assert axis_map("videorope", pairs=64, sections=(16, 24, 24)).axis == ((H, W) * 24 + (T,) * 16,)
    hope = axis_map("hope", pairs=64)
    assert hope.axis == ((H, W) * 24 + (STILL,) * 16,) and hope.plain and hope.still
    other = axis_map("alternating", pairs=64)  # Multimodal-RoPEs: pair 0 is time's, and columns lose one
    assert other.axis == ((T, H, *(W, H) * 23, *(T,) * 16),)
    still = axis_map("alternating_still", pairs=64)
    assert still.axis[0] == tuple(STILL if a == T else a for a in other.axis[0]) and not still.plain


def test_other_layouts() -> None:
    assert axis_map("cycle", pairs=6).axis == ((0, 1, 2, 3, 0, 1),) and axis_map("cycle", pairs=6).axes == 4
    assert axis_map("lumos", pairs=11).axis == ((T, T, H, W, H, W, H, W, T, T, H),)
    assert axis_map("single", pairs=3).axis == ((0, 0, 0),) and axis_map("single", pairs=3).axes == 1
    heads = axis_map("heads", pairs=2, sections=(1, 1, 1), heads=4)
    assert heads.axis == ((T, T), (H, H), (W, W), (STILL, STILL)) and heads.heads == 4
    assert [row[0] for row in axis_map("heads", pairs=2, heads=8).axis] == [T] * 2 + [H] * 3 + [W] * 3


def test_default_sections_add_up() -> None:
    for pairs in range(1, 130):
        for rule in ("chunked", "interleaved", "videorope", "hope", "alternating"):
            assert sum(default_sections(rule, pairs=pairs)) == pairs == axis_map(rule, pairs=pairs).pairs
    for heads in range(1, 20):
        share = default_sections("heads", pairs=4, heads=heads)
        assert sum(share) == heads and min(share) >= 0 and axis_map("heads", pairs=4, heads=heads).heads == heads


def test_every_scheme_has_a_map() -> None:
    for name in SCHEMES:
        scheme = create_scheme(name)
        made = axis_map(scheme.allocation, pairs=8, heads=8 if scheme.allocation == "heads" else None)
        assert made.axes == scheme.axes or made.axes == 1 or scheme.axes == 1, name


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("diagonal", {}, "allocation must be one of"),
        ("chunked", {"sections": (2, 3, 4)}, r"add up to 8.*got \(2, 3, 4\), in sum 9.*\(2, 3, 3\)"),
        ("chunked", {"sections": (2, 6)}, r"pairs of \(time, row, column\)"),
        ("videorope", {"sections": (-1, 4, 5)}, "add up to 8"),
        ("lumos", {"sections": (2, 3, 3)}, "shares out no sections"),
        ("heads", {}, "pass heads="),
        ("heads", {"heads": 4, "sections": (2, 2, 1)}, "at most 4 together"),
    ],
)
def test_refusals(rule: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        axis_map(rule, pairs=8, **options)


def test_maps_of_ones_own() -> None:
    assert AxisMap(((0, 3, 1),), 4).pairs == 3
    with pytest.raises(ValueError, match=r"rows 0 \.\. 2 of the ids"):
        AxisMap(((0, 3),), 3)
    with pytest.raises(ValueError, match="as many for every head"):
        AxisMap(((0, 1), (0,)), 3)
    with pytest.raises(ValueError, match="at least one pair"):
        axis_map("single", pairs=0)
