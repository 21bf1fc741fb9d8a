"""Naive oracles: the rotary core and iRPE with loops over queries and keys, in float64, straight from their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vispe import create_encoding, patch_grid
from vispe.layers import attend
from vispe.positions import Positions

HEADS, DIM, BATCH = 2, 12, 2
SCALE = DIM**-0.5

PLACES = {
    "grid": lambda: patch_grid(3, 4),
    "one row": lambda: patch_grid(1, 5),
    "prefix": lambda: patch_grid(3, 2, prefix=3),
    "dropped": lambda: patch_grid(3, 4, prefix=1).take(torch.tensor([7, 0, 11, 3])),
    "crop": lambda: patch_grid(4, 4).crop((1, 2), (3, 2)),
}


def tokens(pos: Positions, count: int, seed: int) -> list[Tensor]:
    """Random (B, H, prefix + N, D) float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, HEADS, pos.prefix + pos.coords.shape[1], DIM)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count)]


def place(pos: Positions, n: int) -> tuple[float, float] | None:
    """(row, column) of token n, None for a prefix token."""
    return None if n < pos.prefix else tuple(pos.coords[0, n - pos.prefix].tolist())


# ---- rotary ---------------------------------------------------------------------------------------------------------


def turned(x: Tensor, where: tuple[float, float] | None, freqs: Tensor, layout: str) -> Tensor:
    """x (D,) with pair i turned by Σ_a where_a · freqs[a, i]."""
    if where is None:
        return x
    out, pairs = x.clone(), freqs.shape[1]
    for i in range(pairs):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        angle = float(where[0] * freqs[0, i] + where[1] * freqs[1, i])
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


def rotary_attention(
    q: Tensor, k: Tensor, v: Tensor, freqs: Tensor, layout: str, pos_q: Positions, pos_k: Positions, values: bool
) -> Tensor:
    """Softmax attention of turned queries and keys; `values` turns values too and the result back, as GTA does."""
    out = torch.zeros_like(q)
    for b in range(BATCH):
        for h in range(HEADS):
            f = freqs[h % len(freqs)]
            for i in range(q.shape[2]):
                at = place(pos_q, i)
                query = turned(q[b, h, i], at, f, layout)
                keys = [turned(k[b, h, j], place(pos_k, j), f, layout) for j in range(k.shape[2])]
                p = torch.stack([SCALE * (query @ key) for key in keys]).softmax(0)
                for j in range(k.shape[2]):
                    out[b, h, i] += p[j] * (turned(v[b, h, j], place(pos_k, j), f, layout) if values else v[b, h, j])
                if values and at is not None:
                    out[b, h, i] = turned(out[b, h, i], (-at[0], -at[1]), f, layout)
    return out


def rotary(name: str):
    torch.manual_seed(0)
    encoding = create_encoding(name, dim=HEADS * DIM, num_heads=HEADS).eval()
    freqs = encoding.frequencies().detach().double()  # rows before columns
    if name == "rope_axial":
        n = DIM // 4
        each = [100 ** (-i / n) for i in range(n)]
        freqs = torch.tensor([[[0.0] * n + each, each + [0.0] * n]], dtype=torch.float64)  # columns turn the first pairs
    if name == "gta2d":
        each = [10000 ** (-(i // 2) / (DIM // 4)) for i in range(DIM // 2)]  # one frequency after the other, row then column
        freqs = torch.tensor([[[f * (i % 2 == a) for i, f in enumerate(each)] for a in (0, 1)]], dtype=torch.float64)
    return encoding, freqs


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "gta2d"])
@pytest.mark.parametrize("where", PLACES)
def test_rotary_self_attention(name, where):
    encoding, freqs = rotary(name)
    pos = PLACES[where]()
    q, k, v = tokens(pos, 3, 1)
    ctx = encoding.prepare(pos)
    got = attend(q, k, v, encoding, ctx, ctx, scale=SCALE)
    want = rotary_attention(q, k, v, freqs, encoding.layout, pos, pos, name == "gta2d")
    torch.testing.assert_close(got, want, rtol=0, atol=5e-6)  # tables are float32


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "gta2d"])
@pytest.mark.parametrize("sides", [("prefix", "crop"), ("dropped", "grid"), ("grid", "prefix")])
def test_rotary_cross_attention(name, sides):
    encoding, freqs = rotary(name)
    pos_q, pos_k = (PLACES[side]() for side in sides)
    (q,), (k, v) = tokens(pos_q, 1, 1), tokens(pos_k, 2, 2)
    got = attend(q, k, v, encoding, encoding.prepare(pos_q), encoding.prepare(pos_k), scale=SCALE)
    want = rotary_attention(q, k, v, freqs, encoding.layout, pos_q, pos_k, name == "gta2d")
    torch.testing.assert_close(got, want, rtol=0, atol=5e-6)


