"""torch.hub offers every registered name from a local copy."""

import runpy
from pathlib import Path

import torch
from model_helpers import TINY, images, vit

from vispe.models import video_zoo, vit_zoo

ROOT = Path(__file__).parents[2]


def test_names():
    """torch.hub lists the public callables of hubconf.py, and nothing else is public there."""
    content = runpy.run_path(str(ROOT / "hubconf.py"))
    assert content["dependencies"] == ["torch", "timm"]
    public = {n for n, v in content.items() if callable(v) and not n.startswith("_")}
    assert public == set(vit_zoo.__all__) | set(video_zoo.__all__)


def test_load():
    torch.manual_seed(0)
    model = torch.hub.load(str(ROOT), "vit_ti_rope_mixed", source="local", **TINY).eval()
    twin = vit("rope_mixed")
    twin.load_state_dict(model.state_dict())
    assert torch.equal(model(images()), twin(images()))
