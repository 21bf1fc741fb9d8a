"""What each protocol shows a model, and in which modes a model is tested."""

from pathlib import Path

import pytest
import timm
import torch
from study_helpers import KWARGS, PROTOCOLS

from train.data.glyphs import MEAN, STD, Glyphs
from train.study.config import Protocols, StudyError
from train.study.evaluate import Mode, applied, batch_size, modes
from train.study.protocols import Setting, batches, check_data, dataset, settings
from vispe.data.glyphs import GlyphDataset


@pytest.fixture
def data() -> Glyphs:
    return Glyphs(img_size=32)


def inside(small: torch.Tensor, large: torch.Tensor) -> bool:
    """Whether a picture is, unchanged, part of another."""
    windows = large.unfold(1, small.shape[1], 1).unfold(2, small.shape[2], 1)
    return bool((windows == small[:, None, None]).flatten(3).all(-1).any())


def test_pictures_of_the_training_size_are_those_of_the_data_module(data: Glyphs) -> None:
    own, ours = data.eval_dataset("test", (48, 48)), dataset(data, Setting("resize", (48, 48)), 5)
    assert len(ours) == 5
    for i in range(5):
        assert torch.equal(own[i][0], ours[i][0]) and own[i][1] == ours[i][1]


@pytest.mark.parametrize(("protocol", "size"), [("canvas", (48, 40)), ("crop", (24, 20))])
def test_canvas_and_crop_leave_the_scale(data: Glyphs, protocol: str, size: tuple[int, int]) -> None:
    plain, changed = dataset(data, Setting("resize", (32, 32)), 6), dataset(data, Setting(protocol, size), 6)
    for i in range(6):
        assert changed[i][0].shape == (1, *size) and changed[i][1] == plain[i][1]
        small, large = (plain, changed) if protocol == "canvas" else (changed, plain)
        assert inside(small[i][0], large[i][0])
        assert torch.equal(changed[i][0], changed[i][0])
    assert not torch.equal(plain[0][0], plain[1][0])


@pytest.mark.parametrize(
    "setting",
    [Setting("resize", (24, 40)), Setting("canvas", (40, 48)), Setting("shift", (32, 32), (0.1, 0.2)), Setting("crop", (8, 9))],
    ids=lambda setting: setting.protocol,
)
def test_kept_pictures_are_those_that_would_be_drawn(
    data: Glyphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: Setting
) -> None:
    drawn = [dataset(data, setting, 3)[i] for i in range(3)]

    def equal() -> bool:
        kept = dataset(data, setting, 3, tmp_path)
        return len(kept) == 3 and all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(drawn, kept))

    assert equal()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:150])  # cut off: drawn again
    assert equal()
    monkeypatch.setattr(GlyphDataset, "render", None)  # from now on nothing can be drawn
    assert equal() and list(tmp_path.iterdir()) == [file]


def test_kept_pictures_of_different_settings_do_not_meet(data: Glyphs, tmp_path: Path) -> None:
    found = [Setting("resize", (32, 32)), Setting("shift", (32, 32), (0.1, 0.0)), Setting("canvas", (32, 40))]
    for setting in found:
        dataset(data, setting, 2, tmp_path)[0]
    dataset(data, found[0], 3, tmp_path)[0]
    dataset(Glyphs(img_size=32, variant="jitter"), found[0], 2, tmp_path)[0]
    assert len(list(tmp_path.iterdir())) == 5
    dataset(data, Setting("crop", (20, 20)), 2, tmp_path)[0]  # cut from the pictures of training size
    assert len(list(tmp_path.iterdir())) == 5


def test_crops_are_in_different_places(data: Glyphs) -> None:
    plain, crops = dataset(data, Setting("resize", (32, 32)), 12), dataset(data, Setting("crop", (24, 24)), 12)
    top_left = [torch.equal(plain[i][0][:, :24, :24], crops[i][0]) for i in range(12)]
    assert sum(top_left) < 6


def test_shift_moves_the_bright_part_by_its_share_of_the_frame(data: Glyphs) -> None:
    def centre(setting: Setting) -> torch.Tensor:
        found = []
        for image, _ in (dataset(data, setting, 8)[i] for i in range(8)):
            weight = ((image[0] * STD + MEAN) > 0.5).float()
            found.append(torch.stack([(weight * axis).sum() / weight.sum() for axis in grid]))
        return torch.stack(found).mean(0)

    grid = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    moved = centre(Setting("shift", (32, 32), (0.0, 0.125))) - centre(Setting("shift", (32, 32)))
    assert moved[0].abs() < 1 and moved[1] == pytest.approx(4.0, abs=1.0)


def test_settings_begin_with_the_training_size() -> None:
    found = settings(Protocols(**PROTOCOLS), (16, 16))
    assert [(s.protocol, s.size) for s in found] == [
        ("resize", (16, 16)), ("resize", (24, 24)), ("resize", (16, 24)), ("canvas", (20, 20)), ("shift", (16, 16)),
        ("crop", (12, 12)),
    ]  # fmt: skip
    assert found[4].option == "0.1 0"


def test_impossible_protocols_are_refused(data: Glyphs) -> None:
    with pytest.raises(StudyError, match="a crop at most"):
        check_data(data, Protocols(crops=[(40, 24)]))
    with pytest.raises(StudyError, match="at least as large"):
        check_data(data, Protocols(canvas=[(24, 64)]))


def test_batches_have_all_pictures_in_order(data: Glyphs) -> None:
    found = list(batches(dataset(data, Setting("resize", (16, 16)), 7), 3))
    assert [len(images) for images, _ in found] == [3, 3, 1]
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(7))
    assert batch_size(Protocols(batch_size=100), (64, 64), (32, 32)) == 25


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("learned", "own", []),
        ("none", "own", []),
        ("rope_axial", "extend", [Mode("rescale", default=False), Mode("extend", "ntk", False)]),
        ("comrope", "rescale", [Mode("extend", default=False)]),
    ],
)
def test_modes_are_what_a_model_can_do(name: str, own: str, others: list[Mode]) -> None:
    net = timm.create_model(f"vit_ti_{name}", **KWARGS).eval()
    protocols = Protocols(coords=["extend", "rescale"], extrapolation=["ntk"])
    assert modes(net, protocols, larger=True, resized=True) == [Mode(own), *others]
    assert modes(net, protocols, larger=False, resized=False) == [Mode(own)]
    assert [mode.method for mode in modes(net, protocols, larger=False, resized=True)] == ["-"] * (1 if own == "own" else 2)


def test_modes_change_outputs_and_leave_no_trace() -> None:
    net, images = timm.create_model("vit_ti_rope_axial", **KWARGS).eval(), torch.randn(2, 1, 24, 24)
    with torch.no_grad():
        before = net(images)
        seen = []
        for mode in (Mode("extend"), Mode("rescale"), Mode("extend", "ntk")):
            with applied(net, mode):
                seen.append(net(images))
        assert torch.equal(seen[0], before) and torch.equal(net(images), before)
    assert not torch.equal(seen[1], before) and not torch.equal(seen[2], before) and not torch.equal(seen[1], seen[2])


def test_any_timm_model_has_its_own_mode_only() -> None:
    net = timm.create_model("resnet10t", num_classes=3)
    assert modes(net, Protocols(extrapolation=["ntk"]), larger=True, resized=True) == [Mode("own")]
