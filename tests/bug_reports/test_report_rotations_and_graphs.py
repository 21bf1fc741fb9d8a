"""Rotations, ComRoPE, LieRE and DINOv3, attention and compiled graphs: public reports and the right values.

One test a report with its smallest input, named by a repository and a number; the first line says what went wrong there.
"""

import copy
import math

import pytest
import torch
from report_helpers import close, encoding, images, vit

from vispe.encodings import ENCODINGS, create_encoding
from vispe.encodings.functional import rotate
from vispe.encodings.rotary import Rotary
from vispe.layers import attend
from vispe.positions import custom_positions, patch_grid

# ---- rotations ----------------------------------------------------------------------------------------------------------


def test_vggt_omega_35_wavelengths_have_a_unit():
    """theta means nothing without the unit of the coordinates: wavelengths in patches, 16 pairs an axis, theta 100."""
    index, normalised = encoding("rope_axial", theta=100.0), encoding("rope_dinov3", base=100.0)
    last = 100 ** (15 / 16)
    for side in (14, 37):
        grid = (side, side)
        for e, first in ((index, 2 * math.pi), (normalised, side / 2)):
            waves = e.wavelengths(grid)[0]
            assert waves.min().item() == pytest.approx(first, rel=1e-4)
            assert waves.max().item() == pytest.approx(first * last, rel=1e-4)
    assert index.wavelengths((14, 14)).max().item() == pytest.approx(471, abs=0.5)
    assert normalised.wavelengths((14, 14)).max().item() == pytest.approx(525, abs=0.5)
    assert normalised.wavelengths((37, 37)).max().item() == pytest.approx(1387, abs=1)


@pytest.mark.parametrize("name", [n for n, cls in ENCODINGS.items() if issubclass(cls, Rotary)])
def test_megatron_7465_no_turn_at_the_origin(name):
    """cos of cos, .5403 at position 0, where nothing may turn."""
    e = encoding(name)
    ctx = e.prepare(custom_positions(torch.zeros(3, 2)))
    q, k = torch.randn(2, 1, 2, 3, 64).unbind(0)
    a, b = e.qk(q, k, ctx, ctx)
    close(a @ b.mT, q @ k.mT, 1e-4)


@pytest.mark.parametrize("name", ["rope_axial", "rope_dinov3", "gta2d"])
def test_open_lm_4_tokens_turn_and_heads_do_not(name):
    """Rotation ran along the heads, unnoticed when there were as many heads as tokens."""
    torch.manual_seed(0)
    e = create_encoding(name, dim=48, num_heads=3)
    ctx = e.prepare(custom_positions(torch.arange(6.0).view(3, 2)))
    same = torch.randn(1, 1, 1, 16).expand(1, 3, 3, 16)
    q, _ = e.qk(same, same, ctx, ctx)
    assert torch.equal(q[:, 0], q[:, 1]) and torch.equal(q[:, 0], q[:, 2])  # heads alike
    assert (q[0, 0, 0] - q[0, 0, 1]).abs().max() > 0.1  # tokens apart
    x = torch.randn(1, 3, 3, 16)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(e.qk(x[:, order], x, ctx, ctx)[0], e.qk(x, x, ctx, ctx)[0][:, order])


def test_rotary_embedding_torch_11_offsets_count():
    """A cache that did not know offsets returned the angles of the first call."""
    e = encoding("rope_axial")
    pos = patch_grid(4, 4)
    e.prepare(pos)
    moved = e.prepare(custom_positions(pos.coords[0] + 10))
    omega = e.frequencies()[0].sum(0)  # every pair turns with one axis
    a, b = e.prepare(pos), moved
    turn = torch.atan2(b.sin * a.cos - b.cos * a.sin, b.cos * a.cos + b.sin * a.sin)[0, 0]
    want = torch.remainder(10 * omega + math.pi, 2 * math.pi) - math.pi
    close(turn, want.expand_as(turn), 1e-5)


@pytest.mark.parametrize("variant", ["rope_mixed", "comrope", "gta2d", "rope_dinov3"])
def test_diffusers_12668_no_complex_numbers_in_graphs(variant):
    """Complex rotations break compilers and exporters."""
    program = torch.export.export(vit(variant), (images(),))
    assert not any("complex" in str(node.target) or "polar" in str(node.target) for node in program.graph.nodes)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert not any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def test_timm_2541_columns_are_not_rows():
    """In "xy" order on a non-square grid, token 1 is at x = 1, y = 0."""
    angle = encoding("rope_axial").prepare(patch_grid(2, 3))
    angle = torch.atan2(angle.sin, angle.cos)[0, 0]  # channel pairs: 16 of x, then 16 of y
    close(angle[[0, 1, 3]][:, [0, 16]], torch.tensor([[0.0, 0], [1, 0], [0, 1]]))


