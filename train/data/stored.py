"""Pictures drawn once and kept: drawing a glyph may take a third of the time that a small model needs to learn from it."""

import hashlib
import io
import json
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

import vispe.data
from train.files import replace
from vispe.data.glyphs import GlyphDataset


class Stored(Dataset):
    """The items of a :class:`GlyphDataset`, read from files of ``block`` items that are made where they cannot be read.

    A block is drawn when its first item is asked for, and a length beyond all need costs nothing. Processes may share the
    folder: a file appears whole or not at all.

    Args:
        glyphs: What to draw.
        folder: Where the files go. Their names depend on everything that the pictures depend on, the drawing code included.
        block: Items of a file; 4096 gray pictures of 32 px take 4 MB.
    """

    def __init__(self, glyphs: GlyphDataset, folder: Path, block: int = 4096) -> None:
        self.glyphs, self.folder, self.block = glyphs, folder, block
        options = {name: getattr(glyphs, name) for name in ("split", "size", "seed", "variant", "zoom", "channels")}
        options |= {"canvas": glyphs.canvas, "shift": glyphs.shift, "sources": sources()}
        self.name = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
        self.blocks: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.glyphs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside 0..{len(self) - 1} of these pictures")
        start = index - index % self.block
        if start not in self.blocks:
            self.blocks[start] = self._read(start, min(start + self.block, len(self)))
        image = np.array(self.blocks[start][index - start])  # a copy: the file is mapped and cannot be written to
        return torch.from_numpy(image).float().div_(255), index % len(self.glyphs.classes)

    def _read(self, start: int, stop: int) -> np.ndarray:
        """uint8 (items, C, H, W), mapped from the file."""
        path = self.folder / f"{self.name}-{start}-{stop}.npy"
        try:
            return np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            buffer = io.BytesIO()
            np.save(buffer, np.stack([self.glyphs.render(i)[0] for i in range(start, stop)]))
            self.folder.mkdir(parents=True, exist_ok=True)
            replace(path, buffer.getvalue())
        return np.load(path, mmap_mode="r")


@cache
def sources() -> str:
    """Digest of the code and the glyphs that pictures are drawn from."""
    files = sorted(path for path in Path(vispe.data.__file__).parent.iterdir() if path.suffix in (".py", ".zip"))
    found = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            for part in iter(partial(file.read, 2**20), b""):
                found.update(part)
    return found.hexdigest()