@pytest.mark.parametrize("where", ["grid", "prefix", "dropped"])
def test_half_layout(where):
    """DINOv3 in its own coordinates: 2(p + ½)/side − 1, periods 100^(i/n), pairs (i, i + D/2), rows first."""
    encoding = create_encoding("rope_dinov3", dim=HEADS * DIM, num_heads=HEADS).eval()
    pos, n = PLACES[where](), DIM // 4
    each = [2 * math.pi / 100 ** (i / n) for i in range(n)]
    freqs = torch.tensor([[each + [0.0] * n, [0.0] * n + each]], dtype=torch.float64)
    side = torch.tensor(pos.extent)
    normal = Positions(2 * (pos.coords + 0.5) / side - 1, prefix=pos.prefix)
    q, k, v = tokens(pos, 3, 1)
    ctx = encoding.prepare(pos)
    got = attend(q, k, v, encoding, ctx, ctx, scale=SCALE)
    torch.testing.assert_close(got, rotary_attention(q, k, v, freqs, "half", normal, normal, False), rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["comrope_ap", "comrope_ld", "liere_comrope"])
@pytest.mark.parametrize("where", ["grid", "prefix", "dropped"])
def test_angle_matrices(name, where):
    """ComRoPE's rotations as matrix exponentials of every token, class token at ½; scores need no basis."""
    torch.manual_seed(0)
    encoding = create_encoding(name, dim=HEADS * DIM, num_heads=HEADS, block_size=3).eval()
    if name == "comrope_ap":
        encoding = create_encoding(name, dim=HEADS * DIM, num_heads=HEADS, block_size=6).eval()
    b, pos = encoding.block_size, PLACES[where]()
    upper = torch.triu_indices(b, b, offset=1)

    def matrix(h: int, at: tuple[float, float], j: int) -> Tensor:
        total = torch.zeros(b, b, dtype=torch.float64)
        for axis in range(2):
            entries = encoding.skew[h, axis, j] if name == "liere_comrope" else encoding.skew[h, j]
            weight = float(name != "comrope_ap" or j % 2 == axis)
            weight = encoding.multiplier[0, axis, j].item() if name == "comrope_ld" else weight
            s = torch.zeros(b, b, dtype=torch.float64)
            s[upper[0], upper[1]] = entries.double()
            total += at[axis] * weight * (s - s.mT)
        return torch.matrix_exp(total)

    q, k = tokens(pos, 2, 1)
    ctx = encoding.prepare(pos)
    got_q, got_k = encoding.qk(q, k, ctx, ctx)
    with torch.no_grad():
        full = {}
        for n in range(q.shape[2]):
            cell = place(pos, n)
            at = (0.5, 0.5) if cell is None else tuple((c + 0.5) / s for c, s in zip(cell, pos.extent))
            for h in range(HEADS):
                full[n, h] = torch.block_diag(*[matrix(h, at, j) for j in range(DIM // b)])
        for i in range(q.shape[2]):
            for j in range(q.shape[2]):
                for h in range(HEADS):
                    want = ((q[:, h, i] @ full[i, h].mT) * (k[:, h, j] @ full[j, h].mT)).sum(-1)
                    torch.testing.assert_close((got_q[:, h, i] * got_k[:, h, j]).sum(-1), want, rtol=1e-5, atol=2e-5)


# ---- iRPE -----------------------------------------------------------------------------------------------------------


def piecewise(x: float, ratio: float) -> int:
    """iRPE's index of one offset, its logarithm in float32 and its truncation included."""
    if abs(x) <= ratio:
        return round(x)
    far = ratio + torch.log(torch.tensor(abs(x) / ratio)).item() / math.log(8) * ratio
    return int(math.copysign(min(round(far), 2 * ratio), x))


def buckets(at_q, at_k, method: str, ratio: float) -> list[int]:
    """Bucket of one pair in each table; the last bucket is that of pairs with a prefix token."""
    b = int(2 * ratio)
    if at_q is None or at_k is None:
        extra = (2 * b + 1) ** 2 if method == "product" else 2 * b + 1
        return [extra] * (2 if method == "cross" else 1)
    dy, dx = at_q[0] - at_k[0], at_q[1] - at_k[1]
    if method == "euclidean":
        return [piecewise(round(math.hypot(dy, dx)), ratio) + b]
    if method == "quant":
        return [piecewise(dy * dy + dx * dx, ratio) + b]
    rows, cols = piecewise(dy, ratio) + b, piecewise(dx, ratio) + b
    return [rows, cols] if method == "cross" else [rows * (2 * b + 1) + cols]


def irpe_attention(q: Tensor, k: Tensor, v: Tensor, encoding, pos_q: Positions, pos_k: Positions) -> Tensor:
    out = torch.zeros_like(q)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(q.shape[2]):
                logits, ids = [], []
                for j in range(k.shape[2]):
                    at = place(pos_q, i), place(pos_k, j)
                    logit = SCALE * (q[b, h, i] @ k[b, h, j])
                    for side, x, pair in (("k", q[b, h, i], at), ("q", k[b, h, j], at[::-1])):
                        for table, n in zip(getattr(encoding, side, ()), buckets(*pair, encoding.method, encoding.ratio)):
                            entry = table[h % len(table)][..., n]
                            logit = logit + (entry if encoding.mode == "bias" else SCALE * (x @ entry))
                    logits.append(logit)
                    ids.append(buckets(*at, encoding.method, encoding.ratio))
                p = torch.stack(logits).softmax(0)
                for j in range(k.shape[2]):
                    out[b, h, i] += p[j] * v[b, h, j]
                    for table, n in zip(getattr(encoding, "values", ()), ids[j]):
                        out[b, h, i] += p[j] * table[h % len(table)][n]
    return out


def irpe(method: str, on: str, mode: str, shared_head: bool, ratio: float = 1.9):
    torch.manual_seed(0)
    encoding = create_encoding(
        "irpe", dim=HEADS * DIM, num_heads=HEADS, method=method, on=on, mode=mode, shared_head=shared_head, ratio=ratio,
        prefix=1,
    ).double()  # fmt: skip
    for table in encoding.parameters():
        torch.nn.init.normal_(table)
    return encoding


@torch.no_grad()
@pytest.mark.parametrize("method", ["product", "cross", "euclidean", "quant"])
@pytest.mark.parametrize(
    "on, mode, shared",
    [("k", "contextual", True), ("qkv", "contextual", False), ("qk", "bias", False), ("v", "contextual", True)],
)
@pytest.mark.parametrize("where", ["grid", "prefix", "dropped"])
def test_irpe_self_attention(method, on, mode, shared, where):
    encoding = irpe(method, on, mode, shared)
    pos = PLACES[where]()
    q, k, v = tokens(pos, 3, 1)
    ctx = encoding.prepare(pos)
    got = attend(q, k, v, encoding, ctx, ctx, scale=SCALE)
    torch.testing.assert_close(got, irpe_attention(q, k, v, encoding, pos, pos), rtol=0, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("method", ["product", "cross", "euclidean", "quant"])
@pytest.mark.parametrize("sides", [("prefix", "crop"), ("dropped", "prefix")])
def test_irpe_cross_attention(method, sides):
    encoding = irpe(method, "qkv", "contextual", False, ratio=2.5)
    pos_q, pos_k = (PLACES[side]() for side in sides)
    (q,), (k, v) = tokens(pos_q, 1, 1), tokens(pos_k, 2, 2)
    got = attend(q, k, v, encoding, encoding.prepare(pos_q), encoding.prepare(pos_k), scale=SCALE)
    torch.testing.assert_close(got, irpe_attention(q, k, v, encoding, pos_q, pos_k), rtol=0, atol=1e-11)


@pytest.mark.parametrize("ratio", [1.9, 2.0, 2.5, 3.0, 20, 33])
def test_buckets_of_far_offsets(ratio):
    from vispe.encodings.functional import log_bucket

    far = list(range(-300, 301))
    assert log_bucket(torch.tensor(far), ratio).tolist() == [piecewise(x, ratio) for x in far]
