"""Models that are a folder: `config.json`, the constructor's arguments, and `model.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import nn

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def arguments(scope: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor, from its `locals()` at its first line."""
    return {name: value for name, value in scope.items() if name not in ("self", "__class__")}


class SavedModel(nn.Module):
    """A module that can be saved and made again; its constructor sets `config`, plain JSON values all."""

    config: dict[str, Any]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the class, its arguments, and the weights in the dtype they have."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps({"class": type(self).__name__, **self.config}, indent=1) + "\n")
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / WEIGHTS)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The model of a folder of `save_pretrained`, in float32 and evaluation mode.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: the folder holds a model of another class, or weights that are not those of its arguments.
        """
        folder = Path(folder)
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{cls.__name__}: {folder} has no {name}; give a folder of save_pretrained.")
        config = json.loads((folder / CONFIG).read_text())
        saved = config.pop("class", None)
        if saved != cls.__name__:
            raise ValueError(
                f"{cls.__name__}: {folder} says that it holds a model of class {saved!r}; use that class' from_pretrained, or "
                f"a folder that {cls.__name__}.save_pretrained wrote."
            )
        model = cls(**config)
        try:
            model.load_state_dict(load_file(folder / WEIGHTS))
        except RuntimeError as error:
            raise ValueError(
                f"{cls.__name__}: {folder / WEIGHTS} holds no weights of the model in {CONFIG} beside it; take both files from "
                f"one save_pretrained. {error}"
            ) from error
        return model.eval()
