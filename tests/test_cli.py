"""The command line: what it prints, what it writes, and how it refuses."""

import json
import subprocess
import sys

import pytest

from vispe import list_encodings
from vispe.cli import main
from vispe.encodings import table


def test_list_names_every_encoding(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in list_encodings():
        assert name in printed


def test_list_filters(capsys):
    assert main(["list", "--family", "rotary", "--axes", "1", "--injection", "qk", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in rows]
    assert "rope_axial" in names and "rope_mixed" not in names and "learned" not in names
    assert all(row["family"] == "rotary" and 1 in row["axes"] and "qk" in row["injection"] for row in rows)


def test_list_markdown_has_a_line_each(capsys):
    assert main(["list", "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == len(list_encodings()) + 2
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["list", "--family", "rotry"], "rotary"),
        (["list", "--axes", "77"], "[1, 2, 3"),
        (["list", "--injection", "nowhere"], "qk"),
        (["show", "comrop"], "did you mean 'comrope'"),
        (["show", "rope_axial", "--query", "99", "0"], "outside the grid"),
        (["show", "rope_mixed", "--layer", "12"], "0 to 11"),
        (["convert", "auto", "no_such.pth", "out.safetensors"], "there is no file no_such.pth"),
        (["convert", "auto", "in.pth", "no/such/folder/out.safetensors"], "no/such/folder"),
        (["convert", "auto", "in.pth", "out.pth"], "must end in .safetensors"),
        (["bench"], "at least one encoding"),
        (["bench", "rope_axail"], "did you mean 'rope_axial'"),
        (["bench", "rope_axial", "--size", "xl"], "'ti', 's', 'b', 'l'"),
        (["bench", "rope_axial", "--img", "100"], "multiple of the patch size"),
        (["bench", "rope_axial", "--json", "no/such/folder/x.json"], "no/such/folder"),
    ],
)
def test_errors_go_to_stderr_with_code_2(argv, expected, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert expected in captured.err and "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_parameter_counts_are_those_of_a_vit_b():
    assert table.count_parameters("none") == 0
    assert table.count_parameters("learned") == 14 * 14 * 768
    assert table.count_parameters("rope_mixed") == 12 * 12 * 2 * 32
    assert table.count_parameters("comrope_ld") == 12 * (12 * 8 * 28 + 2 * 8)


def test_options_come_with_texts():
    for name in list_encodings():
        for option in table.options(table.encoding_class(name)):
            assert option.text, f"{name}: the docstring says nothing about {option.name}"


def test_show_writes_plots_and_never_over_them(tmp_path, capsys):
    out = tmp_path / "plots"
    assert main(["show", "comrope", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in ("ComRoPE-LD", "arxiv.org/abs/2506.03737", "block_size", "(12, 8, 28)", "1 or 2 or 3 axes"):
        assert text in printed
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(files) == {"wavelengths.png", "similarity.png", "decay.png"}
    (out / "decay.png").write_bytes(b"mine")
    assert main(["show", "comrope", "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (out / "decay.png").read_bytes() == b"mine"
    assert main(["show", "comrope", "--out", str(out), "--overwrite"]) == 0
    assert (out / "decay.png").read_bytes()[:4] == b"\x89PNG"


def test_show_says_when_similarity_depends_on_content(tmp_path, capsys):
    assert main(["show", "cpe", "--out", str(tmp_path), "--grid", "5", "8"]) == 0
    assert "depends on content" in capsys.readouterr().out


def test_show_prints_every_encoding(capsys):
    for name in list_encodings():
        assert main(["show", name, "--no-plots"]) == 0, name
        assert name in capsys.readouterr().out


def test_module_entry_point():
    done = subprocess.run([sys.executable, "-m", "vispe", "show", "nothing_like_it"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("vispe: unknown encoding") and "Traceback" not in done.stderr


def test_bench_command(tmp_path, capsys):
    path = tmp_path / "bench.json"
    argv = "bench rope_axial comrope@fold --size ti --depth 1 --img 32 --batch 1 --repeats 2 --warmup 1 --json".split()
    assert main([*argv, str(path)]) == 0
    printed = capsys.readouterr().out
    assert "rope_axial" in printed and "comrope@fold" in printed
    results = {r["label"]: r for r in json.loads(path.read_text())["results"]}
    assert set(results) == {"none", "rope_axial", "comrope@fold"}
    assert results["comrope@fold"]["train"] is None and results["rope_axial"]["train"]["median"] > 0
