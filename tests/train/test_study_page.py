"""The results file, the recommendations and the page, on made-up numbers."""

import base64
import csv
import gzip
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from study_helpers import row, table

from train.study import results
from train.study.advice import recommend
from train.study.config import Study
from train.study.publish import publish
from train.study.results import COLUMNS, ResultsError, append, read
from train.study.summary import Mode, Place, Summary
from train.study.tables import long_cells

FAR = {"base": [0.50, 0.52, 0.54], "good": [0.90, 0.91, 0.92], "same": [0.89, 0.91, 0.90], "bad": [0.1, 0.1, 0.13]}


def advice(rows: list[results.Row]) -> dict[str, str]:
    return {a.purpose: a.text for a in recommend(Summary(rows, baseline="base"))}


# the results file


def test_rows_survive_the_file_and_earlier_bytes_stay(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.csv"
    first = [row("a", 0, 1 / 3, option="0.1 -0.2")]
    assert append(path, first) and read(path) == first
    before = path.read_bytes()
    second = [row("b", 0, 0.25, default=False, coords="rescale"), row("b", 0, 2.5, metric="loss")]
    assert append(path, second) and read(path) == first + second
    assert path.read_bytes().startswith(before)


def test_a_cell_is_added_once(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    assert append(path, [row("a", 0, 0.5)])
    before = path.read_bytes()
    assert not append(path, [row("a", 0, 0.6)])
    assert path.read_bytes() == before


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_another_configuration_are_refused(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "results.csv"
    append(path, [row("a", 0, 0.5)])
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="a, seed 0 from another configuration .*another `results` name"):
        append(path, [row("a", seed, 0.5, config_hash="other")])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "encoding,coords,seed,size,top1\nnone,-,0,32x32,12.7\n",
        ",".join(COLUMNS) + "\n0," + ",".join(results.text(row("a", 0, 0.5))[1:]) + "\n",
        ",".join(COLUMNS) + "\n" + ",".join(results.text(row("a", 0, 0.5))[:-2]) + "\n",
    ],
    ids=["empty", "other columns", "other version", "cut line"],
)
def test_other_files_are_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(content)
    with pytest.raises(ResultsError, match="set another `results` name"):
        append(path, [row("b", 0, 0.5)])
    assert path.read_text() == content


# what the numbers say


def test_recommendation_names_the_best_and_what_is_not_separated_from_it() -> None:
    text = advice(table(FAR))["Fixed size, as in training"]
    # t(0.95, 2) = 4.303, s = 1 point, three seeds: 91 ± 2.48
    assert text.startswith("good: 91.0 % (95 % interval 88.5 to 93.5, 3 seeds), over 32x32. Not separated from it")
    assert text.endswith(": same (90.0).")


def test_recommendation_says_when_everything_is_separated() -> None:
    found = {name: FAR[name] for name in ("base", "good", "bad")}
    assert "Separated from all 2 others" in advice(table(found))["Fixed size, as in training"]


def test_one_seed_recommends_nothing() -> None:
    found = advice(table({name: values[:1] for name, values in FAR.items()}))
    assert "no interval, so no recommendation" in found["Fixed size, as in training"]
    assert "no recommendation" in found["Lowest cost"]


def test_lowest_cost_is_the_fastest_of_those_not_separated_from_the_best() -> None:
    speeds = {"base": 300.0, "good": 100.0, "same": 200.0, "bad": 400.0}
    rows = [row(name, seed, v, images_per_s=speeds[name]) for name in FAR for seed, v in enumerate(FAR[name])]
    rows.append(row("good", 0, 1.0, protocol="train", metric="seconds", images_per_s=100.0))
    text = advice(rows)["Lowest cost"]
    assert text.startswith("same: 200 images a second") and "best there: good" in text and "fastest of all is bad (400)" in text


def test_larger_and_other_shapes_average_their_sizes_in_each_mode() -> None:
    rows = table({"base": [0.5, 0.5], "rope": [0.8, 0.8]})
    for size, own, other in (("48x48", 0.1, 0.7), ("64x64", 0.3, 0.5), ("32x48", 0.2, 0.6), ("24x24", 0.9, 0.9)):
        for seed in (0, 1):
            rows.append(row("rope", seed, own, size=size, coords="extend"))
            rows.append(row("rope", seed, other, size=size, coords="rescale", default=False))
    found = advice(rows)
    assert found["Larger inputs"].startswith("rope, rescaled: 60.0 %") and "48x48, 64x64" in found["Larger inputs"]
    assert found["Non-square inputs"].startswith("rope, rescaled: 60.0 %") and "over 32x48." in found["Non-square inputs"]


