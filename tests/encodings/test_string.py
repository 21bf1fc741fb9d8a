"""STRING: the definitions against matrix exponentials, special cases, and folding into the projections."""

import copy

import pytest
import torch
from generic_helpers import build, close, images, scores, vit

from vispe import create_encoding, patch_grid
from vispe.encodings.string_cayley import cayley
from vispe.encodings.string_circulant import fourier_basis


def test_cayley_matrices_are_rotations():
    torch.manual_seed(0)
    raw = torch.randn(6, 7, 7, dtype=torch.float64) * torch.tensor([0.0, 0.01, 1.0, 10.0, 100.0, 1e3])[:, None, None]
    p = cayley(raw - raw.mT)
    close(p @ p.mT, torch.eye(7, dtype=torch.float64).expand(6, -1, -1), 1e-9)
    close(torch.linalg.det(p), torch.ones(6, dtype=torch.float64), 1e-9)


def test_cayley_at_zero_is_rope_mixed():
    ours, mixed = (create_encoding(n, dim=64, num_heads=2) for n in ("string_cayley", "rope_mixed"))
    assert ours.skew.abs().max() == 0
    mixed.load_state_dict({"freqs": ours.freqs.detach()})
    q = torch.randn(1, 2, 13, 32)
    a, b = (e.qk(q, q, *[e.prepare(patch_grid(3, 4, prefix=1))] * 2)[0] for e in (ours, mixed))
    close(a, b, 1e-6)


@pytest.mark.parametrize("size", [3, 4, 5, 8, 16])
def test_circulant_scores_are_those_of_the_matrix_exponential(size):
    torch.manual_seed(size)
    encoding = create_encoding("string_circulant", dim=4 * size, num_heads=2, block_size=size, init_std=0.3)
    pos = patch_grid(3, 4)
    q, k = torch.randn(2, 1, 2, 12, 2 * size)
    ctx = encoding.prepare(pos)
    got = scores(encoding, q, k, ctx, ctx) * (2 * size) ** 0.5
    # Any first column with the stored differences gives the same L; here all of c_j that c_{b−j} does not have.
    first = torch.zeros(2, 2, 2, size, dtype=torch.float64)
    first[..., 1 : 1 + encoding.pairs] = encoding.odd.detach()
    step = (torch.arange(size)[:, None] - torch.arange(size)) % size
    generators = first[..., step] - first[..., step].mT  # (H, axes, m, b, b)
    q, k = q.double(), k.double()
    for h in range(2):
        for n in range(12):
            for j in range(12):
                total = 0.0
                for m in range(2):
                    row, col = (pos.coords[0, j] - pos.coords[0, n]).tolist()
                    turn = torch.linalg.matrix_exp(row * generators[h, 0, m] + col * generators[h, 1, m])
                    cut = slice(m * size, (m + 1) * size)
                    total = total + q[0, h, n, cut] @ turn @ k[0, h, j, cut]
                assert abs(total - got[0, h, n, j]) < 3e-5  # float32 angles


@pytest.mark.parametrize("size", [3, 4, 7, 16])
def test_fourier_bases_are_orthonormal(size):
    basis = fourier_basis(size, dtype=torch.float64)
    close(basis @ basis.mT, torch.eye(size, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize(
    "name, options", [("string_cayley", {}), ("string_circulant", {}), ("string_circulant", {"block_size": 3})]
)
def test_folding(name, options):
    """Logits of a ViT are the same once the basis is in W_q and W_k, on two grids; plain rotary is what remains."""
    model = vit(name, encoding_kwargs=options, qkv_bias=True)
    folded = copy.deepcopy(model).fold()
    assert type(folded.encoding[name][0]).__name__ == "FixedRotary"
    for size in ((32, 48), (40, 24)):
        close(folded(images(*size)), model(images(*size)), 2e-5)


def test_generators_commute():
    """Scores of (row, column) steps do not depend on where the pair of tokens is, far away either."""
    for name in ("string_cayley", "string_circulant"):
        encoding = build(name)
        q = torch.randn(1, 2, 12, 48)
        near, far = (encoding.prepare(patch_grid(9, 9).crop(start, (3, 4))) for start in ((0, 0), (6, 5)))
        close(scores(encoding, q, q, near, near), scores(encoding, q, q, far, far), 1e-4)


@pytest.mark.parametrize("size, words", [(2, "at least 3"), (5, "divisors are")])
def test_bad_blocks(size, words):
    with pytest.raises(ValueError, match=words):
        create_encoding("string_circulant", dim=32, num_heads=2, block_size=size)
