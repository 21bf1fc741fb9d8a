"""Class folders: where labels come from in folders of images and of videos."""

from pathlib import Path


class ClassFolders:
    """``root/train/CLASS/...`` and ``root/val/CLASS/...``; ``root/test``, where there is one, else ``val`` serves for it.

    For a data module, which sets ``root``.
    """

    root: Path
    item: str  # what the class folders hold, for messages

    @property
    def classes(self) -> list[str]:
        """Class names in label order: the folders of ``train``, or of ``val`` where there is no ``train``."""
        split = "train" if (self.root / "train").is_dir() else "val"
        return sorted(entry.name for entry in self.split_dir(split).iterdir() if entry.is_dir())

    @property
    def num_classes(self) -> int:
        """Number of class folders."""
        return len(self.classes)

    def split_dir(self, split: str) -> Path:
        """The folder of a split."""
        if split == "test" and not (self.root / "test").is_dir():
            split = "val"
        if not (self.root / split).is_dir():
            raise FileNotFoundError(
                f"{type(self).__name__}: no folder {self.root / split}; expected {self.root}/{split}/CLASS/{self.item}"
            )
        return self.root / split
