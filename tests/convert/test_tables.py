"""Resampling learned tables while loading: values from public bug reports, named by their threads."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F

from vispe import load

KEY = "encoding.learned.pos_embed"


def model(grid: tuple[int, int], **kwargs):
    options = {"prefix_rows": False, **kwargs.pop("encoding_kwargs", {})}
    return timm.create_model(
        "vit_ti_learned", img_size=(8 * grid[0], 8 * grid[1]), patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=0,
        encoding_kwargs=options, **kwargs,
    )  # fmt: skip


def table_after(target, table: torch.Tensor, **kwargs) -> tuple[torch.Tensor, object]:
    """The model's table after loading its own weights with another position table."""
    state = {k: v for k, v in target.state_dict().items() if k != KEY} | {"pos_embed": table}
    report = load(target, state, **kwargs)
    return target.encoding["learned"].pos_embed.detach(), report


def test_rectangular_source():
    """huggingface/pytorch-image-models 2190: arange(48) on 4x12 to 5x7, bicubic with antialiasing."""
    table = torch.arange(48.0).view(1, 48, 1).expand(-1, -1, 8)
    got, report = table_after(model((5, 7)), table, source_grid=(4, 12))
    got = got[0, :, 0].view(5, 7)
    first = torch.tensor([-0.141, 1.515, 3.285, 4.981, 6.677, 8.447, 10.102])
    torch.testing.assert_close(got[0], first, rtol=0, atol=6e-4)
    torch.testing.assert_close(got[-1, [0, -1]], torch.tensor([36.898, 47.141]), rtol=0, atol=6e-4)
    assert report.resampled[KEY] == "4x12 to 5x7 (bicubic, with antialiasing)"


def test_rectangular_source_without_its_grid():
    with pytest.raises(ValueError, match=r"48 rows, 0 of them .* neither the model's 5x7 grid nor a square. Pass source_grid"):
        table_after(model((5, 7)), torch.zeros(1, 48, 8))


def test_wrong_source_grid():
    with pytest.raises(ValueError, match=r"48 rows; source_grid=\(5, 9\) leaves 3 for prefix tokens, the model's table has 0"):
        table_after(model((5, 7)), torch.zeros(1, 48, 8), source_grid=(5, 9))
    with pytest.raises(ValueError, match="leaves -12"):
        table_after(model((5, 7)), torch.zeros(1, 48, 8), source_grid=(6, 10))


def test_own_grid_is_taken_and_said():
    table = torch.randn(1, 35, 8)
    got, report = table_after(model((5, 7)), table)
    assert torch.equal(got, table) and report.notes == ["pos_embed: 35 cells taken for the model's own 5x7 grid"]


def test_square_guess_is_said():
    _, report = table_after(model((5, 7)), torch.randn(1, 36, 8))
    assert report.notes == ["pos_embed: 36 cells taken for a square of 6x6; pass source_grid if not"]


def test_as_many_cells_on_another_grid():
    """With its grid named, a 2x8 table does not pass for a 4x4 one."""
    table = torch.randn(1, 16, 8)
    assert torch.equal(table_after(model((4, 4)), table)[0], table)
    got, _ = table_after(model((4, 4)), table, source_grid=(2, 8))
    want = F.interpolate(table.reshape(1, 2, 8, 8).permute(0, 3, 1, 2), size=(4, 4), mode="bicubic", antialias=True)
    torch.testing.assert_close(got, want.flatten(2).mT)


def test_no_rows_for_prefix_tokens():
    """pytorch-image-models PR 1365: class token and 4 registers, a table of patches only."""
    table = torch.randn(1, 16, 8)
    got, _ = table_after(model((6, 6), reg_tokens=4), table)
    want = F.interpolate(table.reshape(1, 4, 4, 8).permute(0, 3, 1, 2), size=(6, 6), mode="bicubic", antialias=True)
    assert got.shape == (1, 36, 8)
    torch.testing.assert_close(got, want.flatten(2).mT)


def test_two_prefix_rows():
    """pytorch-image-models 426, DeiT distilled: 2 + 16 rows to 2 + 36."""
    table = torch.randn(1, 18, 8)
    got, _ = table_after(model((6, 6), reg_tokens=1, encoding_kwargs={"prefix_rows": True}), table)
    want = F.interpolate(table[:, 2:].reshape(1, 4, 4, 8).permute(0, 3, 1, 2), size=(6, 6), mode="bicubic", antialias=True)
    assert got.shape == (1, 38, 8) and torch.equal(got[:, :2], table[:, :2])
    torch.testing.assert_close(got[:, 2:], want.flatten(2).mT)


def test_prefix_tokens_without_rows_get_zeros():
    table = torch.randn(1, 16, 8)
    got, report = table_after(model((4, 4), encoding_kwargs={"prefix_rows": True}), table, source_grid=(4, 4))
    assert torch.equal(got[:, 1:], table) and not got[:, 0].any() and "row of zeros" in report.notes[0]


def test_sizes_and_not_scale_factors():
    """facebookresearch/dino 8: 37 to 39 cells, where a scale factor floors to 38."""
    got, _ = table_after(model((39, 39)), torch.randn(1, 37 * 37, 8))
    assert got.shape == (1, 39 * 39, 8)


def test_rows_stay_rows():
    """princeton-vl/WAFT 2: height and width swapped twice."""
    rows = torch.arange(3.0)[:, None].expand(3, 5).reshape(1, 15, 1).expand(-1, -1, 8)
    got = table_after(model((6, 10)), rows, source_grid=(3, 5))[0][0, :, 0].view(6, 10)
    torch.testing.assert_close(got, got[:, :1].expand(6, 10))
    assert (got[1:, 0] > got[:-1, 0]).all()


@pytest.mark.parametrize("antialias", [True, False])
def test_the_model_says_how_to_resample(antialias):
    table = torch.randn(1, 16, 8)
    got, report = table_after(model((6, 5), encoding_kwargs={"antialias": antialias}), table)
    image = table.reshape(1, 4, 4, 8).permute(0, 3, 1, 2)
    want = F.interpolate(image, size=(6, 5), mode="bicubic", antialias=antialias)
    torch.testing.assert_close(got, want.flatten(2).mT)
    assert ("with antialiasing" in report.resampled[KEY]) == antialias
