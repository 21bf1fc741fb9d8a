"""SeqPE beside its parity cases: one run of the network a grid, injection in whole ViTs, losses and samplers, errors."""

import math

import pytest
import torch
from generic_helpers import DIM, HEADS, close, excite, images, vit

from vispe import create_encoding, patch_grid
from vispe.encodings.seqpe_loss import contrastive_loss, nearest_candidate, sample_candidates, sample_windows, transfer_loss
from vispe.encodings.seqpe_net import DigitEncoder, digits
from vispe.positions import custom_positions, full_grid


def seqpe(**options):
    torch.manual_seed(0)
    return excite(create_encoding("seqpe", dim=DIM, num_heads=HEADS, depth=2, **options)).eval()


@pytest.mark.parametrize("method", ["attn_mul", "attn_add", "attn_scalar", "input_add"])
@pytest.mark.parametrize("heads", ["split", "shared"])
@pytest.mark.parametrize("projection", ["per_layer", "shared"])
def test_every_combination_in_a_vit(method, heads, projection):
    """Trains all its parameters, with patch dropping too; a strict state."""
    if method == "input_add" and heads == "shared":
        with pytest.raises(ValueError, match="use heads='split'"):
            seqpe(method=method, heads=heads)
        return
    options = {"method": method, "heads": heads, "projection": projection}
    model = vit("seqpe", encoding_kwargs=options, patch_drop_rate=0.5).train()
    tokens = model.forward_features(images())
    (tokens * torch.randn_like(tokens)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.encoding.parameters())
    count = sum("pe_qk.weight" in n for n, _ in model.encoding.named_parameters())
    assert count == (0 if method == "input_add" else 2 if projection == "per_layer" else 1)
    assert sum(isinstance(m, DigitEncoder) for m in model.encoding.modules()) == 1


def test_the_network_runs_once_a_grid_at_batch_one():
    """Whatever the batch, and whatever was dropped from each image of it."""
    model, sizes = vit("seqpe", patch_drop_rate=0.5), []
    model.encoding.first("seqpe").net.register_forward_pre_hook(lambda _, args: sizes.append(tuple(args[0].shape)))
    model(images(batch=3))
    model.train()(images(batch=3))
    assert sizes == [(24, 2), (24, 2)]


def test_a_shifted_window_is_a_part_of_the_range():
    encoding = seqpe()
    whole, part = (encoding.prepare(p) for p in (full_grid((30, 30)), full_grid((30, 30)).crop((11, 4), (3, 5))))
    index = torch.tensor([(11 + r) * 30 + 4 + c for r in range(3) for c in range(5)])
    close(part.q, whole.q[:, :, index], 1e-5)


def test_parameters_of_the_papers_network():
    """3.70 million for ViT-S (384 channels, 2 layers, 2 digits), as counted with the official code."""
    net = DigitEncoder(axes=2, max_digits=2, width=384, out_dim=384)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(3.70, abs=0.01)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: seqpe().prepare(patch_grid(101, 4)), "from 0 to 99 .2 digits., got values from 0 to 100"),
        (lambda: digits(torch.tensor([[3, -1]]), 2), "got values from -1"),
        (lambda: digits(torch.tensor([[3, 0.5]]), 2), "whole numbers"),
        (lambda: seqpe().prepare(custom_positions(torch.zeros(3, 2))), "custom coordinates"),
        (lambda: seqpe(prefix=1).prepare(patch_grid(3, 4)), "made for 1 prefix tokens, got 0; create it with prefix=0"),
        (lambda: seqpe(layer=1).prepare(patch_grid(3, 4)), "the network belongs to the first layer"),
        (lambda: seqpe(method="mul"), "method must be one of"),
        (lambda: seqpe(net_width=10, net_heads=3), "width=10, heads=3"),
        (lambda: DigitEncoder(axes=2, max_digits=2, width=8, out_dim=8, attention="full"), "'causal' or 'bi'"),
        (lambda: sample_windows((60, 60), 2, 3), "no window of"),
        (lambda: transfer_loss(torch.ones(1, 2, 4), torch.ones(1, 2, 4), reduction="sum"), "reduction must be"),
        (lambda: transfer_loss(torch.ones(1, 2, 4), torch.ones(1, 2, 4), metric="js"), "metric must be"),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_three_digits_reach_further():
    assert seqpe(max_digits=3).prepare(patch_grid(1, 101)).q.isfinite().all()


