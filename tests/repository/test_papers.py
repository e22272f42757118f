"""Tables and figures of the papers: all have a row, commands parse, verdicts stand."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.commands import ROOT

from fairseq_paradec.cli import main as cli
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.commands import papers
from fairseq_paradec.lab.data.table import Result, Table, Value
from tools.site import papers as papers_page

DATA = papers_page.load()
GIVEN = papers.load()["given"]
ROWS = {row["id"]: row for row in DATA["rows"]}

#: Numbered tables and figures of the papers: 32 tables, and 20 figures, of which 10 have results.
NUMBERED = {"santilli": (7, 4), "xia": (11, 4), "stern": (4, 4), "zhang": (6, 5), "imamura": (4, 3)}


def test_each_numbered_table_and_figure_has_one_row():
    wanted = [
        f"{paper}-{kind}{number}"
        for paper, sizes in NUMBERED.items()
        for kind, size in zip(("", "f"), sizes, strict=True)
        for number in range(1, size + 1)
    ]
    assert [row["id"] for row in DATA["rows"]] == wanted
    for paper, sizes in NUMBERED.items():
        assert (DATA["papers"][paper]["tables"], DATA["papers"][paper]["figures"]) == sizes


def test_what_a_page_shows_belongs_to_a_row():
    shown = tomllib.loads(Path(papers_page.__file__).with_suffix(".toml").read_text("utf-8"))
    assert shown["rows"].keys() <= ROWS.keys()


def test_most_rows_are_decided():
    said = papers.counts(DATA["rows"])
    assert said["not yet run"] <= 3
    assert said["same direction"] + said["other direction"] >= 30


@pytest.mark.parametrize("name", ROWS)
def test_a_rows_commands_parse(name: str):
    row = ROWS[name]
    assert row.get("run") or row["verdict"] in ("shown", "cannot"), "a row needs a command"
    for words in papers.commands(row, GIVEN, Path("out.json")) if row.get("run") else ():
        assert words[0] in cli.COMMANDS
        cli.parse(words)


def test_lines_of_the_queue_are_there():
    text = (ROOT / "scripts" / "experiments.queue").read_text("utf-8")
    pattern = re.compile(r"^(# )?([\w.-]+)(?:\[.*?\])?  ", re.MULTILINE)
    found = {match[2]: bool(match[1]) for match in pattern.finditer(text)}
    for row in DATA["rows"]:
        assert set(row.get("lines", [])) | set(row.get("paper_lines", [])) <= found.keys(), row
        for name in row.get("paper_lines", []):
            assert found[name], f"{name} is not a line for an accelerator"


def test_a_result_is_what_its_line_of_the_queue_makes():
    """A line may hold several commands; those in shell loops are not compared."""
    text = (ROOT / "scripts" / "experiments.queue").read_text("utf-8")
    made = re.findall(r"^papers-[\w.-]+(?:\[.*?\])?  \.venv/bin/(paradec .*)$", text, re.MULTILINE)
    lines = {Path(line.split("--out ")[1].split()[0]).stem: line for line in made}
    compared = 0
    for name, line in lines.items():
        file = ROOT / "results" / f"{name}.json"
        if file.is_file():
            command = json.loads(file.read_text("utf-8"))["command"]
            assert shlex.split(command) == shlex.split(line), name
            compared += 1
    assert compared >= 8


def test_pictures_of_the_page_are_there():
    for paper in DATA["papers"].values():
        assert (ROOT / "docs" / paper["picture"][0]).is_file()


# ---- what a verdict stands on ------------------------------------------------------------------


def some(*tables: list[dict[str, Any]]) -> dict[str, Result]:
    """A result with these tables, by its name."""
    return {"some": Result("some.json", {}, [Table.of(rows) for rows in tables])}


TABLES = some(
    [{"decoder": "a", "x": Value(2.0, 1.9, 2.1)}, {"decoder": "b [c]", "x": 4}],
    [{"decoder": "a", "share": Value.share(57, 100), "BLEU": Value(-0.5, -1.0, 0.0)}],
)


def cell(decoder: str, column: str) -> list[Any]:
    return ["some", {"decoder": decoder}, column]


@pytest.mark.parametrize(
    ("figure", "wanted"),
    [
        ({"of": cell("a", "x")}, 2.0),
        ({"of": cell("b [c]", "x"), "over": cell("a", "x")}, 2.0),
        ({"of": cell("a", "x"), "less": cell("b*", "x")}, -2.0),
        ({"of": cell("a", "x"), "plus": cell("b*", "x"), "over": cell("a", "x")}, 3.0),
        ({"of": cell("a", "share")}, 0.57),
        ({"of": cell("a", "BLEU")}, -0.5),
    ],
)
def test_a_figure_is_read_from_a_cell(figure, wanted):
    assert papers_page.evaluate(figure, TABLES).middle == wanted


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (["other", {}, "x"], "got 'other'"),
        (["some", {}, "x"], "has 2 rows"),
        (["some", {"decoder": "c"}, "x"], "has no row"),
        (["some", {"decoder": "a"}, "decoder"], "'a', not a number"),
    ],
)
def test_a_cell_that_is_not_there_is_named(where, words):
    with pytest.raises(UsageError, match=words):
        papers_page.number(where, TABLES)


def row(**changes: Any) -> dict[str, Any]:
    """A row whose verdict stands, with changes."""
    figures = {"a": {"name": "A", "of": cell("a", "x")}, "b": {"name": "B", "of": cell("b*", "x")}}
    claims = [["a", "<", "b"], ["a", ">=", 2]]
    given = {"id": "xia-1", "asks": "?", "verdict": "same", "figures": figures, "claims": claims}
    return given | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"claims": [["a", ">", "b"]]}, "a > b does not hold: 2.000, 4.0"),
        ({"claims": []}, "'same' with 0 claims"),
        ({"verdict": "not yet", "why": "later"}, "'not yet' with 2 claims"),
        ({"verdict": "other"}, "'other' without a why"),
        ({"verdict": "fine"}, "got 'fine'; allowed: same, other"),
    ],
)
def test_a_verdict_stands_on_claims_that_hold(changes, words):
    values = papers_page.check(row(), TABLES)
    assert {key: value.middle for key, value in values.items()} == {"a": 2.0, "b": 4.0}
    with pytest.raises(UsageError, match=words):
        papers_page.check(row(**changes), TABLES)


def test_a_page_shows_the_papers_figure_before_ours():
    figures = {"a": {"name": "speed", "paper": "3.0", "of": cell("a", "x"), "digits": 1}}
    given = row(figures=figures, claims=[["a", ">", 1]], why="by {a}", lines=["papers-x", "y"])
    data = {"papers": {"xia": {"short": "Xia", "title": "T"}}, "rows": [given]}
    page = papers_page.page(data, TABLES)
    assert "speed: 3.0 → **2.0**" in page and "**same direction**: by 2.0<br>" in page
    assert "[some](../results/some.json), `papers-x` |" in page
    assert "Rows: same direction 1; other direction 0;" in page


ENDS = some([
    {"decoder": "a", "x": Value(1.05, 0.99, 1.1), "BLEU": 30.0, "less": Value(-0.5, -1, 0.1)},
    {"decoder": "b", "x": Value(2.0, 1.9, 2.2), "BLEU": 30.8, "less": Value(-2, -3, -1)},
    {"decoder": "c", "x": 2, "BLEU": 32.0, "less": 0},
])  # fmt: skip


@pytest.mark.parametrize(
    ("figure", "wanted"),
    [
        ({"of": cell("a", "x")}, (0.99, 1.1)),
        ({"of": cell("b", "x"), "over": cell("c", "x")}, (0.95, 1.1)),
        ({"of": cell("c", "x"), "over": cell("b", "x")}, (2 / 2.2, 2 / 1.9)),
        ({"of": cell("c", "x"), "plus": cell("a", "x"), "less": cell("b", "x")}, (0.79, 1.2)),
        ({"of": cell("a", "less")}, (-1, 0.1)),
        ({"of": cell("b", "BLEU"), "less": cell("a", "BLEU")}, (-0.1, 1.7)),
        ({"of": cell("a", "BLEU"), "less": cell("a", "BLEU")}, (0, 0)),
    ],
)
def test_a_figures_spread_is_that_of_its_cells(figure, wanted):
    value = papers_page.evaluate(figure, ENDS)
    assert (value.low, value.high) == pytest.approx(wanted)


def test_a_claim_inside_the_spread_is_marked():
    figures = {
        "a": {"name": "A", "of": cell("a", "x")},
        "b": {"name": "B", "of": cell("b", "x"), "mark": "one seed"},
        "c": {"name": "C", "of": cell("c", "x"), "mark": "one seed"},
        "bleu": {"name": "D", "of": cell("b", "BLEU"), "less": cell("a", "BLEU")},
        "more": {"name": "E", "of": cell("c", "BLEU"), "less": cell("a", "BLEU")},
    }
    claims = [["a", ">", 1], ["b", "<=", "c"], ["c", ">", "a"], ["bleu", ">", 0], ["more", ">", 0]]
    given = row(figures=figures, claims=claims)
    assert papers_page.unsure(given, papers_page.check(given, ENDS)) == {"a", "b", "bleu"}
    page = papers_page.page(
        {"papers": {"xia": {"short": "X", "title": "T"}}, "rows": [given]}, ENDS
    )
    assert "A: **1.05** (within the spread)<br>B: **2.00** (within the spread)<br>" in page
    assert "C: **2.00** (one seed)<br>D: **0.80** (within the spread)<br>E: **2.00** |" in page


# ---- the command -------------------------------------------------------------------------------


def test_without_a_row_all_are_listed(capsys):
    assert cli.main(["papers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(ROWS)]] == list(ROWS)
    assert lines[-1].startswith("same direction: ")


def test_a_row_runs_on_the_models_given(monkeypatch, tmp_path, capsys):
    ran: list[list[str]] = []
    monkeypatch.setattr(papers, "main", lambda words: ran.append(words) or 0)
    words = ["zhang-f3", "data/x.en-fr", "--path", "one.pt", "--path", "two.pt"]
    assert cli.main(["papers", *words, "--out", str(tmp_path / "o.json")]) == 0
    assert [one[0] for one in ran] == ["benchmark", "analyse"]
    assert ran[0][1:4] == ["data/x.en-fr", "--path", "one.pt"]
    assert any("--path two.pt" in word for word in ran[0])
    assert ran[1][2] == str(tmp_path / "o.json") and str(tmp_path / "o.svg") in ran[1]
    said = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert said == [["paradec", *one] for one in ran]


def test_a_target_language_is_the_end_of_datas_name(capsys):
    assert cli.main(["papers", "xia-3", "data/x.en-fr", "--list"]) == 0
    assert "--reference data/x.en-fr/raw/valid.fr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["xia-99"], "ROW: got 'xia-99'; allowed: santilli-1"),
        (["xia-10"], "ROW: got 'xia-10'; allowed: a row with commands"),
        (["zhang-f3", "d", "--path", "a"], "zhang-f3 needs 2 --path; model2 is not given"),
        (["xia-3", "d/x"], "DATA: got 'd/x'; allowed: a folder whose name ends in -LANG"),
        (["xia-3", "a-b/x"], "DATA: got 'a-b/x'; allowed: a folder whose name ends in -LANG"),
        (["zhang-3", "d.en-de"], "DATA: got 'd.en-de'; allowed: none; zhang-3 takes no data"),
        (["xia-3", "--path", "a", "--path", "b"], "--path: got 'a b'; allowed: 1 for xia-3"),
        (["zhang-f3", "--drafter-path", "a"], "allowed: none; zhang-f3 takes no drafter"),
        (["xia-3", "--out", "a.svg"], "--out: got 'a.svg'; allowed: a file whose name ends in"),
        (["--path", "a"], "--path needs ROW"),
    ],
)
def test_what_cannot_be_run_is_named(capsys, words, said):
    assert cli.main(["papers", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(
    monkeypatch, tmp_path, capsys
):
    """The rights are those of another user: root may write anywhere."""
    monkeypatch.setattr(papers, "main", lambda words: pytest.fail("work has started"))
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert cli.main(["papers", "zhang-3", "--out", str(tmp_path / "o.json")]) == 2
    assert "o.json'; allowed: a file in a folder that can be written to" in capsys.readouterr().err
