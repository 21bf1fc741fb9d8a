"""The harness itself: it must fail where it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from . import test_parity
from .cases import HERE, case_files, read_case
from .tolerance import check, tolerances


def test_values_off_by_more_than_the_tolerance():
    e = torch.tensor([0.0, 1.0, 100.0])
    check("out.y", e + torch.tensor([0.9e-5, 1.9e-5, 9e-4]), e, 1e-5)
    for off in ([1.1e-5, 0, 0], [0, 2.1e-5, 0], [0, 0, 1.1e-3], [0, 0, float("nan")]):
        with pytest.raises(AssertionError):
            check("out.y", e + torch.tensor(off), e, 1e-5)
    with pytest.raises(AssertionError, match="shape"):
        check("out.y", e[None], e, 1e-5)
    with pytest.raises(AssertionError, match="1 ids differ"):
        check("out.ids", torch.tensor([1, 2]), torch.tensor([1, 3]), 1.0)


def test_gradients_are_relative_to_their_tensor():
    e = torch.tensor([0.0, 50.0])
    check("grad.w", e + 4e-4, e, 1e-5)
    with pytest.raises(AssertionError):
        check("grad.w", e + 6e-4, e, 1e-5)
    zero = torch.full((3,), 1e-8)
    check("grad.w", -zero, zero, 1e-5, largest=1.0)  # noise beside a gradient of 1
    with pytest.raises(AssertionError):
        check("grad.w", -zero, zero, 1e-5, largest=1e-3)


@pytest.mark.parametrize(
    "folder, key, dtype, tolerance",
    [
        ("rope_mixed", "out.cos", torch.float32, 2e-6),
        ("comrope", "out.q_rotated", torch.float32, 2e-5),
        ("rope_axial", "out.logits_large", torch.float32, 1e-5),
        ("comrope", "grad.freqs", torch.float32, 1e-5),
        ("irpe", "out.y", torch.float64, 1e-9),
        ("irpe", "out.y", torch.float32, 2e-5),
        ("cpe", "out.logits.20x20", torch.float32, 1e-4),
        ("irpe", "grad.x", torch.float32, 5e-4),
    ],
)
def test_tolerances_of_the_pages(folder, key, dtype, tolerance):
    assert tolerances(folder, key, torch.zeros(1, dtype=dtype)) == tolerance


def test_a_folder_without_adapter_fails(tmp_path):
    path = tmp_path / "rope_unheard_of" / "a.safetensors"
    path.parent.mkdir()
    save_file({"out.y": torch.ones(1)}, path, metadata={"config": "{}"})
    with pytest.raises(pytest.fail.Exception, match="no adapter"):
        test_parity.test_parity(path)


def test_an_output_that_the_adapter_does_not_give_fails(tmp_path):
    source = next(p for p in case_files(str(HERE / "cases")) if p.stem == "rotation_nocls" and p.parent.name == "rope_axial")
    case, expected = read_case(source)
    tensors = {f"in.{k}": v for k, v in case.inputs.items()} | expected | {"out.unheard_of": torch.ones(1)}
    path = tmp_path / "rope_axial" / "a.safetensors"
    path.parent.mkdir()
    save_file(tensors, path, metadata={"config": json.dumps(case.config)})
    with pytest.raises(AssertionError, match="gives no .*out.unheard_of"):
        test_parity.test_parity(path)


def test_adapters_do_not_see_what_is_expected():
    case, expected = read_case(case_files(str(HERE / "cases"))[0])
    assert expected and not any(k.startswith(("out.", "grad.")) for k in (*case.inputs, *case.params))


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no parity cases"):
        case_files(str(tmp_path))


def test_other_folders_from_the_environment(tmp_path, monkeypatch):
    (tmp_path / "cpe").mkdir()
    save_file({"out.y": torch.ones(1)}, tmp_path / "cpe" / "b.safetensors")
    monkeypatch.setenv("VISPE_PARITY_DIR", str(tmp_path))
    assert case_files(None) == [Path(tmp_path / "cpe" / "b.safetensors")]