# ---- losses -------------------------------------------------------------------------------------------------------------


def test_contrastive_loss_against_a_loop():
    g = torch.Generator().manual_seed(0)
    pivot, candidates = torch.randn(3, 6, generator=g), torch.randn(3, 5, 6, generator=g)
    nearest = torch.tensor([4, 0, 2])
    for heads in (1, 2):
        terms = []
        for b in range(3):
            for part in range(heads):
                cut = slice(part * 6 // heads, (part + 1) * 6 // heads)
                scores = [(pivot[b, cut] @ candidates[b, c, cut]).item() for c in range(5)]
                terms.append(math.log(sum(map(math.exp, scores))) - scores[nearest[b]])
        got = contrastive_loss(pivot, candidates, nearest, num_heads=heads)
        assert got.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_transfer_loss_moves_what_beta_says():
    g = torch.Generator().manual_seed(0)
    main, shifted = (torch.randn(2, 4, 6, generator=g, requires_grad=True) for _ in range(2))
    loss = transfer_loss(main, shifted, num_heads=2)
    close(transfer_loss(main, shifted, num_heads=2, reduction="batchmean"), 4 * loss, 1e-6)
    assert transfer_loss(main, main.detach() * 1.0).abs() < 1e-7 and loss > 0
    similar = [torch.stack([(t[b, :, c] @ t[b, :, c].T).log_softmax(-1) for b in (0, 1) for c in (slice(3), slice(3, 6))])
               for t in (main, shifted)]
    close(transfer_loss(main, shifted, num_heads=2, metric="mse"), (similar[0] - similar[1]).square().mean(), 1e-6)
    loss.backward()
    assert main.grad is None and shifted.grad.abs().max() > 0
    transfer_loss(main, shifted, beta=0.0).backward()
    assert main.grad.abs().max() > 0


def test_sampled_candidates():
    g = torch.Generator().manual_seed(0)
    pivot = torch.randint(100, (400, 2), generator=g)
    plain = sample_candidates(pivot, 64, shares=(0.0, 0.0), generator=g)
    mixed = sample_candidates(pivot, 64, generator=g)
    for c in (plain, mixed):
        assert c.shape == (400, 64, 2) and c.min() >= 0 and c.max() < 100
        assert not (c == pivot[:, None]).all(-1).any()

    def local(c):
        return ((c.amax(1) - c.amin(1)) < 14).all(-1).float().mean()

    def hard(c):  # the first fifth keeps one axis and changes one digit of the other
        first, p = c[:, :12], pivot[:, None]
        changed = (first // 10 != p // 10).int().sum(-1) + (first % 10 != p % 10).int().sum(-1)
        return (changed == 1).all(-1).float().mean()

    assert local(plain) == 0 == hard(plain)
    assert local(mixed).item() == pytest.approx(0.2, abs=0.07) and hard(mixed).item() == pytest.approx(0.3, abs=0.07)
    label = nearest_candidate(pivot, mixed)
    distance = (mixed - pivot[:, None]).square().sum(-1)
    assert torch.equal(distance.gather(1, label[:, None])[:, 0], distance.amin(1))


def test_sampled_windows():
    cells, moved = sample_windows((14, 10), 50, 8, generator=torch.Generator().manual_seed(0))
    shift = moved - cells
    assert (shift == shift[:, :1]).all() and moved.max() < 100
    assert (cells < torch.tensor([14, 10])).all() and (cells >= 0).all()
    assert ((shift[:, 0, 0] >= 14) | (shift[:, 0, 1] >= 10)).all()


def test_a_step_with_both_regularisers():
    encoding = seqpe().train()
    g = torch.Generator().manual_seed(0)
    pivot = torch.randint(100, (4, 2), generator=g)
    candidates = sample_candidates(pivot, 6, generator=g)
    vectors = encoding.net(candidates.flatten(0, 1)).unflatten(0, (4, 6))
    near = contrastive_loss(encoding.net(pivot), vectors, nearest_candidate(pivot, candidates))
    cells, moved = (encoding.net(c.flatten(0, 1)).unflatten(0, (3, 5)) for c in sample_windows((4, 6), 3, 5, generator=g))
    (near + transfer_loss(cells, moved, num_heads=HEADS)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoding.net.parameters())
