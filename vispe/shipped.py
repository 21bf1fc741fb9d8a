"""Where the weights are that come with vispe: one folder a model, with its card, all of it offline."""

from __future__ import annotations

from pathlib import Path

# In a clone beside the package, in an installed package inside it (see pyproject.toml).
FOLDERS = (Path(__file__).parents[1] / "checkpoints", Path(__file__).parent / "checkpoints")
FOLDER = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])


def shipped(name: str) -> Path:
    """The folder of a shipped model, e.g. for `EncodedDiT.from_pretrained(vispe.shipped("dit_glyph_rope_axial"))`.

    Its README.md says what the model is, what it reaches and how it is loaded.

    Raises:
        ValueError: there is no such model; the message has those that there are.
    """
    names = sorted(file.parent.name for file in FOLDER.glob("*/config.json"))
    if name not in names:
        raise ValueError(f"shipped: no model {name!r} in {FOLDER}; there are {', '.join(names) or 'none'}.")
    return FOLDER / name
