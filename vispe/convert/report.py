"""What became of every key of a foreign state dict."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Report:
    """The account of one conversion. Every key of the source stands in `used`, `dropped` or `unexpected`.

    Attributes:
        source: name of the layout.
        used: key of our model -> the source's key or keys it was made from.
        dropped: source key -> why the model does not need it; its function is the same without.
        unexpected: source key -> why it found no place, although it carries something; strict loading refuses these.
        missing: keys of our model that got nothing; strict loading refuses these.
        resampled: key of our model -> from which grid to which.
        notes: what was assumed.
    """

    source: str
    used: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unexpected: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    resampled: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the model is now what the source was."""
        return not self.missing and not self.unexpected

    def problems(self) -> str:
        """Missing and unexpected keys, in words; empty when complete."""
        lines = [f"missing in the source: {', '.join(_some(self.missing))}"] if self.missing else []
        return "; ".join(lines + [f"{key}: {why}" for key, why in _some_items(self.unexpected)])

    def __str__(self) -> str:
        return self._text(8)

    def full(self) -> str:
        """Everything but the entries that were used, one line each."""
        return self._text(len(self.dropped) + len(self.unexpected) + len(self.missing))

    def _text(self, most: int) -> str:
        head = f"{self.source}: {len(self.used)} entries set"
        parts = [f"resampled {k}: {v}" for k, v in self.resampled.items()]
        parts += [f"dropped {k}: {v}" for k, v in _some_items(self.dropped, most)]
        parts += [f"unexpected {k}: {v}" for k, v in _some_items(self.unexpected, most)]
        parts += [f"missing {', '.join(_some(self.missing, most))}"] if self.missing else []
        return "\n  ".join([head, *parts, *self.notes])


class Draft:
    """A conversion in progress: source entries are taken once, ours are put once."""

    def __init__(self, state: dict[str, Tensor], source: str) -> None:
        self.left = dict(state)
        self.new: dict[str, Tensor] = {}
        self.report = Report(source)
        self.full: dict[str, str] = {}  # shortened name -> the source's own, which the report gives

    def rename(self, names: dict[str, str]) -> None:
        """Go on under shorter names {old: new}; the report keeps the source's."""
        if len(set(names.values()) | (set(self.left) - set(names))) < len(self.left):
            raise ValueError("convert: two keys of the source are the same without their prefix; give one model's weights.")
        self.left = {names.get(key, key): tensor for key, tensor in self.left.items()}
        self.full |= {new: old for old, new in names.items() if new != old}

    def put(self, key: str, tensor: Tensor, *origin: str) -> None:
        """Set one of our keys; `origin` are the source keys it was made from. What comes second for a key is refused."""
        if key in self.new:
            for name in origin:
                if name in self.left:
                    self.refuse(name, f"{key} was made from {', '.join(self.report.used[key]) or 'nothing'} already")
            return
        self.new[key] = tensor
        self.report.used[key] = tuple(self.full.get(name, name) for name in origin)
        for name in origin:
            self.left.pop(name, None)

    def move(self, old: str, new: str) -> None:
        """Take a source entry over as it is."""
        self.put(new, self.left[old], old)

    def drop(self, key: str, why: str) -> None:
        self.left.pop(key)
        self.report.dropped[self.full.get(key, key)] = why

    def refuse(self, key: str, why: str) -> None:
        self.left.pop(key)
        self.report.unexpected[self.full.get(key, key)] = why


def _some(items: list[str], most: int = 8) -> list[str]:
    return items[:most] + ([f"and {len(items) - most} more"] if len(items) > most else [])


def _some_items(items: dict[str, str], most: int = 8) -> list[tuple[str, str]]:
    pairs = list(items.items())
    return pairs[:most] + ([("...", f"{len(pairs) - most} more")] if len(pairs) > most else [])