def test_long_lines_give_differences_to_the_baseline_on_the_same_seeds() -> None:
    summary = Summary(table({"base": [0.50, 0.60, 0.70], "own": [0.51, 0.62, 0.73]}), baseline="base")
    lines = {line.mode.encoding: line for line in summary.lines()}
    assert lines["base"].difference is None
    difference = lines["own"].difference
    assert (difference.mean, difference.std) == (pytest.approx(2.0), pytest.approx(1.0))
    assert lines["own"].rank == (1, 2)  # the means overlap though the differences are clear
    assert long_cells(lines["own"])[6:12] == ["62.0", "11.0", "34.7 to 89.3", "+2.0", "-0.5 to +4.5", "1–2"]


def test_modes_share_the_one_test_at_the_training_size() -> None:
    rows = table({"rope": [0.8]}, coords="extend")
    rows.append(row("rope", 0, 0.7, size="48x48", coords="rescale", default=False))
    summary = Summary(rows, baseline="rope")
    assert summary.at(summary.at_home, Mode("rope", "rescale", "-")) == {0: 80.0}
    assert summary.at(Place("resize", (64, 64), ""), Mode("rope", "rescale", "-")) == {}


# the page


class Reader(HTMLParser):
    """Collects table rows, and every address that a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.addresses: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action") and value]
        if tag == "tr":
            self.lines.append([])
        if tag in ("td", "th"):
            self.inside = True
            self.lines[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.lines[-1][-1] += data


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[results.Row]]:
    folder = tmp_path_factory.mktemp("page")
    rows_of = {name: {} for name in FAR}
    study = Study("made", [], rows_of, "base", title="A <made-up> study", results=str(folder / "results.csv"))
    rows = table(FAR)
    for size, protocol in (("48x48", "resize"), ("32x64", "resize"), ("48x48", "canvas"), ("24x24", "crop")):
        for name, values in FAR.items():
            for seed, value in enumerate(values):
                rows.append(row(name, seed, value / 2, size=size, protocol=protocol))
    rows += [row("good", seed, 0.3, size="48x48", coords="extend", method="ntk", default=False) for seed in range(3)]
    for name in FAR:
        for seed in range(3):
            append(study.results_file, [r for r in rows if (r.encoding, r.seed) == (name, seed)])
    publish(study, folder / "page", command="python -m train study --config made.yaml")
    return folder / "page", read(study.results_file)


def test_page_has_every_line_and_every_row(published: tuple[Path, list[results.Row]]) -> None:
    folder, rows = published
    reader = Reader()
    reader.feed((folder / "made.html").read_text(encoding="utf-8"))
    markdown = (folder / "made.md").read_text(encoding="utf-8")
    lines = Summary(rows, baseline="base").lines()
    assert len(lines) == 5 * 4 + 1
    for line in lines:
        assert long_cells(line) in reader.lines
        assert "| " + " | ".join(long_cells(line)) + " |" in markdown
    packed = next(a for a in reader.addresses if a.startswith("data:application/gzip"))
    inside = gzip.decompress(base64.b64decode(packed.partition(",")[2])).decode()
    assert [results.parse(line) for line in list(csv.reader(io.StringIO(inside)))[1:]] == rows


def test_page_needs_nothing_else(published: tuple[Path, list[results.Row]]) -> None:
    text = (published[0] / "made.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    assert len(reader.addresses) == 3 and all(address.startswith("data:") for address in reader.addresses)
    assert not re.search(r"https?://|@import|url\(|<link|<script src", text)
    assert "A &lt;made-up&gt; study" in text and "<made-up>" not in text


def test_markdown_shows_pictures_that_are_there(published: tuple[Path, list[results.Row]]) -> None:
    folder, _ = published
    names = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (folder / "made.md").read_text(encoding="utf-8"))
    assert len(names) == 2
    for name in names:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_wide_tables_have_a_column_for_each_size(published: tuple[Path, list[results.Row]]) -> None:
    markdown = (published[0] / "made.md").read_text(encoding="utf-8")
    assert "| encoding | coordinates | method | seeds | 32x32 | 48x48 | 32x64 |" in markdown
    assert "| good | own* | - | 3 | 91.0 ± 1.0 | 45.5 ± 0.5 | 45.5 ± 0.5 |" in markdown
    assert "| good | extend | ntk | 3 | 91.0 ± 1.0 | 30.0 ± 0.0 | - |" in markdown
