"""RESULTS.md and the pages of results: rendered from JSON, checked, refused by file."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.commands import ROOT

from fairseq_paradec.cli.main import main
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis import summary_page
from fairseq_paradec.lab.commands import results
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Result, Table
from fairseq_paradec.lab.measure import machine


def paradec(*arguments: object) -> int:
    """Run paradec results."""
    return main(["results", *map(str, arguments)])


def write_table(folder: Path, name: str = "some", **changes: Any) -> Path:
    """Write a table as the commands do, with changes to it."""
    rows = [{"model": "a|b", "ms": 1.5, "done": True, "gain": None, "note": ""}]
    path = folder / f"{name}.json"
    made_by = machine.circumstances(["benchmark", "DATA", "--out", "results/some.json"])
    documents.save(path, "A table", Table.of(rows, notes=["A note."]), made_by)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")
    return path


def test_the_committed_page_is_what_the_tables_render_to(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert paradec("--check") == 0, capsys.readouterr().out


def test_the_committed_pages_are_short_and_portable():
    pages = [ROOT / "RESULTS.md", *(ROOT / "results").glob("*.md")]
    assert pages[0].stat().st_size <= 8 * 1024
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert not re.findall(r"(?:^|[\s`'\"=(:])/\w[^\s]*", text)
    chosen = json.loads((ROOT / "results" / results.SUMMARY).read_text(encoding="utf-8"))
    for one in chosen["targets"]:
        assert len(f"{one['target']} {one['found']}".split()) <= 15, one


def test_no_stored_cell_is_a_text_of_a_number() -> None:
    for file in (ROOT / "results").glob("*.json"):
        for row in json.loads(file.read_bytes()).get("rows", []):
            for cell in row.values():
                text = cell if isinstance(cell, str) else ""
                assert not re.match(r"[-+]?\d+(\.\d+|/\d+|x| \()", text), (file.name, row)


def choice(**changes: Any) -> dict[str, Any]:
    """What summary.json says of one benchmark, with changes."""
    lines: dict[str, Any] = {name: [] for name in ("which", "sure", "not paying", "beside")}
    peer = {"engine": "CTranslate2", "fp32": "CTranslate2 greedy, float32"}
    target = {"target": "speed", "found": "2.16", "met": "yes", "from": ["benchmark-tiny"]}
    return {
        "benchmark": "benchmark-tiny",
        "model": "tiny",
        "decoders": [{"decoder": "`greedy`", "needs": "nothing", "fp32": "greedy"}],
        **lines,
        "lossless": ["benchmark-tiny"],
        "drafting": ["greedy"],
        "peers": [peer],
        "targets": [target],
        "not run": ["all else"],
        **changes,
    }


def rendered(folder: Path, **changes: Any) -> dict[Path, str]:
    """The pages of one benchmark and this choice."""
    shutil.copy(ROOT / "results" / "benchmark-tiny.json", folder)
    (folder / results.SUMMARY).write_text(json.dumps(choice(**changes)))
    return results.render(folder, folder / "page.md")


def test_a_summary_answers_four_questions(tmp_path):
    page = rendered(tmp_path)[tmp_path / "page.md"]
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == [
        "Which decoder should I take",
        "How sure is it that lossless is lossless",
        "Where drafting does not pay",
        "Beside fairseq and CTranslate2",
    ]
    assert "| `greedy` | nothing | 14.68 | 13.7 | 2.98 | 1000/1000 | - | - | - | - |" in page


def test_a_decoder_that_was_not_run_is_not_left_out(tmp_path):
    (greedy,) = choice()["decoders"]
    other = {"decoder": "`gad`", "needs": "a drafter"}
    page = rendered(tmp_path, decoders=[greedy, other])[tmp_path / "page.md"]
    assert "| `gad` | a drafter | - | - | - | - | - | - | - | - |" in page
    assert "| decoder | needs | passes | fp32: ms |" in page
    assert "| --- | --- | --: | --: | --: | --- |" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"benchmark": "other"}, "got 'other'"),
        ({"drafting": ["other"]}, "got other; allowed: fairseq beam 5"),
        ({"sure": [{"text": "9.87 times", "from": ["benchmark-tiny"]}]}, "9.87 does not stand"),
    ],
)
def test_a_summary_says_only_what_was_measured(tmp_path, changes, words):
    with pytest.raises(UsageError, match=words):
        rendered(tmp_path, **changes)


def test_outputs_that_differ_are_counted(tmp_path):
    row = {"decoder": "gad", "batch_size": 1, "sentences": 90, "ties": 1, "beyond_ties": 2}
    rows = [row | {"lossless": True}, row | {"lossless": False}]
    found = {"some": Result("some.json", {}, [Table.of(rows)])}
    said = summary_page.counts({"lossless": ["some"]}, found)
    assert said.startswith("90 outputs") and "2 differ beyond ties, 1 by a tie" in said


def test_parts_of_other_pages_are_rendered_between_their_marks(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "experiments.md"
    page.write_text(
        "Before\n<!-- targets by paradec results -->\nold\n<!-- end of targets -->\nAfter"
    )
    text = rendered(tmp_path)[page]
    assert text.startswith("Before\n") and text.endswith("\nAfter") and "old" not in text
    assert "| speed | 2.16 | yes |" in text and "Not run: all else." in text
    page.write_text("No marks")
    with pytest.raises(UsageError, match="targets by paradec results"):
        rendered(tmp_path)


def test_pages_are_made_once_and_then_compared(tmp_path):
    write_table(tmp_path, "a")
    out = tmp_path / "page.md"
    arguments = ["--tables", tmp_path, "--out", out]
    assert paradec(*arguments, "--check") == 1 and not out.exists()
    assert paradec(*arguments) == paradec(*arguments, "--check") == 0


def test_a_table_renders_with_its_circumstances(tmp_path):
    write_table(tmp_path, "a", title="The first")
    assert paradec("--tables", tmp_path, "--out", tmp_path / "page.md") == 0
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text.startswith("# The first\n")
    assert f"torch {version('torch')}" in text
    assert "\n- A note.\n" in text
    assert "\n```\nparadec benchmark DATA --out results/some.json\n```\n" in text
    table = """
