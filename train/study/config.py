"""What a study runs: the dataclasses behind ``configs/study/*.yaml``, their cells, and checks before anything starts."""

import difflib
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import timm
import yaml

from vispe.encodings import ENCODINGS
from vispe.encodings.extrapolation import extrapolation

Size = tuple[int, int]  # height, width in pixels


class StudyError(ValueError):
    """A study cannot start as it is asked for."""


@dataclass
class Protocols:
    """How every trained cell is tested.

    Args:
        images: Test images of each protocol; always the same ones.
        batch_size: Images a step at the training size; larger pictures come in smaller batches.
        sizes: Pictures drawn at these sizes, [height, width] in pixels; the training size is always among them.
        coords: Coordinate conventions to test with the same weights, where the model has coordinates.
        extrapolation: Training-free methods for rotary frequencies, names of ``set_extrapolation``; each is tested with
            extended coordinates at sizes larger than in training, on the models that accept it.
        canvas: The picture of training size pasted, unchanged, into fields of these sizes.
        shifts: Pictures of training size moved by (down, right), in frames.
        crops: Windows of these sizes cut from pictures of training size, so that the scale stays.
    """

    images: int = 1000
    batch_size: int = 100
    sizes: list[tuple[int, int]] = field(default_factory=list)
    coords: list[str] = field(default_factory=lambda: ["extend", "rescale"])
    extrapolation: list[str] = field(default_factory=list)
    canvas: list[tuple[int, int]] = field(default_factory=list)
    shifts: list[tuple[float, float]] = field(default_factory=list)
    crops: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Study:
    """A matrix of encodings and seeds under one recipe.

    Args:
        name: Name of the study, in paths and titles: letters, digits, ``_``, ``.`` and ``-``.
        title: One line for the head of the page.
        recipe: YAML files of ``python -m train fit``, later ones on top.
        options: Options of the training command for every cell, by dotted name: {trainer.max_steps: 20}.
        encodings: The rows: a name of your own, and options of the training command on top, by dotted name; {} takes the model
            that ``model`` makes of the name.
        model: timm name of a row that sets no ``model.model``; {encoding} is the row's name.
        seeds: Seeds of each row; one cell each.
        baseline: The row that differences are taken against.
        confidence: Coverage of the intervals.
        protocols: How every trained cell is tested.
        runs: Folder of the cells: logs, checkpoints, weights, and of test pictures. null is runs/study/NAME.
        results: The results file, CSV. It only ever grows. null is results.csv in ``runs``.
    """

    name: str
    recipe: list[str]
    encodings: dict[str, dict[str, Any]]
    baseline: str
    title: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "vit_ti_{encoding}"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    confidence: float = 0.95
    protocols: Protocols = field(default_factory=Protocols)
    runs: str | None = None
    results: str | None = None

    @property
    def folder(self) -> Path:
        return Path(self.runs or f"runs/study/{self.name}")

    @property
    def results_file(self) -> Path:
        return Path(self.results) if self.results else self.folder / "results.csv"

    def cells(self) -> list["Cell"]:
        """Seed by seed, so that a study that is stopped has whole seeds."""
        return [Cell(self, name, seed) for seed in self.seeds for name in self.encodings]


@dataclass(frozen=True)
class Cell:
    """One encoding under one seed: independent of every other cell."""

    study: Study
    encoding: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.encoding}-{self.seed}"

    @property
    def folder(self) -> Path:
        return self.study.folder / self.name

    def model(self) -> str:
        """timm name of the model."""
        study = self.study
        options = study.options | study.encodings[self.encoding]
        return options.get("model.model", study.model.format(encoding=self.encoding))

    def arguments(self) -> list[str]:
        """Arguments of ``python -m train fit`` or ``test``, without the subcommand."""
        options = self.study.options | {"model.model": self.model()} | self.study.encodings[self.encoding]
        args = [part for file in self.study.recipe for part in ("--config", file)]
        args += [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in options.items()]
        args += [f"--seed_everything={self.seed}", f"--run_dir={self.folder}"]
        return [*args, "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]

    def training_hash(self) -> str:
        """Of everything that decides the weights, except seed and code."""
        recipe = [yaml.safe_load(Path(file).read_text(encoding="utf-8")) for file in self.study.recipe]
        return digest([recipe, self.study.options, self.model(), self.study.encodings[self.encoding]])

    def config_hash(self) -> str:
        """Of everything that decides the numbers, except seed and code."""
        return digest([self.training_hash(), asdict(self.study.protocols)])


def digest(content: Any) -> str:
    """12 hexadecimal digits of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def check(study: Study) -> None:
    """Refuse a study that cannot run, with everything that is wrong with its names at once."""
    if not re.fullmatch(r"[\w.-]+", study.name):
        raise StudyError(f"name: letters, digits, '_', '.' and '-', got {study.name!r}")
    if not study.encodings or not study.seeds:
        raise StudyError("a study needs at least one of `encodings` and of `seeds`")
    if not 0 < study.confidence < 1:
        raise StudyError(f"confidence: a share between 0 and 1 such as 0.95, got {study.confidence}")
    if study.protocols.images < 1 or study.protocols.batch_size < 1:
        raise StudyError("protocols.images and protocols.batch_size: at least 1")
    if len(set(study.seeds)) < len(study.seeds):
        raise StudyError(f"seeds: each once, got {study.seeds}")
    if missing := [file for file in study.recipe if not Path(file).is_file()]:
        raise StudyError(f"recipe: no such file: {', '.join(missing)}; paths are those from the current folder")
    if wrong := unknown_names(study):
        raise StudyError("nothing was started, these names are unknown:\n" + "\n".join(f"  {line}" for line in wrong))


def unknown_names(study: Study) -> list[str]:
    """A line for each name in the matrix that nothing answers to, with the nearest that exist."""
    wrong = []
    rows = list(study.encodings)
    if study.baseline not in rows:
        wrong.append(f"baseline {study.baseline!r}: {nearest(study.baseline, rows)}")
    for coords in study.protocols.coords:
        if coords not in ("extend", "rescale"):
            wrong.append(f"protocols.coords {coords!r}: expected 'extend' or 'rescale'")
    for method in study.protocols.extrapolation:
        try:
            extrapolation(method)
        except ValueError as error:
            wrong.append(f"protocols.extrapolation: {error}")
    for row in rows:
        if not re.fullmatch(r"\w[\w.+-]*", row):
            wrong.append(f"row {row!r}: letters, digits, '_', '.', '+' and '-' only, for it names a folder")
        model = Cell(study, row, 0).model()
        if not timm.is_model(model):
            wrong.append(f"row {row!r}, model {model!r}: {nearest(model, timm.list_models())}")
        for part in encodings_in(study.options | study.encodings[row]):
            if part not in ENCODINGS:
                wrong.append(f"row {row!r}, encoding {part!r}: {nearest(part, list(ENCODINGS))}")
    return wrong


def encodings_in(options: dict[str, Any]) -> list[str]:
    """Members of a composition that options ask for by ``model.model_kwargs.encoding``."""
    spec = options.get("model.model_kwargs.encoding")
    spec = spec or (options.get("model.model_kwargs") or {}).get("encoding")
    return [] if not spec else [part.strip() for part in str(spec).split("+")]


def nearest(name: str, names: list[str]) -> str:
    """The hint behind an unknown name."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"none of {len(names)} known names is near it"
