"""docs/vlm.md and the README's section: their examples run, and the table of schemes is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers_helpers import MIXED, line, logits, prompt, qwen

import vispe
from vispe.adapters import transformers as hosts
from vispe.adapters.transformers_hooks import cannot_step
from vispe.positions.schemes import SCHEMES, create_scheme
from vispe.positions.segments import Image, Text

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/vlm.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In vision-language models")[2].partition("\n## ")[0]
TABLE = {
    cells[0].strip("`"): cells[1:]
    for cells in ([c.strip() for c in row.strip("|").split("|")] for row in re.findall(r"^\| `.*", PAGE, re.MULTILINE))
}


@pytest.mark.parametrize("text", [PAGE, README], ids=["page", "readme"])
def test_examples_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = prompt("qwen2_vl", MIXED)
    names = {
        "qwen2_vl": qwen("qwen2_vl"), "inputs": inputs, "generator": torch.Generator().manual_seed(0),
        "Text": Text, "Image": Image, "one": prompt("qwen2_vl", MIXED[:1]), "other": prompt("qwen2_vl", MIXED[1:2]),
    }  # fmt: skip
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    assert names["answer"].shape == (3, inputs["input_ids"].shape[1] + 8)
    assert torch.equal(logits(names["model"], inputs), logits(vispe.swap(names["qwen2_vl"], "vrope"), inputs))


def test_the_table_has_every_scheme():
    assert TABLE.keys() == SCHEMES.keys()


@pytest.mark.parametrize("name", SCHEMES)
def test_the_table_is_true(name):
    ids, _, _, generates = TABLE[name]
    scheme = create_scheme(name)
    assert ids.split(",")[0] == str(scheme.axes) and ("fractions" in ids) == scheme.floating
    layers = {scheme.for_layer(i, 4) for i in range(4)}
    assert ("by layer" in ids) == (len(layers) > 1) and ("by head" in ids) == (scheme.allocation == "heads")
    assert generates.startswith("no" if cannot_step(scheme) else "yes")


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "llava"])
def test_every_scheme_goes_into_every_model(kind):
    model = (line if kind in ("internvl", "llava") else qwen)(kind)
    row = [Text(2), Image(2, 2), Text(2)]
    batch = prompt(kind, [row])
    ends = prompt(kind, [row[:2]], pixels=False)
    for name in SCHEMES:
        other = vispe.swap(model, name)
        assert logits(other, batch).isfinite().all(), name
        if TABLE[name][3].startswith("yes") and kind in ("qwen2_vl", "internvl"):
            assert other.generate(**batch, max_new_tokens=1).shape == (1, 9), name
        if name in ("rope1d", "shared_position"):
            assert other.generate(**ends, max_new_tokens=1).shape == (1, 7)
        elif name in ("vrope", "videorope", "mrope", "circle_rope"):
            with pytest.raises(ValueError, match="end the prompt with text"):
                other.generate(**ends, max_new_tokens=1)
    assert hosts.__all__ == ["load", "packed", "place", "positions", "save", "swap"]
