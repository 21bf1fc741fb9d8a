"""Write MODELS.md from the cards and the registry: `python scripts/write_models.py` (a test compares the two)."""

from __future__ import annotations

from pathlib import Path

import vispe.models  # noqa: F401  registers the names
from vispe.encodings.table import markdown, rows
from vispe.models.vit_zoo import COMPOSITIONS, SIZES, VARIANTS

PAGE = Path(__file__).resolve().parents[1] / "MODELS.md"


def page() -> str:
    """The whole page."""
    names = "\n".join(
        f"- `{variant}`: " + ", ".join(f"`vit_{size}_{variant}`" for size in SIZES)
        + (f" ({COMPOSITIONS[variant]['encoding']})" if variant in COMPOSITIONS else "")
        for variant in VARIANTS
    )  # fmt: skip
    return f"""# Encodings and models

Made from the cards by `python scripts/write_models.py`. "parity cases" counts official cases that the tests reproduce,
gradients included where the case has them; 0 means that no official code was published or nothing of it could be compared.
Parameters are those of a ViT-B/16 at 224 pixels.

{markdown(rows())}

## Names in timm

After `import vispe`. Encodings that need more than a grid (key points, images) have no name of their own.

{names}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
