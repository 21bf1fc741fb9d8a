"""The table of diffusion at sizes never trained: a whole cell in small, and the page from known results."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from test_docs import load_script

import vispe.evaluation.lite0 as lite0


class Means(torch.nn.Module):
    """Three features of a picture in place of a network's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack((x.mean((1, 2, 3)), x.std((1, 2, 3)), x.amax((1, 2, 3))), dim=1)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = load_script("dit_table")
    monkeypatch.setattr(module, "DOCS", tmp_path)
    monkeypatch.setattr(module, "REAL", 94)
    monkeypatch.setattr(lite0, "Lite0Features", Means)
    return module


def result(row: str, seed: int, accuracy: float) -> dict:
    sizes = {size: {"accuracy": accuracy - 10 * i, "distance": 5.0 + i} for i, size in enumerate(("R", "1.5R", "2R", "1:2"))}
    cost = {"length": 1000, "train_seconds": 600, "samples": 188, "seconds": 1}
    return {"row": row, "seed": seed, **cost, "sizes": sizes}


def test_the_page_says_what_was_measured(script, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for row, level in (("rope_axial", 80.0), ("rope_ntk", 70.0), ("sincos", 60.0)):
        for seed in (0, 1) if row == "rope_axial" else (0,):
            folder = runs / f"{script.ROWS[row][0]}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"eval_{row}.json").write_text(json.dumps(result(row, seed, level + 2 * seed)))
            kept = {size: torch.zeros(47, 1, *s, dtype=torch.uint8) for size, s in script.SIZES.items()}
            torch.save(kept, folder / f"samples_{row}.pt")
    script.evaluate_real(runs)
    script.write_page(runs, planned=18)
    page = (tmp_path / "dit_table.md").read_text()
    assert "| axial RoPE | 2 | 81.0 ± 1.4 | 71.0 ± 1.4 |" in page
    assert "| axial RoPE + NTK | 1 | 70.0 | 60.0 | 50.0 | 40.0 |" in page
    assert "| sin-cos table | 1 | 5.0 | 6.0 | 7.0 | 8.0 |" in page and "HARoPE | " not in page
    assert "4 of 18 rows are finished" in page and "this is no FID" in page and "10 minutes" in page
    real = [line for line in page.splitlines() if line.startswith("| real pictures")]
    assert float(real[0].split("|")[3]) > 90 and len(real) == 2  # the judge reads real pictures
    assert (tmp_path / "dit_samples.png").stat().st_size > 1000
    assert len((tmp_path / "dit_table.csv").read_text().splitlines()) == 1 + 5 * 4
    shutil.rmtree(runs)  # what stands in the csv is finished as well
    script.write_page(runs, planned=18)
    assert (tmp_path / "dit_table.md").read_text() == page


def test_a_cell_is_trained_and_evaluated_once(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "SIZES", {"R": (32, 32), "1:2": (32, 64)})
    config = tmp_path / "configs"
    config.mkdir()
    text = (script.CONFIGS / "glyphs.yaml").read_text()
    changes = {"hidden_size: 144": "hidden_size: 24", "depth: 6": "depth: 1", "sample_steps: 25": "sample_steps: 1"}
    for old, new in (changes | {"val_check_interval: 1000": "val_check_interval: 1"}).items():
        assert old in text
        text = text.replace(old, new)
    (config / "glyphs.yaml").write_text(text)
    monkeypatch.setattr(script, "CONFIGS", config)
    folder = tmp_path / "runs/rope_axial-3"
    first = script.train("rope_axial", 3, folder, 64)
    assert first["seed"] == 3 and first["loss"] > 0 and (folder / "checkpoints/last.ckpt").exists()
    rows = [script.evaluate(row, 3, folder, tmp_path / "runs", 1) for row in ("rope_axial", "rope_ntk")]
    assert rows[0]["sizes"]["R"] == rows[1]["sizes"]["R"]  # nothing changes at the trained size
    assert set(rows[1]["sizes"]) == {"R", "1:2"} and 0 <= rows[0]["sizes"]["R"]["accuracy"] <= 100
    (folder / "checkpoints/last.ckpt").unlink()
    assert script.train("rope_axial", 3, folder, 64) == first
    assert script.evaluate("rope_ntk", 3, folder, tmp_path / "runs", 1) == rows[1]
    script.write_page(tmp_path / "runs", planned=2)
    assert (tmp_path / "dit_samples.png").exists()


def test_every_row_has_its_recipe() -> None:
    module = load_script("dit_table")
    for name, _, _ in module.ROWS.values():
        assert name == "rope_axial" or (module.CONFIGS / f"glyphs_{name}.yaml").exists()
