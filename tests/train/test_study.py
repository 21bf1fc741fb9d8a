"""A study end to end: cells that run, stop, go on, and are never counted twice."""

import contextlib
import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import study_helpers
import torch
import yaml
from lightning.pytorch.utilities.exceptions import SIGTERMException
from train_helpers import Killed, kill_at, run

from train.image import ImageClassification
from train.study import results
from train.study.cells import rows_file, run_cell, state
from train.study.cli import main
from train.study.config import Study
from train.study.jobs import Children

REPOSITORY = Path(__file__).parents[2]
COSTS = ("images_per_s", "commit")  # what may differ between two runs of one cell


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The YAML file of a study that the command has run: one cell as on a cluster, the other in a process of its own."""
    path = study_helpers.write(tmp_path_factory.mktemp("finished"))
    with contextlib.chdir(REPOSITORY):
        assert main(["--config", str(path), "--only", "table-0"]) == 0
        assert main(["--config", str(path), "--jobs", "2"]) == 0
    return path


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    """A study of the same configuration that has not been run."""
    yield study_helpers.load(study_helpers.write(tmp_path))


def numbers(study: Study, encoding: str) -> list[dict]:
    """What testing found, without what it cost."""
    rows = [row for row in results.read(study.results_file) if row.encoding == encoding and row.metric != "seconds"]
    return [{k: v for k, v in vars(row).items() if k not in COSTS} for row in rows]


def interrupt(study: Study, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Run the study's table until it dies at a step."""
    with monkeypatch.context() as context:
        kill_at(context, step)
        with pytest.raises(Killed):
            run_cell(study.cells()[0])


def first_step(study: Study, version: int) -> int:
    """The step at which a start began."""
    log = study.cells()[0].folder / f"logs/version_{version}/metrics.csv"
    return int(next(csv.DictReader(log.open()))["step"])


# a whole study


def test_every_cell_has_every_setting(finished: Path) -> None:
    rows = results.read(study_helpers.load(finished).results_file)
    found = {(r.encoding, r.protocol, r.size, r.option, r.coords, r.method) for r in rows if r.metric == "top1"}
    places = [
        ("resize", "16x16", ""), ("resize", "24x24", ""), ("resize", "16x24", ""), ("canvas", "20x20", ""),
        ("shift", "16x16", "0.1 0"), ("crop", "12x12", ""),
    ]  # fmt: skip
    expected = {("table", *place, "own", "-") for place in places} | {("rope_axial", *p, "extend", "-") for p in places}
    expected |= {("rope_axial", *p, "rescale", "-") for p in places if p[1] != "16x16"}
    expected |= {("rope_axial", *p, "extend", "ntk") for p in places if p[1] in ("24x24", "16x24", "20x20")}
    assert found == expected and len(found) == 19
    assert len(rows) == 19 * 3 + 2 * 2
    assert {r.images for r in rows if r.metric == "top1"} == {8}
    assert all(r.images_per_s > 0 and r.params > 10_000 for r in rows)
    assert len({r.config_hash for r in rows}) == 2
    assert all(r.default == (r.coords != "rescale" and r.method == "-") for r in rows)


def test_numbers_are_those_of_the_test_command(finished: Path, tmp_path: Path) -> None:
    study = study_helpers.load(finished)
    cell = study.cells()[1]
    args = ["test", *cell.arguments(), f"--run_dir={tmp_path}", f"--ckpt_path={cell.folder}/checkpoints/last.ckpt"]
    args += ["--data.test_length=8", "--data.eval_sizes=[[24,24]]", "--model.eval_coords=[rescale]"]
    expected = {k: float(v) for k, v in run(args).trainer.callback_metrics.items()}
    rows = [r for r in results.read(study.results_file) if r.encoding == "rope_axial" and r.metric == "loss"]
    found = {(r.size, r.coords): r.value for r in rows if r.protocol == "resize" and r.method == "-"}
    assert found["16x16", "extend"] == pytest.approx(expected["test/loss"], abs=1e-5)
    assert found["24x24", "extend"] == pytest.approx(expected["test/loss@24x24"], abs=1e-5)
    assert found["24x24", "rescale"] == pytest.approx(expected["test/loss@24x24/rescale"], abs=1e-5)


def test_options_reach_the_model(finished: Path) -> None:
    path = study_helpers.load(finished).cells()[0].folder / "final.ckpt"
    stored = torch.load(path, weights_only=True)["hyper_parameters"]
    assert stored["model"] == "vit_ti_learned"
    assert stored["model_kwargs"] == study_helpers.KWARGS | {"encoding_kwargs": {"init": "sincos"}}


