"""The glyph atlas of Glyph-47: a zip file with an index, a sheet of glyphs a family, and background crops.

The file is built by ``scripts/build_glyphs.py``; ``GLYPHS.md`` beside this file tells what is in it and whose
work the typefaces and photographs are.
"""

import io
import json
import string
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

SHIPPED = Path(__file__).with_name("glyph47.zip")
MARGIN = 2  # px of empty sheet around every glyph, enough for a bicubic kernel at the glyph's edge
CLASSES = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # the EMNIST "balanced" convention


class AtlasError(RuntimeError):
    """The atlas file is missing, damaged, or of another format."""


class Glyph(NamedTuple):
    """Where a glyph lies: family, character, number of the face (file and weight), box on the sheet in px."""

    family: str
    char: str
    face: int
    top: int
    left: int
    height: int
    width: int


def class_of(char: str) -> int:
    """Label of a character: 15 lower-case letters, drawn like their capital, share the capital's class."""
    return CLASSES.index(char if char in CLASSES else char.upper())


class Atlas:
    """Reads the atlas; sheets and textures are decoded when first asked for, then kept.

    A pickled copy carries the path and the index, not the decoded images, so that it is cheap to send to workers.
    Memory once everything was asked for: about 65 MB for the training families, 13 MB for val, 28 MB for test.

    Args:
        path: the zip file; the shipped one when None.

    Raises:
        AtlasError: no such file, not a zip file, no index, or an index of an unknown format.
    """

    def __init__(self, path: str | Path | None = None):
        self.path = Path(path) if path is not None else SHIPPED
        self.index = json.loads(self._read("index.json"))
        if self.index.get("format") != 1:
            raise self._error(f"its format is {self.index.get('format')!r}, this version of vispe reads format 1")
        self.split: dict[str, list[str]] = self.index["split"]
        self._sheets: dict[str, Image.Image] = {}
        self._textures: dict[int, np.ndarray] = {}

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_sheets": {}, "_textures": {}}

    def _error(self, what: str) -> AtlasError:
        return AtlasError(
            f"glyph atlas {self.path}: {what}. Reinstall vispe to get the shipped atlas back, or build it "
            "anew with `python scripts/build_glyphs.py` from a clone of the repository."
        )

    def _read(self, name: str) -> bytes:
        if not self.path.is_file():
            raise self._error("no such file")
        try:
            with zipfile.ZipFile(self.path) as z:
                return z.read(name)  # zipfile checks the CRC-32 of what it reads
        except (zipfile.BadZipFile, KeyError, OSError, EOFError) as e:
            raise self._error(f"cannot read {name} ({e}); the file is damaged") from e

    def _image(self, name: str, mode: str) -> Image.Image:
        data = self._read(name)
        try:
            return Image.open(io.BytesIO(data)).convert(mode)
        except (OSError, ValueError) as e:
            raise self._error(f"cannot decode {name} ({e}); the file is damaged") from e

    def glyphs(self, family: str) -> list[Glyph]:
        """All glyphs of a family, in the order of the index."""
        return [Glyph(family, *entry) for entry in self.index["families"][family]["glyphs"]]

    def bitmap(self, glyph: Glyph) -> Image.Image:
        """The glyph as an 'L' image (0 paper, 255 ink) with MARGIN px of paper around its box."""
        sheet = self._sheets.get(glyph.family)
        if sheet is None:
            sheet = self._sheets[glyph.family] = self._image(f"sheets/{glyph.family}.webp", "L")
        top, left = glyph.top - MARGIN, glyph.left - MARGIN
        return sheet.crop((left, top, left + glyph.width + 2 * MARGIN, top + glyph.height + 2 * MARGIN))

    @property
    def num_textures(self) -> int:
        return len(self.index["textures"])

    def texture(self, k: int) -> np.ndarray:
        """Background crop number ``k``: float32 (n, n, 4) in 0..255, channels R, G, B, luma."""
        if k not in self._textures:
            image = self._image(f"textures/{self.index['textures'][k]}.webp", "RGB")
            both = np.concatenate([np.asarray(image), np.asarray(image.convert("L"))[..., None]], axis=2)
            self._textures[k] = both.astype(np.float32)
        return self._textures[k]
