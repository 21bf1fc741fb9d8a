"""Test pictures drawn once for all cells of a study: drawing them takes longer than many a model needs to read them."""

import hashlib
import io
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

import vispe.data
from train.study.config import digest
from train.study.results import replace
from vispe.data.glyphs import GlyphDataset


class Stored(Dataset):
    """The items of a :class:`GlyphDataset`, read from a file that is made when it is not there or cannot be read.

    Args:
        glyphs: What to draw.
        folder: Where the file goes. Its name depends on everything that the pictures depend on, the drawing code included.
    """

    def __init__(self, glyphs: GlyphDataset, folder: Path) -> None:
        self.labels = glyphs.labels
        options = {name: getattr(glyphs, name) for name in ("split", "size", "length", "seed", "variant", "zoom", "channels")}
        options |= {"canvas": glyphs.canvas, "shift": glyphs.shift}
        self.path = folder / f"{digest([options, sources()])}.npy"
        try:
            self.images = np.load(self.path)
        except (OSError, ValueError, EOFError):
            self.images = np.stack([glyphs.render(i)[0] for i in range(len(glyphs))])
            folder.mkdir(parents=True, exist_ok=True)
            buffer = io.BytesIO()
            np.save(buffer, self.images)
            replace(self.path, buffer.getvalue())

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[index]).float().div_(255), int(self.labels[index])


def sources() -> str:
    """Digest of the code and the glyphs that pictures are drawn from."""
    files = sorted(path for path in Path(vispe.data.__file__).parent.iterdir() if path.suffix in (".py", ".zip"))
    found = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            for part in iter(partial(file.read, 2**20), b""):
                found.update(part)
    return found.hexdigest()
