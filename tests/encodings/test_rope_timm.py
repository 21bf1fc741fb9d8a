"""timm's rotary embeddings against timm itself, the installed modules, over options that released models set."""

import inspect

import pytest
import torch
from generic_helpers import close
from timm.layers import create_rope_embed

from vispe import create_encoding, patch_grid
from vispe.encodings.rope_timm import PRESETS, RopeTimm, Settings

DIM, HEADS = 64, 2
GRIDS = [(3, 5), (5, 3), (1, 4), (4, 1), (7, 7)]


def timm_tables(rope_type, grid, half, **kwargs):
    """sin and cos (N, D / 2) of timm's module."""
    module = create_rope_embed(rope_type, dim=DIM, num_heads=HEADS, **kwargs)
    sin, cos = module.get_embed(list(grid)).chunk(2, dim=-1)
    count = DIM // HEADS // 2
    return (sin[..., :count], cos[..., :count]) if half else (sin[..., ::2], cos[..., ::2])


FAMILIES = [
    ("cat", {}, {"in_pixels": False}, {"reference": "none"}),
    ("cat", {"preset": "eva02"}, {"in_pixels": False, "ref_feat_shape": [16, 16]}, {}),
    ("cat", {"preset": "naver_axial"}, {"in_pixels": False, "grid_indexing": "xy", "temperature": 100.0}, {}),
    ("cat", {"preset": "pe"}, {"in_pixels": False, "grid_indexing": "xy", "grid_offset": 1.0, "ref_feat_shape": [4, 6]}, {}),
    ("cat", {"preset": "pe_gigantic"}, {"in_pixels": False, "grid_indexing": "xy", "ref_feat_shape": [4, 6]}, {}),
    ("cat", {"preset": "pixel"}, {}, {}),
    ("cat", {"preset": "pixel"}, {"linear_bands": True, "max_res": 64}, {"bands": "pixel_linear", "max_res": 64}),
    ("cat", {"preset": "naver_axial"},
     {"in_pixels": False, "grid_indexing": "xy", "temperature": 100.0, "grid_type": "centered", "normalize_coords": "max"},
     {"coords": "centered", "normalize": "max"}),
    ("dinov3", {"preset": "dinov3"}, {"temperature": 100.0}, {}),
    ("dinov3", {"preset": "dinov3"}, {"grid_indexing": "xy", "grid_offset": 0.5}, {"indexing": "xy", "offset": 0.5}),
    ("dinov3", {"preset": "dinov3"}, {"min_period": 0.5, "max_period": 90.0, "normalize_coords": "min"},
     {"periods": (0.5, 90.0), "normalize": "min"}),
    ("mrope", {"preset": "mrope"}, {}, {}),
    ("mrope", {"preset": "mrope"}, {"mrope_section": (2, 1, 3)}, {"sections": (2, 1, 3)}),
]  # fmt: skip


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("rope_type, preset, theirs, ours", FAMILIES)
def test_tables(rope_type, preset, theirs, ours, grid):
    encoding = create_encoding("rope_timm", dim=DIM, num_heads=HEADS, **preset, **ours)
    ctx = encoding.prepare(patch_grid(*grid, train=(4, 6)))
    sin, cos = timm_tables(rope_type, grid, encoding.layout == "half", **theirs)
    pixel = rope_type == "cat" and theirs.get("in_pixels", True)  # angles of hundreds of radians
    close(ctx.sin[0, 0], sin, 2e-4 if pixel else 2e-6)
    close(ctx.cos[0, 0], cos, 2e-4 if pixel else 2e-6)


