"""Models that are a folder: views and scenes come back as they were, and folders of others are refused."""

from pathlib import Path

import pytest
import torch

from vispe.data import Scenes
from vispe.models.nvs import SceneTransformer, ViewTransformer
from vispe.models.vlm import VisionLanguageModel

SMALL = {"image_size": (16, 24), "embed_dim": 32, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize("model", [
    lambda: ViewTransformer("learned+plucker", **SMALL),
    lambda: SceneTransformer("gta", **SMALL, decoder_depth=1, query_size=2, stem_width=8),
])  # fmt: skip
def test_a_view_synthesis_model_comes_back(model, tmp_path: Path) -> None:
    model = model().eval()
    batch = Scenes("val", size=(16, 24), views=3, length=2).batch([0, 1])
    given = batch["images"][:, :2], batch["world_to_camera"], batch["intrinsics"]
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert not again.training and torch.equal(again(*given), model(*given)) and again(*given).std() > 1e-4
    other = SceneTransformer if isinstance(model, ViewTransformer) else ViewTransformer
    with pytest.raises(ValueError, match=type(model).__name__):
        other.from_pretrained(tmp_path)


def test_half_precision_files_are_read_in_float32(tmp_path: Path) -> None:
    model = ViewTransformer("gta", **SMALL)
    model.half().save_pretrained(tmp_path)
    again = ViewTransformer.from_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 2.2 * sum(p.numel() for p in model.parameters()) + 8000
    for name, value in again.named_parameters():
        assert value.dtype == torch.float32 and torch.equal(value.half(), model.get_parameter(name))


def test_missing_files_are_named(tmp_path: Path) -> None:
    ViewTransformer("gta", **SMALL).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model.safetensors"):
        ViewTransformer.from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="config.json"):
        VisionLanguageModel.from_pretrained(tmp_path / "elsewhere")


def test_weights_of_other_arguments_are_refused(tmp_path: Path) -> None:
    ViewTransformer("gta", **SMALL).save_pretrained(tmp_path / "one")
    ViewTransformer("gta", **SMALL | {"depth": 2}).save_pretrained(tmp_path / "two")
    (tmp_path / "one" / "model.safetensors").replace(tmp_path / "two" / "model.safetensors")
    with pytest.raises(ValueError, match=r"one\W*save_pretrained[\s\S]*blocks\.1"):
        ViewTransformer.from_pretrained(tmp_path / "two")