def test_a_finished_study_runs_nothing_and_adds_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study_helpers.load(finished).results_file
    before = path.read_bytes()
    assert main(["--config", str(finished)]) == 0
    assert "2 cells, 2 done, 0 to run" in capsys.readouterr().out
    assert main(["--config", str(finished), "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["table-0", "done", "vit_ti_learned"], ["rope_axial-0", "done", "vit_ti_rope_axial"],
    ]  # fmt: skip
    assert path.read_bytes() == before


def test_the_page_comes_from_the_results_alone(finished: Path, tmp_path: Path) -> None:
    study = study_helpers.load(finished)
    copy = tmp_path / "copied.csv"
    shutil.copy(study.results_file, copy)
    args = ["--config", str(finished), "--results", str(copy), "--runs", str(tmp_path / "nothing")]
    assert main([*args, "--page", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page/tiny.html").read_text(encoding="utf-8")
    assert "rope_axial" in text and "no interval, so no recommendation" in text
    assert not (tmp_path / "nothing").exists()


# stopped and started again


def test_an_interrupted_cell_goes_on_and_ends_with_the_same_numbers(
    finished: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = study.cells()[0]
    interrupt(study, monkeypatch, 5)
    assert state(cell, []) == "interrupted" and not study.results_file.exists()
    run_cell(cell)
    assert first_step(study, 1) == 4
    assert numbers(study, "table") == numbers(study_helpers.load(finished), "table")
    assert state(cell, results.read(study.results_file)) == "done"


@pytest.mark.parametrize("kept", [0, 1], ids=["all broken", "only the last broken"])
def test_a_broken_checkpoint_is_put_aside(
    finished: Path, study: Study, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    cell, lines = study.cells()[0], []
    interrupt(study, monkeypatch, 5)
    files = sorted((cell.folder / "checkpoints").glob("*.ckpt"), key=lambda path: path.name == "last.ckpt")
    assert len(files) == 2
    for path in files[kept:]:
        path.write_bytes(path.read_bytes()[:1000])
    run_cell(cell, lines.append)
    assert first_step(study, 1) == (4 if kept else 0)
    assert (cell.folder / "checkpoints/last.ckpt.broken").exists() and any("put last.ckpt aside" in line for line in lines)
    assert numbers(study, "table") == numbers(study_helpers.load(finished), "table")


def test_stopped_after_testing_or_after_training(finished: Path, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    done, cell = study_helpers.load(finished).cells()[0], study.cells()[0]
    shutil.copytree(done.folder, cell.folder)
    assert state(cell, []) == "tested"  # the same configuration, wherever its files are
    rows_file(cell).unlink()
    assert state(cell, []) == "trained"
    (cell.folder / "final.ckpt").write_bytes(b"PK cut")  # training is over at its last checkpoint all the same
    run_cell(cell)
    assert numbers(study, "table") == numbers(study_helpers.load(finished), "table")
    study.results_file.unlink()
    assert state(cell, []) == "tested"
    monkeypatch.setattr("train.study.cells.VispeCLI", None)  # nothing is trained or tested again
    monkeypatch.setattr("train.study.cells.Prepared", None)
    run_cell(cell)
    assert numbers(study, "table") == numbers(study_helpers.load(finished), "table")


def test_a_stopped_training_is_not_taken_for_a_finished_one(
    study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def training_step(*_: object) -> None:
        raise SIGTERMException  # what Lightning does after SIGTERM; it is a SystemExit with code 0

    with monkeypatch.context() as context:
        context.setattr(ImageClassification, "training_step", training_step)
        assert main(["--config", str(tmp_path / "study.yaml"), "--only", "table-0"]) == 2
    assert "table-0: training was stopped" in capsys.readouterr().err
    assert state(study.cells()[0], []) == "new" and not study.results_file.exists()


def test_a_cell_that_another_process_has_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study_helpers.write(tmp_path)
    cell = study_helpers.load(path).cells()[0]
    cell.folder.mkdir(parents=True)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    command = [sys.executable, "-c", hold, str(cell.folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert main(["--config", str(path), "--only", "table-0"]) == 2
        other.communicate("\n")
    assert "another process is at work" in capsys.readouterr().err
    assert not (cell.folder / "cell.json").exists()


def test_a_failed_child_is_reported_with_its_words(tmp_path: Path) -> None:
    path, lines = study_helpers.write(tmp_path), []
    cell = study_helpers.load(path).cells()[0]
    with contextlib.chdir(REPOSITORY):
        failed = Children(["--config", str(path), "--baseline", "tabel"], lines.append).run([cell], 1)
    assert failed.keys() == {"table-0"} and "exit code 2" in failed["table-0"]
    assert "baseline 'tabel': did you mean 'table'?" in failed["table-0"]
    assert lines == [f"table-0: FAILED, see {cell.folder}/study.log"]


def test_a_failed_cell_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ran = study_helpers.write(tmp_path, seeds=[0, 1]), []
    monkeypatch.setattr(Children, "one", lambda self, cell: ran.append(cell.name) or "some words" * (cell.name == "table-0"))
    assert main(["--config", str(path), "--jobs=1"]) == 1
    assert ran == ["table-0", "rope_axial-0", "table-1", "rope_axial-1"]
    error = capsys.readouterr().err
    assert "table-0: some words" in error and "1 cells failed; the same command tries them again" in error


# refused before anything starts


def refused(capsys: pytest.CaptureFixture[str], path: Path, *args: str) -> str:
    assert main(["--config", str(path), *args]) == 2
    return capsys.readouterr().err


def test_all_unknown_names_are_listed_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    composed = {"model.model": "vit_ti_none", "model.model_kwargs.encoding": "learned+rope_axail"}
    path = study_helpers.write(
        tmp_path, encodings={"rope_axail": {}, "composed": composed, "learned": {}, "comrpe": {}}, baseline="lerned",
        protocols={"extrapolation": ["nkt"], "coords": ["stretch"]},
    )  # fmt: skip
    error = refused(capsys, path)
    assert "nothing was started" in error and "'vit_ti_rope_axial'" in error and "'vit_ti_comrope'" in error
    assert "encoding 'rope_axail': did you mean 'rope_axial'" in error
    assert "baseline 'lerned': did you mean 'learned'?" in error and "'nkt'" in error and "'stretch'" in error
    assert not (tmp_path / "runs").exists()


def test_unknown_cells_and_missing_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study_helpers.write(tmp_path)
    error = refused(capsys, path, "--only", "tabel-0", "rope_axial-0", "table-7")
    assert "'tabel-0' (did you mean 'table-0'?)" in error and "'table-7'" in error and "'rope_axial-0' (" not in error
    assert "no such file: nowhere.yaml" in refused(capsys, study_helpers.write(tmp_path, recipe=["nowhere.yaml"]))
    assert "--jobs: at least 1" in refused(capsys, study_helpers.write(tmp_path), "--jobs", "0")
    assert "no results file" in refused(capsys, path, "--page", str(tmp_path / "page"))


def test_changed_configurations_are_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = study_helpers.load(finished)
    before = done.results_file.read_bytes()
    error = refused(capsys, finished, "--protocols.images", "9")  # the weights would do, the numbers would not
    assert "another configuration" in error and "another `results` name" in error
    error = refused(capsys, finished, "--results", str(tmp_path / "new.csv"), "--options", "{model.lr: 0.1}")
    assert "was trained under another configuration" in error and "another `runs` folder" in error
    assert main(["--config", str(finished), "--protocols.images=9", f"--results={tmp_path}/new.csv", "--dry_run"]) == 0
    assert "table-0       trained" in capsys.readouterr().out
    assert done.results_file.read_bytes() == before


def test_a_results_file_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study_helpers.write(tmp_path)
    old = tmp_path / "old.csv"
    old.write_text(",".join(results.COLUMNS) + "\n" + ",".join(["0", *results.text(study_helpers.row("a", 0, 0.5))[1:]]) + "\n")
    error = refused(capsys, path, "--results", str(old))
    assert "rows of format 0, this program writes 1" in error and "set another `results` name" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs/study").glob("*.yaml")), ids=lambda path: path.stem)
def test_committed_studies_name_what_exists(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.chdir(REPOSITORY):
        assert main(["--config", str(path), "--runs", "nowhere", "--dry_run"]) == 0
    content = yaml.safe_load(path.read_text())
    assert f"{len(content['encodings']) * len(content['seeds'])} cells" in capsys.readouterr().out
    assert f"--config configs/study/{path.name}" in path.read_text()


def test_the_study_of_glyphs_is_as_large_as_it_says() -> None:
    content = yaml.safe_load((REPOSITORY / "configs/study/glyphs.yaml").read_text())
    assert len(content["encodings"]) >= 16 and len(content["seeds"]) >= 3
    assert {"learned", "learned_sincos", "none"} <= content["encodings"].keys()
    sizes = {tuple(size) for size in content["protocols"]["sizes"]}
    assert sizes >= {(24, 24), (32, 32), (40, 40), (48, 48), (64, 64), (96, 96)}
    assert len([size for size in sizes if size[0] != size[1]]) == 2
