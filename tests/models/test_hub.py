"""Pushing to and loading from the hub by timm's and diffusers' own functions, with a hub that is a folder.

Only the two calls that reach the network while pushing are replaced; loading runs on the hub's own cache, offline.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import timm
import torch
from timm.models import push_to_hf_hub

import vispe
from vispe.models.dit import EncodedDiT

REVISION = "0" * 40


class Hub:
    """Repositories in the layout of huggingface_hub's cache."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create_repo(self, repo_id: str, **_) -> SimpleNamespace:
        return SimpleNamespace(repo_id=repo_id)

    def file_exists(self, **_) -> bool:
        return False

    def upload_folder(self, *, repo_id: str, folder_path: str | Path, **_) -> str:
        folder = self.root / f"models--{repo_id.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(REVISION)
        shutil.copytree(folder_path, folder / "snapshots" / REVISION)
        return repo_id


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return hub


@pytest.mark.parametrize("name, options", [
    ("vit_ti_comrope", {"encoding_kwargs": {"block_size": 4}}),
    ("vit_ti_none", {"encoding": "learned+rope_mixed", "img_size": (32, 48)}),
    ("vid_s_rope3d", {"encoding_kwargs": {"preset": "vjepa2"}, "num_frames": 4}),
])  # fmt: skip
def test_timm(hub, monkeypatch, name, options):
    monkeypatch.setattr("timm.models._hub.HfApi", lambda **_: hub)
    given = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5, **options}
    model = timm.create_model(name, **given).eval()
    push_to_hf_hub(model, "someone/mine", safe_serialization=True)
    again = timm.create_model("hf-hub:someone/mine", pretrained=True, cache_dir=str(hub.root)).eval()
    assert type(again) is type(model) and again.encoding.spec == model.encoding.spec
    size = options.get("img_size", (32, 32))
    x = torch.randn(1, 3, *([4] if name.startswith("vid") else []), *size)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    card = (hub.root / "models--someone--mine" / "snapshots" / REVISION / "README.md").read_text()
    assert "timm" in card


@pytest.mark.parametrize("encoding, options", [("rope_axial", {}), ("harope", {"mode": "shared"})])
def test_diffusers(hub, monkeypatch, encoding, options):
    monkeypatch.setattr("diffusers.utils.hub_utils.create_repo", hub.create_repo)
    monkeypatch.setattr("diffusers.utils.hub_utils.upload_folder", hub.upload_folder)
    monkeypatch.setattr(
        "diffusers.utils.hub_utils.load_or_create_model_card", lambda *_, **__: huggingface_hub.ModelCard("---\n---\nA DiT.\n")
    )
    model = vispe.create_model(
        f"dit_s_2_{encoding}", hidden_size=48, depth=2, num_heads=3, input_size=8, num_classes=5, encoding_kwargs=options
    ).eval()
    for parameter in model.parameters():  # as created, its output is zero
        torch.nn.init.normal_(parameter, std=0.1)
    model.push_to_hub("someone/dit")
    again = EncodedDiT.from_pretrained("someone/dit", cache_dir=str(hub.root), local_files_only=True).eval()
    latents, times, classes = torch.randn(2, 4, 8, 12), torch.tensor([3.0, 500.0]), torch.tensor([1, 5])
    with torch.no_grad():
        wanted = model(latents, times, classes)
        assert wanted.abs().max() > 1e-3 and torch.equal(again(latents, times, classes), wanted)
