"""Learnable Fourier features (the paper's algorithm 1): features and embeddings of given positions, and the kernel of
the init."""

from __future__ import annotations

import torch

from vispe import create_encoding
from vispe.encodings.learnable_fourier import LearnableFourier
from vispe.positions import custom_positions

from ..cases import Case
from .common import Results, bind, gradients, leaves

NAMES = {"Wr": "freqs", "W1": "fc1.weight", "b1": "fc1.bias", "W2": "fc2.weight", "b2": "fc2.bias"}


def run(case: Case) -> Results:
    return kernel(case) if "distance" in case.inputs else embedding(case)


def embedding(case: Case) -> Results:
    c = case.config
    groups, axes = c["groups"], c["coord_dim"]
    fold = groups * axes in LearnableFourier.card.axes
    encoding = create_encoding(
        "learnable_fourier", dim=c["out_dim"] if fold else c["out_dim"] // groups, num_heads=1,
        axes=groups * axes if fold else axes, groups=groups if fold else 1, fourier_dim=c["fourier_dim"],
        hidden_dim=c["hidden_dim"], gamma=c["gamma"],
    ).double()  # fmt: skip
    inputs = leaves({"pos": case.inputs["pos"]} | case.params)
    bind(encoding, **{ours: inputs[official] for official, ours in NAMES.items()})
    # groups share all weights: where their axes together are more than the encoding takes, each is a token of its own
    coords = inputs["pos"].flatten(-2) if fold else inputs["pos"].flatten(1, 2)  # (B, L, G · M) or (B, L · G, M)
    shape = (*inputs["pos"].shape[:2], -1)
    pe = encoding.prepare(custom_positions(coords)).reshape(shape)
    fourier = encoding.features(coords).reshape(*inputs["pos"].shape[:3], -1)
    loss = (pe * case.inputs["cotangent"]).sum()
    return {"out.pe": pe, "out.fourier": fourier, **gradients(loss, inputs, params=True)}


def kernel(case: Case) -> Results:
    """f(x)·f(y) of pairs at the given distances, with freshly drawn frequencies."""
    c = case.config
    torch.manual_seed(0)
    encoding = create_encoding(
        "learnable_fourier", dim=8, num_heads=1, axes=2, fourier_dim=c["fourier_dim_to_use"], hidden_dim=1, gamma=c["gamma"]
    )
    distance = case.inputs["distance"]
    angle = torch.linspace(0, 3, len(distance), dtype=distance.dtype)  # every pair along another direction
    step = distance[:, None] * torch.stack((angle.cos(), angle.sin()), dim=-1)
    here = torch.full_like(step, 0.7)
    with torch.no_grad():
        return {"out.expected_dot": (encoding.features(here) * encoding.features(here + step)).sum((-1, -2))}


def tolerance(case: Case, key: str) -> float | None:
    """The kernel is a statistic of random frequencies; its case names the tolerance."""
    return case.config.get("tolerance")