| model | ms | done | gain | note |
| --- | --: | --- | --: | --- |
| a\\|b | 1.5 | yes | - |  |
"""
    assert text.endswith(table)


def test_an_edited_page_is_shown_and_left_alone(tmp_path, capsys):
    write_table(tmp_path, "a")
    arguments = ["--tables", tmp_path, "--out", tmp_path / "page.md"]
    assert paradec(*arguments) == 0
    page = tmp_path / "a.md"
    edited = page.read_text(encoding="utf-8").replace("1.5", "1.4")
    page.write_text(edited, encoding="utf-8")
    capsys.readouterr()
    assert paradec(*arguments, "--check") == 1
    captured = capsys.readouterr()
    assert "-| a\\|b | 1.4 |" in captured.out and "+| a\\|b | 1.5 |" in captured.out
    assert "run paradec results" in captured.err
    assert page.read_text(encoding="utf-8") == edited


def test_a_wrong_table_is_refused_by_file(tmp_path):
    for changes, words in (
        ({"schema": "other"}, ["schema 'other'", "fairseq_paradec.table"]),
        ({"version": 3}, ["version 3", "allowed: version 4"]),
        ({"notes": None}, ["$.notes", "'array'"]),
        ({"rows": []}, ["$.rows", "non-empty"]),
        ({"rows": [{"a": 1}]}, ["other cells than the columns"]),
        ({"columns": [{"key": "a", "name": n} for n in "ab"]}, ["the same key"]),
        ({"rows": [{"a": {"low": 1}}]}, ["$.rows[0].a"]),
        ({"command": "python -m x --out=/x.json"}, ["/x.json", "relative"]),
    ):
        path = write_table(tmp_path, "wrong", **changes)
        with pytest.raises(UsageError) as error:
            documents.read_published(path)
        assert all(word in str(error.value) for word in [str(path), *words])


def test_what_is_no_table_is_refused_by_file(tmp_path, capsys):
    path, page = tmp_path / "broken.json", tmp_path / "page.md"
    for content in (b"", b"{", b"[]", b"\xff\xfe", b"null"):
        path.write_bytes(content)
        assert paradec("--tables", tmp_path, "--out", page) == 2 and not page.exists()
        assert f"paradec results: error: {path}: " in capsys.readouterr().err
    assert paradec("--tables", "no/such") == 2
    assert "--tables: got 'no/such'" in capsys.readouterr().err
