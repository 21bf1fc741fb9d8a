"""From a results file to the page, its Markdown and its pictures."""

from pathlib import Path

from train.files import replace
from train.study import results
from train.study.advice import recommend
from train.study.config import Study
from train.study.markdown import markdown
from train.study.page import page
from train.study.pictures import cost_picture, resolution_curves
from train.study.summary import Summary


def publish(study: Study, folder: Path, *, command: str) -> list[Path]:
    """Write NAME.html, NAME.md and the pictures that the latter shows, from the results file alone.

    Args:
        study: Its name, title, rows, baseline and confidence are used, and its results file.
        folder: Where the files go; they are made anew.
        command: What was run, for the head of the page.

    Returns:
        What was written.
    """
    rows = [row for row in results.read(study.results_file) if row.encoding in study.encodings]
    summary = Summary(rows, baseline=study.baseline, confidence=study.confidence)
    advice, title = recommend(summary), study.title or study.name
    pictures = {
        "Accuracy against resolution": ("resolution", resolution_curves(summary)),
        "Cost against accuracy": ("cost", cost_picture(summary)),
    }
    files = {f"{study.name}-{short}.png": content for short, content in pictures.values()}
    shown = {name: f"{study.name}-{short}.png" for name, (short, _) in pictures.items()}
    embedded = {name: content for name, (_, content) in pictures.items()}
    files[f"{study.name}.html"] = page(summary, advice, embedded, title=title, command=command).encode()
    files[f"{study.name}.md"] = markdown(summary, advice, shown, title=title, command=command).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace(folder / name, content)
    return [folder / name for name in files]
