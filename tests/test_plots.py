"""The numbers behind the pictures against closed forms, and the pictures as objects."""

import subprocess
import sys

import pytest
import torch

from vispe import create_encoding, patch_grid
from vispe.encodings.functional import phase
from vispe.plots import (
    decay_curve,
    decay_plot,
    impulse_response,
    signal_kind,
    similarity_map,
    similarity_plot,
    wavelength_plot,
)

POS = patch_grid(6, 9)
QUERY = 2 * 9 + 4


def make(name, dim=64, num_heads=2, **options):
    torch.manual_seed(0)
    return create_encoding(name, dim=dim, num_heads=num_heads, depth=12, **options).eval()


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "rope_dinov3"])
def test_rotary_similarity_is_the_mean_cosine_of_phase_differences(name):
    encoding = make(name)
    angle = phase(encoding.coordinates(POS), encoding.frequencies())[0].detach()  # (H or 1, N, P)
    expected = (angle - angle[:, QUERY, None]).cos().mean(-1).expand(2, -1)
    torch.testing.assert_close(similarity_map(encoding, POS, QUERY), expected, atol=1e-5, rtol=1e-5)


def test_comrope_similarity_is_the_mean_trace_of_the_official_rotations():
    encoding = make("comrope", block_size=4)
    r = encoding.matrices(POS)[0].detach()  # (N, H, m, b, b)
    expected = torch.einsum("hmij,nhmij->hn", r[QUERY], r) / encoding.head_dim
    torch.testing.assert_close(similarity_map(encoding, POS, QUERY), expected, atol=1e-4, rtol=1e-4)


def test_prefix_tokens_are_left_out():
    encoding = make("rope_mixed")
    with_prefix = similarity_map(encoding, patch_grid(6, 9, prefix=3), QUERY)
    torch.testing.assert_close(with_prefix, similarity_map(encoding, POS, QUERY))


def test_added_vectors_are_compared_by_cosine():
    encoding = make("sincos2d")
    table = encoding.prepare(POS)[0]
    expected = torch.nn.functional.cosine_similarity(table, table[QUERY, None], dim=-1)[None]
    torch.testing.assert_close(similarity_map(encoding, POS, QUERY), expected)


def test_zero_bias_tables_leave_similarity_constant_and_trained_ones_show():
    encoding = make("irpe", mode="bias", ratio=1.9)
    assert torch.allclose(similarity_map(encoding, POS, QUERY), torch.ones(2, 54), atol=1e-5)
    with torch.no_grad():
        for table in encoding.parameters():
            table.normal_()
    assert similarity_map(encoding, POS, QUERY).std() > 0.01


def test_impulse_of_a_convolution_is_its_kernel():
    encoding = make("cpe", after=(0,))
    with torch.no_grad():
        encoding.pegs["0"].weight.fill_(0.5)
    response = impulse_response(encoding, POS, QUERY).reshape(6, 9)
    expected = torch.zeros(6, 9)
    expected[1:4, 3:6] = 0.5
    expected[2, 4] = 1.5
    torch.testing.assert_close(response, expected)
    with pytest.raises(ValueError, match="impulse_response"):
        similarity_map(encoding, POS, QUERY)


def test_decay_starts_at_one_and_bins_all_tokens():
    decay = decay_curve(make("rope_axial"), POS, QUERY)
    assert decay.distance.tolist() == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(decay.mean[:, 0], torch.ones(2))
    assert (decay.low <= decay.mean).all() and (decay.mean <= decay.high).all()
    assert decay.mean[0, 1] > decay.mean[0, 3]


@pytest.mark.parametrize(
    "name, options, kind",
    [
        ("rope_axial", {}, "logits"), ("irpe", {}, "logits"), ("learned", {"grid": (6, 9)}, "added"), ("cpe", {}, "impulse"),
        ("none", {}, "none"),
    ],
)  # fmt: skip
def test_kinds(name, options, kind):
    assert signal_kind(make(name, **options)) == kind


@pytest.mark.parametrize("grid, shortest, longest", [((14, 14), 7.0, 525.0), ((37, 37), 18.5, 1387.0)])
def test_wavelengths_of_normalised_coordinates_grow_with_the_grid(grid, shortest, longest):
    waves = make("rope_dinov3", dim=128, num_heads=2).wavelengths(grid)
    assert waves.min().item() == pytest.approx(shortest, rel=1e-3)
    assert waves.max().item() == pytest.approx(longest, rel=1e-3)


@pytest.mark.parametrize("grid", [(14, 14), (37, 37)])
def test_wavelengths_of_index_coordinates_do_not(grid):
    waves = make("rope_axial", dim=128, num_heads=2).wavelengths(grid)
    assert waves.min().item() == pytest.approx(6.283, rel=1e-3)
    assert waves.max().item() == pytest.approx(471.2, rel=1e-3)


@pytest.mark.parametrize("name", ["rope_mixed", "comrope", "learned", "cpe", "none", "irpe"])
def test_figures_have_labelled_axes(name, tmp_path):
    encoding = make(name, **({"grid": (6, 9)} if name == "learned" else {}))
    figures = [similarity_plot(encoding, POS, QUERY), decay_plot(encoding, POS, QUERY)]
    if encoding.wavelengths((6, 9)) is not None:
        figures.append(wavelength_plot(encoding, (6, 9)))
    for figure in figures:
        shown = figure.axes[0]
        assert "patches" in shown.get_xlabel() or "pair" in shown.get_xlabel()
        assert shown.get_ylabel()
        figure.savefig(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 5000


def test_plots_leave_the_global_backend_alone():
    code = "import sys, vispe.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_bad_queries_are_refused():
    with pytest.raises(ValueError, match="0 to 53"):
        similarity_map(make("rope_axial"), POS, 54)
    with pytest.raises(ValueError, match="no frequencies"):
        wavelength_plot(make("none"), (6, 9))
