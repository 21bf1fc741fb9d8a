"""Tables of one grid in a model of another with as many cells: grids are compared wherever the source's is known."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor

import vispe
from vispe.convert import adapt, convert
from vispe.convert.files import stored_grid
from vispe.encodings import EncodingStack

WIDE, TALL = (24, 64), (64, 24)  # pixels: 3 x 8 and 8 x 3 patches
TABLES = {
    "learned": "learned.pos_embed", "swin_bias": "swin_bias.table", "beit_bias": "beit_bias.1.table",
    "timm_rel_tf": "timm_rel_tf.table", "learned_spacetime": "learned_spacetime.space",
}  # fmt: skip


def model(name: str, size: tuple[int, int], **kwargs) -> torch.nn.Module:
    torch.manual_seed(sum(size))
    built = timm.create_model(
        f"vit_ti_{name}", img_size=size, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5, **kwargs
    ).eval()
    with torch.no_grad():
        for p in built.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return built


def tables(net: torch.nn.Module, name: str) -> dict[str, Tensor]:
    """The encoding's entries."""
    return {key: value for key, value in net.state_dict().items() if key.startswith(f"encoding.{name}.")}


@pytest.mark.parametrize("name", TABLES)
def test_turned_grid(name):
    source, wanted = model(name, WIDE), model(name, WIDE)
    wanted.set_input_size(TALL)
    state = source.state_dict()
    key = next(k for k in state if k.startswith(f"encoding.{name}."))
    own = model(name, TALL)
    if name != "timm_rel_tf":  # which keeps its sides apart
        assert own.state_dict()[key].shape == state[key].shape
    for new in (convert(state, own, source_grid=(3, 8))[0], own.encoding.fit(state, (3, 8), "encoding."),
                adapt(state, own, source_grid=(3, 8))):  # fmt: skip
        assert not torch.equal(new[key].flatten(), state[key].flatten())
        for entry, value in tables(wanted, name).items():
            torch.testing.assert_close(new[entry], value)
    report = vispe.load(own, state, source_grid=(3, 8))
    assert report.complete and report.resampled[key].startswith("3x8 to 8x3")
    image = torch.randn(1, 3, *TALL, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(own(image), wanted(image), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TABLES)
def test_own_grid_stays(name):
    state = model(name, WIDE).state_dict()
    new, report = convert(state, model(name, WIDE), source_grid=(3, 8))
    assert not report.resampled and set(new) == set(state)
    assert all(torch.equal(new[key], value) for key, value in state.items())


@pytest.mark.parametrize("name", ["learned", "beit_bias", "swin_bias"])
def test_saved_by_timm_and_created_turned(tmp_path, name):
    source = model(name, WIDE)
    timm.models.save_for_hf(source, tmp_path)
    twin = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=TALL).eval()
    source.set_input_size(TALL)
    for key, value in tables(source, name).items():
        torch.testing.assert_close(twin.state_dict()[key], value)


def test_wrong_grid_is_refused():
    for name, text in (("beit_bias", "fit neither the grid .5, 8. they are said to be for nor the model's .8, 3."),
                       ("learned", "source_grid=.5, 8. leaves")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            convert(model(name, (40, 40)).state_dict(), model(name, TALL), source_grid=(5, 8))


def test_a_window_of_its_own_stays():
    """A table that was given a grid by option is not the image's."""
    stack = EncodingStack("swin_bias", dim=24, num_heads=3, depth=2, options={"grid": (7, 7)}, facts={"grid": (3, 8)})
    state = stack.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in stack.fit(state, (3, 8)).items())


# ---- training checkpoints -------------------------------------------------------------------------------------------


def checkpoint(net: torch.nn.Module, **kwargs) -> dict:
    """What Lightning saves of our training application, as far as loading looks at it."""
    return {
        "state_dict": {f"net.{key}": value for key, value in net.state_dict().items()},
        "hyper_parameters": {"model": "vit_ti_learned", "model_kwargs": {"patch_size": 8, **kwargs}},
    }


@pytest.mark.parametrize("name", ["learned", "beit_bias"])
@pytest.mark.parametrize("target", [TALL, (40, 40)])
def test_training_checkpoint_of_another_size(tmp_path, name, target):
    """Neither a square nor the model's own grid: only the checkpoint's settings tell the grid of its table."""
    source = model(name, WIDE)
    torch.save(checkpoint(source, img_size=list(WIDE)), tmp_path / "last.ckpt")
    loaded = model(name, target)
    report = vispe.load(loaded, tmp_path / "last.ckpt")
    assert report.complete and all(how.startswith("3x8 to ") for how in report.resampled.values()) and report.resampled
    source.set_input_size(target)
    for key, value in tables(source, name).items():
        torch.testing.assert_close(loaded.state_dict()[key], value)


def test_stored_grid():
    net = model("learned", WIDE)
    assert stored_grid(checkpoint(net, img_size=list(WIDE))) == (3, 8)
    assert stored_grid(checkpoint(net, img_size=64)) == (8, 8)
    assert stored_grid(checkpoint(net)) == (28, 28)  # the default image, 224 pixels
    assert stored_grid(checkpoint(net, img_size=[25, 60], dynamic_img_pad=True)) == (4, 8)
    assert stored_grid({"state_dict": net.state_dict()}) is None and stored_grid(net.state_dict()) is None
