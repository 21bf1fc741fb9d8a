"""Generated and quoted documentation agrees with the code."""

import importlib.util
import json
import re
from pathlib import Path

import timm

from vispe.encodings import ENCODINGS, encoding_class
from vispe.encodings.table import rows

ROOT = Path(__file__).resolve().parents[1]


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_models_page_is_the_one_the_cards_make():
    assert (ROOT / "MODELS.md").read_text(encoding="utf-8") == load_script("write_models").page(), (
        "run python scripts/write_models.py"
    )


def test_every_encoding_has_a_complete_card():
    for row in rows():
        assert row.card.title and row.card.family and row.card.formula and row.card.axes, row.name
        assert row.name in ("none",) or row.card.injection, row.name


def test_names_in_the_readme_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r'"(vit_(?:ti|s|b|l)_\w+)"', text):
        assert timm.is_model(name), name
    for name in re.findall(r'create_encoding\("(\w+)"', text):
        assert encoding_class(name)


def test_the_readme_names_encodings_that_exist_and_does_not_boast():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("| family | such as |")[2].partition("How it is checked")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) > 20 and not set(names) - set(ENCODINGS)
    encodings, cases = map(int, re.search(r"More than (\d+) encodings and (\d+) reproduced", text).groups())
    assert encodings <= len(ENCODINGS)
    assert cases <= len(list((ROOT / "tests/parity/cases").glob("*/*.safetensors")))


def test_parity_cases_on_cards_are_those_in_the_tree():
    """Folders serve one encoding, or several that share it; the card counts its own cases."""
    folders = {p.name: len(list(p.glob("*.safetensors"))) for p in (ROOT / "tests/parity/cases").iterdir() if p.is_dir()}
    for name, cls in ENCODINGS.items():
        if name in folders:
            assert 0 < cls.card.cases <= folders[name], name


def test_test_modules_have_unique_names():
    """pytest imports test modules by their last name."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("__init__.py", "conftest.py")]
    assert sorted(names) == sorted(set(names))


def test_costs_are_of_known_encodings_and_every_dear_one_says_why():
    script, costs = load_script("write_models"), load_script("measure_costs")
    measured = json.loads((ROOT / "docs" / "costs.json").read_text(encoding="utf-8"))
    assert set(measured) <= set(costs.measurable())
    for name, cost in measured.items():
        assert cost["forward"] > 0.8 and cost["train"] > 0.8 and cost["memory"] > 0.8, name
        assert cost["train"] <= script.DEAR or name in script.REASONS, f"say in scripts/write_models.py why {name} is dear"


def test_official_weights_are_of_encodings_that_exist():
    assert set(load_script("write_models").weights()) <= set(ENCODINGS)
