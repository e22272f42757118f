"""RESULTS.md and the pages of results: rendered from JSON, checked, refused by file."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.commands import ROOT

from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis.result_pages import page
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Result, Table
from fairseq_paradec.lab.measure import machine
from tools.site import __main__, pages, source, summary
from tools.site.published import SUMMARY, read_result, read_results, read_summary


def write_table(folder: Path, name: str = "some", **changes: Any) -> Path:
    """Write a table as the commands do, with changes to it."""
    rows = [{"model": "a|b", "ms": 1.5, "done": True, "gain": None, "note": ""}]
    path = folder / f"{name}.json"
    made_by = machine.circumstances(["benchmark", "DATA", "--out", "results/some.json"])
    documents.save(path, "A table", Table.of(rows, notes=["A note."]), made_by)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")
    return path


def test_the_committed_pages_are_what_the_results_render_to(capsys):
    assert __main__.make_pages(check=True), capsys.readouterr().out


def test_the_committed_page_is_short_and_results_are_portable():
    summary_page = ROOT / "RESULTS.md"
    assert summary_page.stat().st_size <= 8 * 1024
    files = (summary_page, *(ROOT / "results").glob("*.json"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert not re.findall(r"(?:^|[\s`'\"=(:])/\w[^\s]*", text)
    for target in read_summary(ROOT / "results")["targets"]:
        assert len(f"{target['target']} {target['found']}".split()) <= 15, target


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
    (folder / SUMMARY).write_text(json.dumps(choice(**changes)))
    return pages.render(read_results(folder), read_summary(folder), folder)


def test_a_summary_answers_four_questions(tmp_path):
    text = rendered(tmp_path)[tmp_path / "RESULTS.md"]
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "Which decoder should I take",
        "How sure is it that lossless is lossless",
        "Where drafting does not pay",
        "Beside fairseq and CTranslate2",
    ]
    assert "| `greedy` | nothing | 14.68 | 13.7 | 2.98 | 1000/1000 | - | - | - | - |" in text


def test_a_decoder_that_was_not_run_is_not_left_out(tmp_path):
    (greedy,) = choice()["decoders"]
    other = {"decoder": "`gad`", "needs": "a drafter"}
    text = rendered(tmp_path, decoders=[greedy, other])[tmp_path / "RESULTS.md"]
    assert "| `gad` | a drafter | - | - | - | - | - | - | - | - |" in text
    assert "| decoder | needs | passes | fp32: ms |" in text
    assert "| --- | --- | --: | --: | --: | --- |" in text


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
    results = {"some": Result("some.json", {}, [Table.of(rows)])}
    said = summary.counts({"lossless": ["some"]}, results)
    assert said.startswith("90 outputs") and "2 differ beyond ties, 1 by a tie" in said


def test_parts_of_other_pages_are_rendered_between_their_marks(tmp_path):
    (tmp_path / "docs").mkdir()
    file = tmp_path / "docs" / "experiments.md"
    file.write_text("Before\n<!-- targets by make docs -->\nold\n<!-- end of targets -->\nAfter")
    text = rendered(tmp_path)[file]
    assert text.startswith("Before\n") and text.endswith("\nAfter") and "old" not in text
    assert "| speed | 2.16 | yes |" in text and "Not run: all else." in text
    file.write_text("No marks")
    with pytest.raises(UsageError, match="targets by make docs"):
        rendered(tmp_path)


def test_a_table_renders_with_its_circumstances(tmp_path):
    text = page(read_result(write_table(tmp_path, "a", title="The first")))
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
    file, text = tmp_path / "page.md", "# A page\n\n1.5\n"
    assert not pages.is_current(file, text) and not file.exists()
    file.write_text(text)
    assert pages.is_current(file, text)
    file.write_text(text.replace("1.5", "1.4"))
    capsys.readouterr()
    assert not pages.is_current(file, text)
    captured = capsys.readouterr()
    assert "-1.4" in captured.out and "+1.5" in captured.out
    assert "run make docs" in captured.err
    assert "1.4" in file.read_text()


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
            read_result(path)
        assert all(word in str(error.value) for word in [str(path), *words])


def test_what_is_no_table_is_refused_by_file(tmp_path):
    path = tmp_path / "broken.json"
    for content in (b"", b"{", b"[]", b"\xff\xfe", b"null"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=re.escape(f"{path}: ")):
            read_results(tmp_path)
    with pytest.raises(UsageError, match="--results: got 'no/such'"):
        read_results(Path("no/such"))


# ---- the site ------------------------------------------------------------------------------------


def test_the_site_has_a_page_of_each_result_and_links_go_there(tmp_path, monkeypatch):
    root, site = tmp_path / "root", tmp_path / "site"
    for folder in ("docs", "results"):
        (root / folder).mkdir(parents=True)
    write_table(root / "results", "some", title="Some")
    (root / "results" / SUMMARY).write_text("{}")
    (root / "results" / "some.png").write_bytes(b"a picture")
    (root / "results" / "old.md").write_text("a page of an earlier result")
    (root / "results" / "README.md").write_text("# Each\n")
    (root / "docs" / "a.md").write_text(
        "[some](../results/some.json#table) [choice](../results/summary.json) [b](b.svg)\n"
        "![some](../results/some.png) [far](https://x.y/results/some.json)\n"
    )
    (root / "docs" / "b.svg").write_text("<svg/>")
    monkeypatch.setattr(source, "ROOT", root)
    source.make(site)
    assert sorted(str(file.relative_to(site)) for file in site.rglob("*.*")) == [
        "docs/a.md",
        "docs/b.svg",
        "results/README.md",
        "results/some.json",
        "results/some.md",
        "results/some.png",
        "results/summary.json",
    ]
    text = (site / "docs" / "a.md").read_text()
    assert "(../results/some.md#table)" in text and "(../results/summary.json)" in text
    assert "(https://x.y/results/some.json)" in text
    assert (site / "results" / "README.md").read_text() == "# Each\n\n- [Some](some.md), " + (
        f"{documents.load(root / 'results' / 'some.json')['date']}\n"
    )
    made = (site / "results" / "some.md").read_text()
    assert "![Some](some.png)" in made and made.endswith("[some.json](some.json)\n")


def test_pictures_of_stored_measurements_are_drawn_again(tmp_path):
    for name, ending in (("benchmark-tiny", "png"), ("breakeven-tiny-self", "svg")):
        result = read_result(ROOT / "results" / f"{name}.json")
        picture = source.make_picture(result, tmp_path)
        assert picture == tmp_path / f"{name}.{ending}" and picture.stat().st_size > 0
    table = read_result(ROOT / "results" / "lossless-gad.json")
    assert source.make_picture(table, tmp_path) is None


def test_what_is_committed_beside_results_is_shown_by_a_page():
    text = "".join(file.read_text("utf-8") for file in (ROOT / "docs").glob("*.md"))
    ignored = (ROOT / ".gitignore").read_text("utf-8")
    kept = re.findall(r"^!/(results/.*\.(?:png|svg))$", ignored, re.MULTILINE)
    assert kept and all((ROOT / name).is_file() and f"](../{name})" in text for name in kept)