def test_mixed_tables():
    module = create_rope_embed("mixed", dim=DIM, num_heads=HEADS, depth=3)
    layers = [create_encoding("rope_timm", dim=DIM, num_heads=HEADS, preset="naver_mixed") for _ in range(3)]
    for i, layer in enumerate(layers):
        layer.load_state_dict({"freqs": module.freqs[:, i].flip(0).transpose(0, 1)})  # timm: column first ("xy")
    contexts = RopeTimm.prepare_layers(layers, patch_grid(3, 5))
    sin, cos = module.get_embed([3, 5]).chunk(2, dim=-1)
    close(torch.stack([c.sin[0] for c in contexts]), sin[..., ::2], 2e-6)
    close(torch.stack([c.cos[0] for c in contexts]), cos[..., ::2], 2e-6)


def test_channels_of_xy_on_a_wide_grid():
    """pytorch-image-models PR 2541: token 1 of a 2 x 3 grid stands at x = 1, y = 0, and x comes first."""
    encoding = create_encoding("rope_timm", dim=16, num_heads=1, preset="naver_axial", temperature=10000.0)
    ctx = encoding.prepare(patch_grid(2, 3))
    angle = torch.atan2(ctx.sin, ctx.cos)[0, 0, 1]
    close(angle[:4], 10000.0 ** -(torch.arange(4) / 4))
    assert angle[4:].abs().max() == 0


def test_only_mixed_has_parameters_and_layers():
    for preset, settings in PRESETS.items():
        encoding = create_encoding("rope_timm", dim=DIM, num_heads=HEADS, preset=preset)
        assert encoding.per_layer == bool(list(encoding.parameters())) == (settings.kind == "mixed")


def test_augmentation_in_training_only():
    for preset in ("dinov3", "naver_axial", "mrope"):
        encoding = create_encoding("rope_timm", dim=DIM, num_heads=HEADS, preset=preset, shift=0.2, jitter=1.5, rescale=2.0)
        pos = patch_grid(3, 4)
        still = encoding.eval().coordinates(pos)
        assert torch.equal(encoding.coordinates(pos), still)
        torch.manual_seed(0)
        moved = encoding.train().coordinates(pos)
        assert not torch.equal(moved, still) and not torch.equal(encoding.coordinates(pos), moved)
        ratio = (moved[0, 11] - moved[0, 0]) / (still[0, 11] - still[0, 0])  # free of the shift
        assert (ratio <= 3.0).all() and (ratio >= 1 / 3.0).all()


def test_options_are_the_settings():
    options = set(inspect.signature(RopeTimm).parameters) - {"dim", "num_heads", "axes", "preset", "resize"}
    assert options == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"preset": "eva"}, "preset must be one of"),
        ({"coords": "pixels"}, "coords must be one of"),
        ({"reference": "grid"}, "reference must be"),
        ({"reference": (16,)}, "reference must be"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"preset": "mrope", "indexing": "xy"}, "'mrope' layout 'half' and indexing 'ij'"),
        ({"preset": "naver_mixed", "layout": "half"}, "'mixed' needs layout 'interleaved'"),
        ({"preset": "naver_mixed", "coords": "centered"}, "counts cells"),
        ({"rescale": 0.5}, "rescale >= 1"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        create_encoding("rope_timm", dim=DIM, num_heads=HEADS, **options)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_one_graph_for_all_grids(preset):
    encoding = create_encoding("rope_timm", dim=DIM, num_heads=HEADS, preset=preset)
    torch._dynamo.reset()
    graphs = []

    def eager(graph, inputs):
        graphs.append(graph)
        return graph

    @torch.compile(backend=eager, fullgraph=True, dynamic=True)
    def run(tokens):
        ctx = encoding.prepare(patch_grid(tokens.shape[0], tokens.shape[1], train=(4, 6)))
        return ctx.cos, ctx.sin

    for grid in ((4, 6), (5, 3), (8, 2)):
        ctx = encoding.prepare(patch_grid(*grid, train=(4, 6)))
        for a, b in zip(run(torch.zeros(grid)), (ctx.cos, ctx.sin)):
            close(a, b, 2e-4)
    assert 1 <= len(graphs) <= 2
