"""Encodings of coordinates: functions against official numbers, by the kind of the case."""

from __future__ import annotations

import torch
from torch import Tensor

from vispe.encodings import coord_functions as coord
from vispe.encodings.coord_spline import BSplineMapper, both_ways

from ..cases import Case
from .common import Results


@torch.no_grad()
def run(case: Case) -> Results:
    kinds = {
        "barf": barf, "ipe": integrated, "rethinking": shifted, "sape": sape, "bspline_mapper": spline, "coords3d": scene,
    }  # fmt: skip
    return kinds[case.config["kind"]](case)


def barf(case: Case) -> Results:
    c, x = case.config, case.inputs["x"]
    weighted = coord.weighted_octaves(x, c["num_freqs"], c["progress"], *c["c2f_range"])
    return {"out.plain": coord.octaves(x, c["num_freqs"]), "out.weighted": weighted}


def integrated(case: Case) -> Results:
    c, x = case.config, case.inputs
    mean, cov = coord.frustum_moments(
        x["origins"], x["directions"], x["t_vals"], x["radii"], shape=c["ray_shape"], diagonal=c["diagonal"]
    )
    return {"out.means": mean, "out.covs": cov, "out.encoding": coord.integrated(mean, cov, c["min_deg"], c["max_deg"])}


def shifted(case: Case) -> Results:
    c, x = case.config, case.inputs["x"]
    rff = coord.gaussian_fourier(x, case.inputs["rff_matrix"].mT)
    return {
        "out.shifted_gaussian": coord.shifted_gaussians(x, c["embedding_size"], c["sigma"]),
        "out.rff": rff / rff.norm(dim=-1).max(),
    }


def sape(case: Case) -> Results:
    x, p = case.inputs["x"], case.params
    return {
        "out.positional": coord.sape_octaves(x, case.config["num_frequencies"]),
        "out.gaussian_fourier": coord.gaussian_fourier(x, p["rff_frequencies"], interleaved=True),
        "out.radial_basis": coord.radial_basis(x, p["rbf_centres"], p["rbf_sigma"]),
    }


def scene(case: Case) -> Results:
    c, x = case.config, case.inputs
    low, high = x["range_min"][:, None], x["range_max"][:, None]
    place = (x["xyz"] - low) / (high - low)
    return {
        "out.sine": coord.scene_sine(place, c["num_channels"], temperature=c["temperature"]).mT,
        "out.fourier": coord.gaussian_fourier(place, case.params["gauss_B"]).mT,
    }


def spline(case: Case) -> Results:
    c, x = case.config, case.inputs
    module = BSplineMapper(
        c["in_features"], c["hidden"], c["bspline_features"], c["out_features"], omega=c["omega"], order=c["order"],
        resolution=case.params["t_res"].item(),
    )  # fmt: skip
    own = {k.replace(".linear.", ".") if k.startswith("net.") else k: t for k, t in case.params.items() if k != "t_res"}
    module.load_state_dict(own)
    y: Tensor = module(x["features"], both_ways(x["times"]))
    return {"out.y": y.flatten(0, 1)} | {f"out.spline{n}": coord.b_spline(x["knots"], n) for n in (2, 3, 4)}
