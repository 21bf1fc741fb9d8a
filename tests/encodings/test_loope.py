"""The Hilbert curve, and LOOPE's content part in a ViT."""

import math

import pytest
import torch
from generic_helpers import DIM, TINY, close, images
from torch.export import Dim

from vispe import create_encoding, patch_grid
from vispe.encodings.gilbert import gilbert_order
from vispe.models import EncodedVisionTransformer
from vispe.positions import custom_positions, with_image


@pytest.mark.parametrize("height", range(1, 13))
@pytest.mark.parametrize("width", [1, 2, 5, 8, 13])
def test_the_curve_visits_every_cell_by_single_steps(height, width):
    order = gilbert_order(height, width)
    assert order.sort().values.equal(torch.arange(height * width)) and order[0] == 0
    cell = order.argsort()
    steps = torch.stack((cell // width, cell % width)).diff(dim=1).abs()
    assert (steps.amax(0) == 1).all()
    assert (steps.sum(0) == 2).sum() <= (height * width > 1 and (height % 2 or width % 2))  # diagonal steps


def test_the_table_is_a_sinusoid_of_the_order():
    encoding = create_encoding("loope", dim=8, num_heads=2)
    table = encoding.prepare(patch_grid(3, 5, prefix=1))[0]
    assert not table[0].any()
    for n, place in enumerate(gilbert_order(3, 5).tolist()):
        angles = [place / 10000 ** (2 * k / 8) for k in range(4)]
        close(table[n + 1], torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles]), 1e-5)


def host(seed=0, **kwargs):
    torch.manual_seed(seed)
    return EncodedVisionTransformer(encoding="loope", encoding_kwargs={"content": "image"}, **{**TINY, **kwargs})


def test_content_in_a_host():
    """Each image has places of its own, less than one apart from the order; every parameter learns; other sizes work."""
    model = host().train()
    x = images()
    places = model.encoding["loope"].places(with_image(model.positions(4, 6), x))
    away = places - gilbert_order(4, 6)
    assert places.shape == (2, 24) and away.abs().max() < 1 and (away[0] - away[1]).abs().max() > 1e-3
    model.forward_features(x).square().sum().backward()
    for name, p in model.encoding.named_parameters():
        assert p.grad is not None and p.grad.abs().max() > 0, name
    model.eval()
    for size in [(32, 48), (64, 40), (8, 8)]:
        assert model(images(*size)).isfinite().all()
    close(model(x)[:1], model(x[:1]))  # no image sees another
    model.set_input_size((64, 40))  # the N x N layer stays that of the train grid
    other = host(1, img_size=(64, 40), train_size=(32, 48)).eval()
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(x), model(x))


def test_content_compiles_and_exports():
    """One graph for the first size and one for all others; one program for any size."""
    model, graphs = host().eval(), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=count)
    shapes = {"x": {0: Dim("batch"), 2: 8 * Dim("rows", min=2), 3: 8 * Dim("cols", min=2)}}
    with torch.no_grad():
        program = torch.export.export(model, (images(32, 48),), dynamic_shapes=shapes).module()
        for size in [(32, 48), (48, 32), (64, 64), (40, 56)]:
            close(compiled(images(*size)), model(images(*size)), 1e-5)
            close(program(images(*size, batch=3)), model(images(*size, batch=3)), 1e-5)
    torch.compiler.reset()
    assert len(graphs) <= 2


def test_running_statistics_are_those_of_a_batch_norm():
    content = host().encoding["loope"].content.train()
    x = torch.randn(4, 1, 3, 5) * 3 + 1
    twin = torch.nn.BatchNorm2d(1).train()
    close(content.normalise(x), twin(x), 1e-6)
    close(content.norm.running_mean, twin.running_mean, 1e-6)
    close(content.norm.running_var, twin.running_var, 1e-6)
    close(content.eval().normalise(x), twin.eval()(x), 1e-6)


def test_content_of_dropped_tokens_and_half_precision():
    model = host().eval()
    encoding, pos = model.encoding["loope"], with_image(model.positions(4, 6), images())
    keep = torch.tensor([[5, 0, 23], [7, 1, 2]])
    close(encoding.places(pos.take(keep)), encoding.places(pos).gather(1, keep), 1e-6)
    assert encoding.bfloat16().prepare(pos).dtype == torch.float32


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda e: e.prepare(patch_grid(4, 6)), "needs the image; add it with with_image"),
        (lambda e: e.prepare(with_image(patch_grid(4, 6), torch.zeros(1, 3, 64, 96))), r"\(8, 8\) pixels, got \(3, 64, 96\)"),
        (lambda e: e.prepare(with_image(patch_grid(4, 6), torch.zeros(1, 4, 32, 48))), "images of 3 channels"),
        (lambda e: e.prepare(custom_positions(torch.zeros(3, 2))), "custom coordinates"),
        (lambda e: with_image(patch_grid(4, 6), torch.zeros(1, 3, 30, 48)), r"\(30, 48\) pixels does not divide into \(4, 6\)"),
        (lambda e: with_image(patch_grid(4, 6), torch.zeros(3, 32, 48)), "channels, height, width"),
        (lambda e: with_image(custom_positions(torch.zeros(3, 2)), torch.zeros(1, 3, 32, 48)), "patch_grid"),
        (lambda e: create_encoding("loope", dim=DIM, num_heads=2, content="image"), "needs patch_size"),
        (lambda e: create_encoding("loope", dim=DIM, num_heads=2, content="pixels"), "'none' or 'image', got 'pixels'"),
    ],
)  # fmt: skip
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call(host().encoding["loope"])
