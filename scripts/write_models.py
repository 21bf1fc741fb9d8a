"""Write MODELS.md from the cards and the registry: `python scripts/write_models.py` (a test compares the two)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import vispe.models  # noqa: F401  registers the names
from vispe.convert import SOURCES
from vispe.encodings.table import markdown, rows
from vispe.models.dit_zoo import COMPOSITIONS as DIT_COMPOSITIONS
from vispe.models.dit_zoo import PATCHES
from vispe.models.dit_zoo import SIZES as DITS
from vispe.models.vit_zoo import COMPOSITIONS, SIZES, VARIANTS

ROOT = Path(__file__).resolve().parents[1]
PAGE, COSTS = ROOT / "MODELS.md", ROOT / "docs" / "costs.json"
DEAR = 1.3  # forward+backward over no encoding, from which on the page says why
REASONS = {
    "liere": "an exponential of 8x8 matrices for every place and head, since LieRE's generators do not commute",
    "liere_comrope": "as liere, for every layer",
}


def weights() -> dict[str, str]:
    """Official weights that `vispe convert` reads, by encoding."""
    found: dict[str, list[str]] = {}
    for source, module in SOURCES.items():
        for name in module.ENCODINGS:
            found.setdefault(name, []).append(source)
    return {name: ", ".join(sources) for name, sources in found.items()}


def cost_notes(costs: Mapping[str, Mapping]) -> str:
    """One line for each encoding that costs more than DEAR, with the reason."""
    dear = {name: cost["train"] for name, cost in costs.items() if cost["train"] > DEAR}
    return "\n".join(f"- `{name}` ({ratio:.2f}): {REASONS[name]}." for name, ratio in dear.items())


def diffusion() -> str:
    """How diffusion transformers are named."""
    sizes, patches = (",".join(map(str, values)) for values in (DITS, PATCHES))
    own = ", ".join(f"`{name}` ({made['encoding']})" for name, made in DIT_COMPOSITIONS.items())
    return (
        f"`vispe.create_model(\"dit_b_2_rope_axial\")` (`pip install vispe[diffusion]`): "
        f"`dit_{{{sizes}}}_{{{patches}}}_{{variant}}`,\nwith every variant above that is one encoding, and {own}.\n"
        f"`mmdit_{{{sizes}}}_{{{patches}}}_{{variant}}`, of two streams (text and image), with every variant that is "
        f"one encoding."
    )


def page() -> str:
    """The whole page."""
    names = "\n".join(
        f"- `{variant}`: " + ", ".join(f"`vit_{size}_{variant}`" for size in SIZES)
        + (f" ({COMPOSITIONS[variant]['encoding']})" if variant in COMPOSITIONS else "")
        for variant in VARIANTS
    )  # fmt: skip
    costs = json.loads(COSTS.read_text(encoding="utf-8"))
    extra = {
        "official weights": weights(),
        "cost": {name: f"{c['forward']:.2f} / {c['train']:.2f} / {c['memory']:.2f}" for name, c in costs.items()},
    }
    return f"""# Encodings and models

Made from the cards by `python scripts/write_models.py`. "parity cases" counts official cases that the tests reproduce,
gradients included where the case has them; 0 means that no official code was published or nothing of it could be compared.
Parameters are those of a ViT-B/16 at 224 pixels. "official weights" names the sources of `vispe convert`. "cost" is forward /
forward+backward / peak memory of that ViT over the same without encoding, batch 4, float32, eager, processor time on one thread
(`python scripts/measure_costs.py`; [costs.json](docs/costs.json) holds the settings, the commit and the noise of each run).

{markdown(rows(), extra)}

Above {DEAR} forward+backward:

{cost_notes(costs)}

## Names in timm

After `import vispe`. Encodings that need more than a grid (key points, images) have no name of their own.

{names}

## Diffusion transformers

{diffusion()}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
