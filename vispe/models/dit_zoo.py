"""Names of diffusion transformers: `dit_{s,b,l,xl}_{2,4,8}_{encoding}` and `mmdit_...`. Creating one imports diffusers."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from ..encodings import ENCODINGS

if TYPE_CHECKING:
    from .dit import EncodedDiT
    from .mmdit import EncodedMMDiT

SIZES: dict[str, dict[str, Any]] = {
    "s": dict(hidden_size=384, depth=12, num_heads=6),
    "b": dict(hidden_size=768, depth=12, num_heads=12),
    "l": dict(hidden_size=1024, depth=24, num_heads=16),
    "xl": dict(hidden_size=1152, depth=28, num_heads=16),
}
# of two streams, by SD3's rule: d blocks have d heads of 64 channels
JOINT_SIZES: dict[str, dict[str, Any]] = {
    size: dict(hidden_size=64 * depth, depth=depth, num_heads=depth)
    for size, depth in (("s", 6), ("b", 12), ("l", 18), ("xl", 24))
}
PATCHES: tuple[int, ...] = (2, 4, 8)

COMPOSITIONS: dict[str, dict[str, Any]] = {
    # SiT: DiT that predicts a velocity
    "sit": dict(encoding="sincos2d", encoding_kwargs={"preset": "dit"}, prediction_type="sit_velocity"),
    # LightningDiT: table and rotary at once, 1 latent cell a patch in its releases (override patch_size, in_channels)
    "lightning": dict(
        encoding="sincos2d+rope_eva02",
        encoding_kwargs={"sincos2d": {"preset": "dit"}, "rope_eva02": {"pretrain_grid": None}},
        prediction_type="sit_velocity", learn_sigma=False, norm="rms", mlp="swiglu",
    ),
    # FiT (28 blocks) and FiTv2 (36 blocks in XL)
    "fit": dict(encoding="rope3d", mlp="swiglu", mlp_ratio=6.0),
    "fitv2": dict(
        encoding="rope3d", mlp="swiglu", qk_norm=True, qk_norm_weight=False, prediction_type="sit_velocity", learn_sigma=False,
    ),
}  # fmt: skip

VARIANTS: dict[str, dict[str, Any]] = {
    **{
        name: dict(encoding=name)
        for name, cls in ENCODINGS.items()
        if 2 in cls.card.axes and set(cls.card.needs) <= {"coords", "grid"}
    },
    "sincos2d": dict(encoding="sincos2d", encoding_kwargs={"preset": "dit"}),
    "rope_axial": dict(encoding="rope_axial", encoding_kwargs={"theta": 10000.0}),  # as in HARoPE's and FiT's baselines
    **COMPOSITIONS,
}


def list_dits() -> list[str]:
    """Every name that `create_dit` knows."""
    plain = [f"dit_{size}_{patch}_{variant}" for size in SIZES for patch in PATCHES for variant in VARIANTS]
    single = [variant for variant in VARIANTS if variant not in COMPOSITIONS]
    return plain + [f"mmdit_{size}_{patch}_{variant}" for size in JOINT_SIZES for patch in PATCHES for variant in single]


def is_dit(name: str) -> bool:
    """Whether a model's name is one of a diffusion transformer."""
    return name.startswith(("dit_", "mmdit_"))


def dit_arguments(name: str) -> dict[str, Any]:
    """The arguments of EncodedDiT or EncodedMMDiT behind a name, e.g. "dit_b_2_rope_axial".

    Raises:
        ValueError: unknown name, with the nearest ones.
    """
    if name in list_dits():
        family, size, patch, variant = name.split("_", 3)
        return {**(SIZES if family == "dit" else JOINT_SIZES)[size], "patch_size": int(patch), **VARIANTS[variant]}
    near = difflib.get_close_matches(name, list_dits(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"sizes {list(SIZES)}, patches {PATCHES}, any encoding."
    raise ValueError(
        f"unknown diffusion transformer {name!r}: names are dit_{{size}}_{{patch}}_{{encoding}} and "
        f"mmdit_{{size}}_{{patch}}_{{encoding}}; {hint}"
    )


def create_dit(name: str, **overrides: Any) -> EncodedDiT | EncodedMMDiT:
    """A diffusion transformer by its name; `overrides` are arguments of its class. It needs vispe[diffusion]."""
    arguments = dit_arguments(name)
    from .dit import EncodedDiT
    from .mmdit import EncodedMMDiT

    cls = EncodedMMDiT if name.startswith("mmdit_") else EncodedDiT
    accepted = [key for key in inspect.signature(cls.__init__).parameters if key != "self"]
    unknown = [key for key in overrides if key not in accepted]
    if unknown:
        near = difflib.get_close_matches(unknown[0], accepted, n=2, cutoff=0.5)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"it accepts {accepted}."
        raise TypeError(f"{name}: unknown argument {unknown[0]!r}; {hint}")
    if "encoding" in overrides and "encoding_kwargs" not in overrides:
        arguments.pop("encoding_kwargs", None)  # they were those of the name's own encoding
    return cls(**{**arguments, **overrides})