def test_timm_2794_dtype_of_queries_stays():
    """float32 tables turned bfloat16 queries into float32."""
    for name in ("rope_axial", "rope_mixed", "comrope", "rope_dinov3", "gta2d"):
        e = encoding(name)
        ctx = e.prepare(patch_grid(4, 4))
        q = torch.randn(1, 2, 16, 64, dtype=torch.bfloat16)
        a, b = e.qk(q, q, ctx, ctx)
        assert a.dtype == b.dtype == e.v(q, ctx).dtype == torch.bfloat16 and ctx.cos.dtype == torch.float32
    table = encoding("rope_axial").bfloat16().prepare(patch_grid(64, 64))
    assert (table.cos[0, 0, :64, 0] - torch.arange(64, dtype=torch.float64).cos()).abs().max() < 2e-3


@pytest.mark.parametrize("variant", ["rope_axial", "rope_mixed", "comrope", "sincos2d", "learned", "irpe"])
def test_rope_vit_equal_counts_are_not_equal_grids(variant):
    """A grid was recognised by its number of tokens: 2 x 8 patches ran with the positions of 4 x 4."""
    model = vit(variant)
    for p in model.encoding.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    x = torch.randn(1, 16, 64)
    outs = []
    for grid in ((4, 4), (2, 8), (16, 1)):
        y, ctx = model.start(x, model.positions(*grid))
        for i in range(2):
            y = model.run_block(i, y, ctx)
        outs.append(y)
    assert min((outs[0] - outs[1]).abs().max(), (outs[0] - outs[2]).abs().max(), (outs[1] - outs[2]).abs().max()) > 1e-4


@pytest.mark.parametrize("variant", ["rope_mixed", "irpe", "learned"])
def test_a_transposed_image_is_a_transposed_grid(variant):
    """5 x 7 and 7 x 5 differ, and are each other's transpose: kernels and axes swapped, the class token sees no difference."""
    model = vit(variant, img_size=(40, 56))
    for p in model.encoding.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    x = images(40, 56)
    twin = copy.deepcopy(model)
    twin.patch_embed.proj.weight.data = model.patch_embed.proj.weight.data.mT.contiguous()
    if variant == "learned":
        twin.set_input_size((56, 40))
        table = model.encoding["learned"].pos_embed.data
        body = table[:, 1:].view(1, 5, 7, 64).transpose(1, 2).flatten(1, 2)
        twin.encoding["learned"].pos_embed.data = torch.cat((table[:, :1], body), dim=1)
    for layer in twin.encoding[variant] if variant != "learned" else []:
        if variant == "rope_mixed":
            layer.freqs.data = layer.freqs.data.flip(1)
        else:
            cells = layer.k[0].data[..., :-1].unflatten(-1, (7, 7)).transpose(-1, -2).flatten(-2)
            layer.k[0].data = torch.cat((cells, layer.k[0].data[..., -1:]), dim=-1)
    close(twin(x.mT.contiguous()), model(x))
    assert (twin(x) - model(x)).abs().max() > 1e-4


def test_rope_vit_training_step_of_mixed_frequencies():
    """Writing rotated queries into a view made the float32 backward fail, compiled or not."""
    model = vit("rope_mixed").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (model, compiled):
        model.zero_grad()
        run(images()).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads):
        close(a, b, 1e-4)
    torch.compiler.reset()


# ---- ComRoPE, LieRE, DINOv3 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["comrope_ap", "comrope_ld"])
def test_comrope_matrices(name):
    """Orthogonal in float32, commuting, the identity for S = 0 (with a finite, non-zero gradient), prefix turned at 1/2."""
    e = encoding(name)
    r = e.matrices(patch_grid(5, 7, prefix=1))
    close(r @ r.mT, torch.eye(8).expand_as(r), 1e-5)
    close(r[:, :1] @ r[:, 5:6], r[:, 5:6] @ r[:, :1], 1e-5)
    assert (r[:, 0] - torch.eye(8)).abs().max() > 0.1
    q, k, v = torch.randn(3, 1, 2, 35, 64).unbind(0)
    here, there = (e.prepare(custom_positions(patch_grid(5, 7).to("unit", "rescale")[0] + o)) for o in (0.0, 1.7))
    (a, b), (c, d) = e.qk(q, k, here, here), e.qk(q, k, there, there)
    close(a @ b.mT, c @ d.mT, 1e-4)
    e.skew.data.zero_()
    ctx = e.prepare(patch_grid(5, 7))
    a, b = e.qk(q, k, ctx, ctx)
    close(a @ b.mT, q @ k.mT, 1e-4)
    attend(q, k, v, e, ctx, ctx, scale=0.125).square().sum().backward()
    assert e.skew.grad.isfinite().all() and e.skew.grad.abs().max() > 0


