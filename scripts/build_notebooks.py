"""Execute the notebooks: every notebooks/NAME.py (percent form, what is edited) becomes notebooks/NAME.ipynb with its outputs.

    python scripts/build_notebooks.py                     # all of them; about 4 minutes of one core
    python scripts/build_notebooks.py position_ids

Needs the extra: pip install "vispe[notebooks]". A cell that fails stops it, and nothing is written for that notebook.
"""

from __future__ import annotations

import argparse
import base64
import io
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def executed(file: Path) -> NotebookNode:
    """The notebook of a percent file, run from the folder of notebooks, without what differs from run to run."""
    notebook = jupytext.read(file)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for data in (o["data"] for o in cell.outputs if "image/png" in o.get("data", {})):
                data["image/png"] = smaller(data["image/png"])
    return notebook


def smaller(png: str) -> str:
    """A base64 picture in 256 colours and without metadata: a third of the size in the repository."""
    out = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def main() -> None:
    names = sorted(file.stem for file in FOLDER.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of {names}")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(names)):
        parser.error(f"no notebooks {unknown}; there are {names}")
    for name in args.names or names:
        start = time.perf_counter()
        notebook = executed(FOLDER / f"{name}.py")
        out = FOLDER / f"{name}.ipynb"
        jupytext.write(notebook, out)
        print(f"{out.name}: {time.perf_counter() - start:.0f} s, {out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
