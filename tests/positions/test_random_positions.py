"""RPE-2D: the law of the draws, generators, inference, hosts' view, time shift and micro-conditioning."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from vispe.encodings import ENCODINGS, create_encoding
from vispe.models import EncodedVisionTransformer
from vispe.positions import (
    NO_CROP,
    RandomPositions,
    custom_positions,
    draw_crop,
    patch_grid,
    resize_and_crop,
    step_generator,
    video_grid,
)
from vispe.positions.extrapolate import log_n_scale
from vispe.positions.random import Inference, inference_positions, order_statistics, ordered_positions
from vispe.positions.time_shift import log_snr, shift_ddpm, shift_factor, shift_flow, shift_flow_to_data


@pytest.mark.parametrize("count, places", [(1, 4), (4, 7), (3, 3), (5, 6)])
def test_the_law_is_that_of_all_subsets(count, places):
    subsets = torch.tensor(list(combinations(range(places), count)))
    law = order_statistics(count, places)
    for k in range(count):
        share = torch.bincount(subsets[:, k], minlength=places).double() / len(subsets)
        torch.testing.assert_close(law.pmf[k], share, rtol=1e-12, atol=1e-15)
    if count > 1:
        for k in range(count - 1):
            share = torch.bincount(subsets[:, k + 1] - subsets[:, k] - 1, minlength=places - count + 1).double() / len(subsets)
            torch.testing.assert_close(law.gaps, share, rtol=1e-12, atol=1e-15)
    place = torch.arange(places, dtype=torch.float64)
    torch.testing.assert_close(inference_positions(count, places, "expected"), law.pmf @ place)


def test_draws_follow_the_law():
    """20000 draws: every subset within 5 standard deviations of its share, ascending, never a place twice."""
    draws = ordered_positions(3, 6, batch=20000, generator=torch.Generator().manual_seed(0))
    assert draws.dtype == torch.int64 and (draws.diff(dim=1) >= 1).all() and draws.min() >= 0 and draws.max() <= 5
    code = (draws * torch.tensor([36, 6, 1])).sum(1)
    seen, counts = code.unique(return_counts=True)
    assert len(seen) == 20
    assert (counts - 1000).abs().max() < 5 * (20000 * 0.05 * 0.95) ** 0.5
    big = ordered_positions(16, 32, batch=5000, generator=torch.Generator().manual_seed(1))
    law = order_statistics(16, 32)
    found = torch.stack([torch.bincount(big[:, k], minlength=32) for k in range(16)]).double() / 5000
    assert ((found - law.pmf).abs() <= 5 * (law.pmf * (1 - law.pmf) / 5000).sqrt() + 1e-3).all()
    assert torch.equal(ordered_positions(9, 9, generator=None)[0], torch.arange(9))


def test_rows_columns_and_samples_are_independent():
    pos = RandomPositions()(patch_grid(4, 6, train=(4, 6)), batch=2000, generator=torch.Generator().manual_seed(0))
    assert pos.coords.shape == (2000, 24, 2) and pos.extent == pos.train == (8, 12) and pos.grid is None
    rows, cols = pos.coords.view(2000, 4, 6, 2).unbind(-1)
    assert torch.equal(rows, rows[:, :, :1].expand_as(rows)) and torch.equal(cols, cols[:, :1].expand_as(cols))
    rows, cols = rows[:, :, 0], cols[:, 0]
    assert (rows.diff(dim=1) >= 1).all() and (cols.diff(dim=1) >= 1).all()
    both = torch.stack((rows[:, 1], cols[:, 2], rows[:, 1].roll(1)))
    assert (torch.corrcoef(both) - torch.eye(3)).abs().max() < 0.1
    assert torch.equal(pos.indices.float(), pos.coords[..., 0] * 12 + pos.coords[..., 1])
    one = RandomPositions(draws="per_batch")(patch_grid(4, 6), batch=8, generator=torch.Generator().manual_seed(0))
    assert one.coords.shape == (1, 24, 2)


def test_generators_differ_by_rank_and_step_and_come_back():
    grid, policy = patch_grid(8, 8), RandomPositions()

    def draw(rank, step, seed=0):
        return policy(grid, batch=2, generator=step_generator(seed, rank=rank, step=step)).coords

    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    places = [draw(*a) for a in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0, 1)]]
    assert all(not torch.equal(a, b) for a, b in combinations(places, 2))
    assert torch.equal(draw(1, 1), places[3])  # a resumed run
    assert torch.equal(torch.random.get_rng_state(), before)


def test_evaluation_never_draws():
    before = torch.random.get_rng_state()
    pos = RandomPositions(inference="linspace")(patch_grid(3, 6, train=(4, 4)), batch=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert pos.coords.shape == (1, 18, 2) and pos.extent == (8, 8)
    assert pos.coords[0, :6, 1].tolist() == pytest.approx([1.4 * i for i in range(6)])
    assert pos.coords[0, ::6, 0].tolist() == [0, 3.5, 7]
    assert torch.equal(RandomPositions()(patch_grid(8, 8, train=(4, 4))).coords, patch_grid(8, 8).coords)


def test_dropped_tokens_keep_their_place():
    grid, keep = patch_grid(3, 4, prefix=2), torch.tensor([[0, 5, 11], [2, 3, 4]])
    policy, draws = RandomPositions(), dict(batch=2, generator=step_generator(3))
    whole = policy(grid, **draws)
    some = policy(grid.take(keep), batch=2, generator=step_generator(3))
    assert torch.equal(some.coords, whole.take(keep).coords) and some.prefix == 2
    assert torch.equal(some.indices, whole.indices.gather(1, keep))
    video = RandomPositions(span=(1, 2, 2))(video_grid(3, 2, 2), batch=1, generator=step_generator(0))
    assert video.coords[0, ::4, 0].tolist() == [0, 1, 2] and video.extent == (3, 4, 4)


GRID_FREE = [n for n, c in ENCODINGS.items() if 2 in c.card.axes and c.card.needs == ("coords",) and not hasattr(c, "set_grid")]


@pytest.mark.parametrize("name", GRID_FREE)
def test_any_base_encoding(name):
    """A sample of a batch has the contexts that its own positions give alone."""
    torch.manual_seed(0)
    encoding = create_encoding(name, dim=96, num_heads=2, depth=1).eval()
    pos = RandomPositions()(patch_grid(3, 4), batch=2, generator=step_generator(0))
    x, qkv = torch.randn(2, 12, 96), torch.randn(2, 3, 2, 12, 48).unbind(1)
    both = encoding.prepare(pos)
    for i in (0, 1):
        alone = encoding.prepare(replace(pos, coords=pos.coords[i : i + 1], indices=pos.indices[i : i + 1]))
        torch.testing.assert_close(encoding.tokens(x, both)[i : i + 1], encoding.tokens(x[i : i + 1], alone))
        some = [t[i : i + 1] for t in qkv]
        for a, b in zip(encoding.qk(qkv[0], qkv[1], both, both), encoding.qk(some[0], some[1], alone, alone)):
            torch.testing.assert_close(a[i : i + 1], b, rtol=1e-5, atol=1e-5)


def test_learned_tables_gather_by_cell():
    policy = RandomPositions(inference="linspace_int")
    table = create_encoding("learned", dim=8, num_heads=2, grid=policy.places((3, 4)))
    pos = policy(patch_grid(3, 4), batch=2, generator=step_generator(0))
    rows = table.prepare(pos)
    cells = table.pos_embed.view(6, 8, 8)
    assert torch.equal(rows[1, 5], cells[int(pos.coords[1, 5, 0]), int(pos.coords[1, 5, 1])])
    fixed = policy(patch_grid(3, 4))
    assert torch.equal(table.prepare(fixed)[0, -1], cells[5, 7])
    with pytest.raises(ValueError, match="between the cells of a table.*linspace_int"):
        table.prepare(RandomPositions()(patch_grid(3, 4)))


def test_a_checkpointed_vit_sees_one_draw():
    """Positions go in as an argument: recomputing a block cannot draw again."""
    torch.manual_seed(0)
    model = EncodedVisionTransformer(
        encoding="rope_mixed", img_size=32, patch_size=8, embed_dim=32, num_heads=2, depth=2, num_classes=3
    ).train()
    pos = RandomPositions()(model.positions(4, 4), batch=2, generator=step_generator(0))
    grads = []
    for enabled in (False, True):
        model.set_grad_checkpointing(enabled)
        model.zero_grad()
        x, ctx = model.start(torch.ones(2, 16, 32), pos)
        for i in range(2):
            x = model.run_block(i, x, ctx)
        x.square().sum().backward()
        grads.append(model.encoding["rope_mixed"][0].freqs.grad.clone())
    torch.testing.assert_close(*grads)


def test_bad_input():
    with pytest.raises(ValueError, match="9 tokens on 8 places"):
        ordered_positions(9, 8, generator=None)
    with pytest.raises(ValueError, match="9 tokens, but training drew from 8 places; train with a larger span"):
        RandomPositions()(patch_grid(9, 9, train=(4, 4)))
    with pytest.raises(ValueError, match="custom coordinates"):
        RandomPositions()(custom_positions(torch.zeros(3, 2)))
    with pytest.raises(ValueError, match="span must be at least 1, got 0.5"):
        RandomPositions(span=0.5)
    with pytest.raises(ValueError, match="another number of axes"):
        RandomPositions(span=(1, 2, 2))(patch_grid(2, 2))
    for option in (dict(draws="each"), dict(inference="mean")):
        with pytest.raises(ValueError, match="must be"):
            RandomPositions(**option)
    assert all(torch.equal(inference_positions(5, 5, m), torch.arange(5).double()) for m in Inference.__args__)


# ---- times and crops ----------------------------------------------------------------------------------------------------


def test_time_shift_moves_the_log_snr():
    t, alpha = torch.linspace(0.01, 0.99, 9, dtype=torch.float64), shift_factor(1024, 256)
    assert alpha == 2
    snr, moved = (2 * ((1 - u) / u).log() for u in (t, shift_flow(t, alpha)))  # of x_t = (1 − t) x + t noise
    torch.testing.assert_close(moved, snr - 2 * torch.tensor(2.0).double().log())
    torch.testing.assert_close(shift_flow_to_data(1 - t, alpha), 1 - shift_flow(t, alpha))
    kept = (1 - torch.linspace(1e-4, 2e-2, 1000, dtype=torch.float64)).cumprod(0)
    steps = torch.arange(0, 1000, 37)
    assert torch.equal(shift_ddpm(steps, kept, 1.0), steps)
    moved = shift_ddpm(steps, kept, alpha)
    away = (log_snr(kept)[moved] - log_snr(kept)[steps] + 2 * torch.tensor(alpha).log()).abs()
    assert (moved >= steps).all() and away[(moved > 0) & (moved < 999)].max() < 0.3
    with pytest.raises(ValueError, match="whole numbers from 0 to 999"):
        shift_ddpm(torch.tensor([1000]), kept, 2.0)
    assert log_n_scale(64, 256) < 1 == log_n_scale(64, 256, only_up=True)


def test_crops_and_their_conditions():
    g = torch.Generator().manual_seed(0)
    for _ in range(200):
        crop = draw_crop(40, 60, size=32, most=1.5, generator=g)
        assert 32 <= min(crop.height, crop.width) <= 48 and crop.width >= crop.height
        assert 0 <= crop.top <= crop.height - 32 and 0 <= crop.left <= crop.width - 32
        top, left, tall, wide = crop.condition
        assert top + tall <= 1 + 1e-9 and left + wide <= 1 + 1e-9
    image = torch.arange(40.0).view(1, 40, 1).expand(3, 40, 60)
    cut = resize_and_crop(image, crop)
    assert cut.shape == (3, 32, 32)
    want = (torch.arange(32) + crop.top + 0.5) * 40 / crop.height - 0.5
    torch.testing.assert_close(cut[0, 4:-4, 0], want[4:-4], rtol=0, atol=0.3)
    whole = draw_crop(32, 32, size=32, most=1.0, generator=g)
    assert whole.condition == NO_CROP