def test_comrope_autocast_step_and_multipliers():
    """A bfloat16 autocast step runs; shared and per-head multipliers have the sizes of code and paper."""
    model = vit("comrope").train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(images()).square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert encoding("comrope").multiplier.shape == (1, 2, 8)
    assert encoding("comrope", multiplier="per_head").multiplier.shape == (2, 2, 8)


def test_rope_vit_12_a_third_axis_starts_turning():
    """A third table of frequencies that starts at zero never takes part."""
    freqs = create_encoding("rope_mixed", dim=96, num_heads=2, axes=3).freqs
    assert (freqs.abs().amax(dim=-1) > 1e-3).all()


def test_dinov3_draws_only_in_training():
    """Shift, jitter and rescale: one draw a forward in train(), none in eval(); "separate" on a non-square image."""
    e = encoding("rope_dinov3", shift=0.2, jitter=1.2, rescale=2.0)
    pos = patch_grid(3, 5)
    assert torch.equal(e.prepare(pos).cos, encoding("rope_dinov3").prepare(pos).cos)
    coords = e.coordinates(pos)[0].view(3, 5, 2)
    close(coords[:, 0, 0], torch.tensor([-2 / 3, 0, 2 / 3]))
    close(coords[0, :, 1], torch.tensor([-0.8, -0.4, 0, 0.4, 0.8]))
    e.train()
    a, b = e.prepare(pos).cos, e.prepare(pos).cos
    assert not torch.equal(a, b)
    torch.manual_seed(3)
    first = e.prepare(pos).cos
    torch.manual_seed(3)
    assert torch.equal(first, e.prepare(pos).cos)
    model = vit("rope_dinov3", encoding_kwargs={"rescale": 2.0}).train()
    _, ctx = model.start(torch.randn(1, 16, 64), model.positions(4, 4))
    contexts = [model.encoding.layer(ctx, i)[1] for i in range(2)]
    assert torch.equal(contexts[0].cos, contexts[1].cos)  # one draw for all layers


def test_contiguity_of_matrix_exponentials():
    """torch.matrix_exp fails on some strided inputs, such as the results of einsum."""
    r = encoding("comrope").matrices(patch_grid(3, 3).take(torch.tensor([[0, 4], [8, 2]])))
    assert r.shape == (2, 2, 2, 8, 8, 8) and r.isfinite().all()


# ---- attention, compilation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["contextual", "bias"])
def test_x_transformers_347_biases_get_gradients(mode):
    """A bias was ignored, or got no gradient, in fused attention."""
    grads, outs = [], []
    for fused in (True, False):
        e = encoding("irpe", mode=mode, on="qk", shared_head=False)
        for p in e.parameters():
            p.data.add_(0.1)
        ctx = e.prepare(patch_grid(3, 4))
        torch.manual_seed(1)
        q, k, v = torch.randn(3, 2, 2, 12, 64).unbind(0)
        out = attend(q, k, v, e, ctx, ctx, scale=0.125, fused=fused)
        (out * torch.randn_like(out)).sum().backward()
        grads.append([p.grad for p in e.parameters()])
        outs.append(out)
    want = ((q @ k.mT) * 0.125 + e.bias(q, k, ctx, ctx)).softmax(-1) @ v
    close(outs[0], want)
    for a, b in zip(*grads):
        assert a.abs().max() > 0
        close(a, b)


def test_pytorch_150702_two_graphs_for_four_sizes():
    """A message with the size in it tied a graph to each resolution; equal sides tied height to width."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = vit("rope_mixed_ape")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=count, dynamic=True)
    with torch.no_grad():
        for size in ((64, 64), (32, 48), (48, 32), (40, 56)):
            close(compiled(images(*size)), model(images(*size)))
    torch.compiler.reset()
    assert len(graphs) <= 2


def test_layouts_of_pairs_differ():
    """Interleaved and half layouts, taken for each other, run without an error and give other numbers."""
    x, angle = torch.randn(1, 1, 3, 8), torch.rand(1, 1, 3, 4)
    a, b = (rotate(x, angle.cos(), angle.sin(), layout) for layout in ("interleaved", "half"))
    assert (a - b).abs().max() > 0.1
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    close(rotate(x[..., order], angle.cos(), angle.sin(), "half"), a[..., order])
