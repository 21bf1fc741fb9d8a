"""Compiling, exporting and meta-device loading of a ViT with every encoding.

The counting backend runs the traced graph as it is: what it counts (graphs, and that there is no break) is dynamo's part, which
is the same for every backend. One name of each kind goes through the whole compiler.
"""

import copy

import pytest
import timm
import torch
from generic_helpers import CAMERAS, TINY, ZOO, close, images, vit
from torch.export import Dim

FOUR = [(32, 48), (48, 32), (64, 64), (40, 56)]
# One name for each way of compiling: all others of its kind make the same graph with other numbers.
WHOLE = ["learned", "rope_mixed", "comrope", "irpe_qkv", "cpe", "gta2d"]


class Counter:
    """A dynamo backend that counts graphs."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("variant", ZOO)
def test_two_graphs_for_four_resolutions(variant):
    """One graph, without a break, for the first size, and one for all others."""
    model, counter = vit(variant, depth=1), Counter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.no_grad():
        for size in FOUR:
            got, want = compiled(images(*size)), model(images(*size))
            # products batched by view take another path where the number of tokens is symbolic
            close(got, want, 1e-6) if variant in CAMERAS else close(got, want, 0.0)
    assert 1 <= counter.graphs <= 2


@pytest.mark.parametrize("variant", WHOLE)
def test_a_compiled_training_step(variant):
    """Ahead-of-time autograd through the whole model; equal gradients at two sizes."""
    model = vit(variant, depth=1).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in FOUR[:2]:
        grads = []
        for run in (model, compiled):
            model.zero_grad()
            run(images(*size)).square().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads):
            close(a, b, 1e-4)


def test_inductor():
    model = vit("comrope", depth=1)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        close(compiled(images(40, 56)), model(images(40, 56)), 1e-4)


@pytest.mark.parametrize("variant", ZOO)
def test_export_with_dynamic_sizes(variant):
    """One program for any batch, height and width; equal to the model at sizes that it was not traced with."""
    model = vit(variant)
    shapes = {"x": {0: Dim("batch"), 2: 8 * Dim("rows", min=2), 3: 8 * Dim("cols", min=2)}}
    program = torch.export.export(model, (images(32, 48),), dynamic_shapes=shapes).module()
    for size, batch in [((32, 48), 2), ((40, 56), 3), ((64, 24), 5)]:
        close(program(images(*size, batch=batch)), model(images(*size, batch=batch)), 1e-5)


@pytest.mark.parametrize("variant", ZOO)
def test_meta_device(variant):
    """Built without memory, given memory, loaded: equal to the original, so nothing lives outside the state dict."""
    model, x = vit(variant), images(40, 56)
    with torch.device("meta"):
        empty = timm.create_model(f"vit_ti_{variant}", **TINY)
    assert all(p.is_meta for p in empty.parameters())
    shell = empty.to_empty(device="cpu").eval()
    for t in (*shell.parameters(), *shell.buffers()):
        t.data.fill_(float("nan"))
    shell.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(shell(x), model(x))


@pytest.mark.parametrize("variant", ZOO)
def test_device_and_dtype_arguments(variant):
    meta = timm.create_model(f"vit_ti_{variant}", device="meta", **TINY)
    assert all(p.is_meta for p in meta.parameters())
    double = timm.create_model(f"vit_ti_{variant}", dtype=torch.float64, **TINY).eval()
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    assert double(images().double()).dtype == torch.float64
    close(copy.deepcopy(double).float()(images()), double(images().double()).float(), 1e-4)
