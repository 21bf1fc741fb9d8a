"""BF-STVSR's temporal mapper: a sine network turns features into coefficients and knots of B-splines over time.

    y(t) = Linear(coef ⊙ B3(dilation · τ · (t − knot))),   [coef | knot] = SIREN(features)

Source: Kim et al., BF-STVSR, CVPR 2025, arXiv 2501.11043; Eunjnnn/bfstvsr@f2ad72f (models/modules/STBS.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .coord_functions import b_spline


class BSplineMapper(nn.Module):
    """Features and times to outputs.

    Args:
        in_features, hidden, splines, out_features: widths; the last of `hidden` feeds 2 · splines numbers.
        omega: factor inside the network's sines. order: degree of the spline. resolution: τ.
    """

    def __init__(
        self, in_features: int, hidden: Sequence[int], splines: int, out_features: int, *, omega: float = 30.0,
        order: int = 3, resolution: float = 0.125,
    ) -> None:  # fmt: skip
        super().__init__()
        widths = [in_features, *hidden, 2 * splines]
        self.net = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.t_dilation = nn.Linear(1, splines, bias=False)
        self.final_linear = nn.Linear(splines, out_features)
        self.omega, self.order, self.resolution = omega, order, resolution

    def forward(self, features: Tensor, times: Tensor) -> Tensor:
        """(B, T, q, out) of features (B, q, in) at times (B, T)."""
        x = features
        for layer in self.net[:-1]:
            x = torch.sin(self.omega * layer(x))
        coef, knot = self.net[-1](x)[:, None].chunk(2, dim=-1)  # (B, 1, q, splines)
        dilation = self.t_dilation.weight[:, 0] * self.resolution
        return self.final_linear(coef * b_spline(dilation * (times[:, :, None, None] - knot), self.order))


def both_ways(times: Tensor) -> Tensor:
    """Times (B, T) of features warped forward, then 1 − t of those warped backward: (2B, T)."""
    return torch.cat((times, 1 - times))
