"""Writing files that others may be reading."""

import os
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write a file so that at every moment it is the old or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
