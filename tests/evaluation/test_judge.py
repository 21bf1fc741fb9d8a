"""The judge of Glyph-47 samples at every size."""

import json
from pathlib import Path

import pytest
import torch

from vispe.data.glyphs import GlyphDataset
from vispe.evaluation.judge import GlyphJudge, _starts

FOLDER = Path(__file__).parents[2] / "checkpoints/judge_glyph"


@pytest.fixture(scope="module")
def judge() -> GlyphJudge:
    return GlyphJudge(FOLDER)


@pytest.mark.parametrize("size", [(32, 32), (48, 48), (64, 64), (32, 64)])
def test_it_reads_nine_of_ten_unseen_typefaces_at_every_size(judge: GlyphJudge, size: tuple[int, int]) -> None:
    data = GlyphDataset("test", size=size, length=141)
    pictures = torch.stack([data[i][0] for i in range(len(data))])
    card = json.loads((FOLDER / "metrics.json").read_text())["top1"]["test"]["x".join(map(str, size))]
    found = 100 * judge.accuracy(pictures, torch.from_numpy(data.labels))
    assert card > 90 and abs(found - card) < 7  # 2.5 points of sampling error


def test_it_is_small_and_says_how_it_was_made() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 2e6
    assert "configs/dit/glyph_judge.yaml" in (FOLDER / "README.md").read_text()


def test_it_gives_probabilities_and_sees_all_of_a_long_picture(judge: GlyphJudge) -> None:
    data = GlyphDataset("test", size=32, canvas=(32, 64), length=94)  # the glyph stands anywhere along the picture
    pictures = torch.stack([data[i][0] for i in range(len(data))])
    assert judge.train().accuracy(pictures, torch.from_numpy(data.labels)) > 0.8 and not judge.net.training
    torch.testing.assert_close(judge(pictures[:3]).sum(1), torch.ones(3))
    assert _starts(32) == [0] and _starts(33) == [0, 1] and _starts(64) == [0, 4, 8, 12, 16, 20, 24, 28, 32]
    assert judge(torch.zeros(1, 1, 40, 100)).shape == (1, 47)


def test_noise_is_not_read(judge: GlyphJudge) -> None:
    labels = torch.arange(47).repeat(3)
    noise = torch.rand(141, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert judge.accuracy(noise, labels) < 0.1


def test_refusals(judge: GlyphJudge, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no config.json"):
        GlyphJudge(tmp_path)
    with pytest.raises(ValueError, match="needs grey pictures"):
        judge(torch.zeros(1, 3, 32, 32))
