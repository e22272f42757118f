"""paradec report: one page of a folder, whose numbers are those of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import Browser, chromium
from support.commands import ROOT
from support.stats_records import greedy

from fairseq_paradec.analysis import report, speed_ups
from fairseq_paradec.analysis.tally import BEYOND, Tally
from fairseq_paradec.cli.main import main as paradec

BENCHMARK = ROOT / "results" / "benchmark-gad-tiny.json"
MACHINE = {"processor": 'P <1> & "2"', "cores": 2, "threads": 1, "accelerator": "none"}

#: Texts that HTML, scripts and terminals could take for something else.
NASTY = "</script><b title='x'>\"&amp; -- --> $x_1 שלום 日本語 \x1b\ud800\u202e\u2028"
#: The same as a reader sees them.
NASTY_SHOWN = NASTY[:-4] + "\\x1b\\ud800\\u202e\\u2028"


# ---- files, made by hand -----------------------------------------------------------------------


def table(title: str = "A table", **changes: Any) -> dict[str, Any]:
    """Return a table's document."""
    document = {
        "schema": "fairseq_paradec.table", "version": 1, "title": title,
        "notes": ["Read `a|b` so.", "An odd ` is one."],
        "command": "python -m fairseq_paradec.cli.made_up --title '<t>'", "date": "2026-01-02",
        "machine": MACHINE, "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "rows": [
            dict(zip(("name", "x", "share", "gain", "on"), cells))
            for cells in (
                ("gad 10", "10.5x (1-2)", "9/100", "+0.10 [-1, 1]", True),
                ("Ü <i>", "-", "100/100", "-0.75 [-1, 1]", None),
                ("gad 9", "9.3x (1-2)", "76/100", "-1.50 [-2, 0]", False),
                ("gad 8", None, "8/100", "+0.00 [0, 0]", False),
            )
        ],
    }  # fmt: skip
    return document | changes


def drafted(number: int, source: Sequence[str], output: Sequence[str]) -> dict[str, Any]:
    """Return the record of the same by two passes.

    The first drafts two tokens, the first of which is right only for a rule that lets pass what the
    verifier has second, and the second wrong; the second drafts all the rest, and is right.
    """
    first, second, *rest = output
    record = greedy(number, source, output)
    return record | {
        "decoding": "gad_pp",
        "lossless": False,
        "flags": {"block_size": 2, "adaptive_block": False, "accept_margin": 1.5},
        "decoder_passes": 2,
        "num_drafted": [2, len(rest)],
        "num_accepted": [1, len(rest)],
        "audit": {"identical": False, "position": 0, "gap": 0.2, "tie": False},
        "trace": [
            {
                "start": 0, "num_accepted": 1, "num_committed": 2, "draft": [first, "wrong"],
                "verifier": ["better", second], "log_probs": [-0.1, -0.25],
                "runner_up": [first, "no"], "runner_up_log_probs": [-0.3, -3.0],
                "draft_log_probs": [-0.3, -4.0], "draft_ranks": [1, 9],
            },
            {
                "start": 2, "num_accepted": len(rest), "num_committed": len(rest), "draft": rest,
                "verifier": rest, "log_probs": [-0.5] * len(rest), "runner_up": [None] * len(rest),
                "runner_up_log_probs": [None] * len(rest), "draft_log_probs": [-0.5] * len(rest),
                "draft_ranks": [0] * len(rest),
            },
        ],
    }  # fmt: skip


SENTENCES = {
    10: (["a", "b", "</s>"], ["<b>", "&amp;", '"q"', "</s>"]),
    2: (["שלום", "</s>"], ["مرحبا", "بالعالم", "日本語", "</s>"]),
    3: (["long", "</s>"], [f"t{i}" for i in range(199)] + ["</s>"]),
}


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Write a trace."""
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), "utf-8")
    return path


def without_passes(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as --stats-file writes it."""
    return {name: value for name, value in record.items() if name != "trace"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table, traces and statistics, and some files that are of no kind."""
    made = tmp_path / 'made & "so"'
    made.mkdir()
    other = {"torch": "2.12.1", "python": "3.11.7"}
    (made / "a table.json").write_text(json.dumps(table(NASTY, versions=other)), "utf-8")
    write_lines(made / "gad_pp.jsonl", [drafted(n, *both) for n, both in SENTENCES.items()])
    greedies = [greedy(n, *both) for n, both in SENTENCES.items()]
    write_lines(made / "greedy.jsonl", [*reversed(greedies), greedy(77, ["x"], ["y", "</s>"])])
    write_lines(made / "stats.jsonl", list(map(without_passes, greedies)))
    (made / "profile.json").write_text('{"schema": "other", "version": 1}')
    (made / "run.partial.jsonl").write_text('{"spec": {}}\n')
    (made / "below.json").mkdir()
    return made


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Run the command; return its status and what it printed."""
    status = paradec(["report", *map(str, args)])
    out, err = capsys.readouterr()
    return status, out, err


# ---- the page in a browser ---------------------------------------------------------------------


def grid(browser: Browser, name: str) -> list[list[str]]:
    """Return the rows of the table of a name, the heads first."""
    script = """
      const found = [...document.querySelectorAll(".scroll")].filter(
        (one) => one.getAttribute("aria-label") === arguments[0]);
      return found.map((one) => [...one.querySelectorAll("tr")].map(
        (row) => [...row.cells].map((cell) => cell.textContent)));
    """
    (found,) = browser.driver.execute_script(script, name)
    return [[str(cell) for cell in row] for row in found]


def shown(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return what a table of these rows shows."""
    words = {None: "not run", True: "yes", False: "no"}
    cells = [[words[v] if v is None or v is True or v is False else str(v) for v in row.values()]
             for row in rows]  # fmt: skip
    return [list(rows[0]), *cells]


def column(browser: Browser, name: str, place: int) -> list[str]:
    """Return the cells of one column."""
    return [row[place] for row in grid(browser, name)[1:]]


def click_head(browser: Browser, name: str, head: str) -> None:
    """Click on the head of a column."""
    script = """
      const box = [...document.querySelectorAll(".scroll")].find(
        (one) => one.getAttribute("aria-label") === arguments[0]);
      const head = [...box.querySelectorAll("thead button")].find(
        (one) => one.textContent === arguments[1]);
      head.scrollIntoView({block: "center"});
      return head;
    """
    browser.driver.execute_script(script, name, head).click()


@pytest.mark.slow
def test_page_in_a_browser(folder: Path, capsys: pytest.CaptureFixture[str]):
    document = json.loads(BENCHMARK.read_text("utf-8")) | {"title": f"GAD {NASTY}"}
    (folder / BENCHMARK.name).write_text(json.dumps(document))
    assert run(capsys, folder, "--title", f"All of it {NASTY}")[0] == 0
    first = (folder / "report.html").read_bytes()
    assert run(capsys, folder, "--title", f"All of it {NASTY}")[0] == 0  # the same bytes again
    assert (folder / "report.html").read_bytes() == first
    with chromium() as browser:
        browser.open(folder / "report.html")
        check_values(browser)
        check_sorting(browser)
        check_viewer(browser)
        browser.check_quiet()


def check_values(browser: Browser) -> None:
    """Check what the page says against the files, read and worked out here."""
    assert browser.one("h1").text == f"All of it {NASTY_SHOWN}"
    document = json.loads(BENCHMARK.read_text("utf-8"))
    for one in [*document["tables"], *speed_ups.tables(document)]:
        assert grid(browser, one["title"]) == shown(one["rows"])
    assert grid(browser, "a table.json") == shown(table()["rows"])
    texts = browser.texts("#file-benchmark-gad-tiny")[0]
    for said in [f"GAD {NASTY_SHOWN}", document["command"], *document["signatures"].values()]:
        assert said in texts
    # 4 + 4 + 200 tokens; the first two of each by one pass, with one of two drafts accepted
    total = {row[0]: row[1:] for row in grid(browser, "Traces and statistics")[1:]}
    assert total == {
        "gad_pp.jsonl": ["gad_pp", "none", "3", "208", "6", "34.67", "208", "205", "0.99", "3",
                         "3", "0", "0", "0", "3"],
        "greedy.jsonl": ["greedy", "exact", "4", "210", "210", "1.0", "0", "0", "-", "0",
                         "4", "4", "0", "0", "0"],
        "stats.jsonl": ["greedy", "exact", "3", "208", "208", "1.0", "0", "0", "-", "-",
                        "3", "3", "0", "0", "0"],
    }  # fmt: skip
    warnings = browser.texts(".warnings")[0]
    assert "2.12.1" in warnings and MACHINE["processor"] in warnings


def check_sorting(browser: Browser) -> None:
    """Sort by numbers, by shares and by names."""
    name = "a table.json"
    was = grid(browser, name)
    # numbers by the first number in a cell, and cells without one last, either way
    rising = ["9.3x (1-2)", "10.5x (1-2)"]
    for order in (rising, rising[::-1]):
        click_head(browser, name, "x")
        assert column(browser, name, 1) == [*order, "-", "not run"]
    click_head(browser, name, "x")
    assert grid(browser, name) == was
    for head, place, order in (
        ("share", 2, ["8/100", "9/100", "76/100", "100/100"]),
        ("gain", 3, ["-1.50 [-2, 0]", "-0.75 [-1, 1]", "+0.00 [0, 0]", "+0.10 [-1, 1]"]),
        ("name", 0, ["gad 8", "gad 9", "gad 10", "Ü <i>"]),
    ):
        click_head(browser, name, head)
        assert column(browser, name, place) == order


def check_viewer(browser: Browser) -> None:
    """Click through the sentences that both traces have, in order of their numbers."""
    outputs = {n: output for n, (_, output) in SENTENCES.items()}
    for number in (2, 3, 10):
        assert browser.one("#viewer .name").text == f"sentence {number}"
        for panel in ("gad_pp", "greedy"):
            words = browser.texts(f".panel[data-decoding='{panel}'] .boxes .token .word")
            assert words == outputs[number]
        if number != 10:
            browser.one("#viewer .onward").click()
    browser.one("#viewer .views [value='passes']").find_element("xpath", "..").click()
    drafts = browser.texts(".panel[data-decoding='gad_pp'] [data-what='draft'] .word")
    assert drafts == ["<b>", "wrong", '"q"', "</s>"]
    # Keys outside of the viewer leave the sentence as it is.
    browser.all(".scroll")[0].send_keys(Keys.ARROW_LEFT)
    assert browser.one("#viewer .name").text == "sentence 10"


# ---- what is on it, and what is not ------------------------------------------------------------


def test_what_is_left_out_is_said(folder: Path, capsys: pytest.CaptureFixture[str]):
    out = folder.parent / "page.html"
    status, printed, _ = run(capsys, folder, "--out", out)
    assert status == 0
    left = ["below.json: no file", "profile.json: JSON of another kind (schema: other)",
            "run.partial.jsonl: JSON lines of another kind"]  # fmt: skip
    text = out.read_text("utf-8")
    assert all(f"<li>{line}</li>" in text for line in left)
    assert printed.splitlines() == [
        *(f"left out: {line.replace(': ', ', ', 1)}" for line in left),
        f"{out}: 1 results, 3 traces or statistics",
    ]
    assert "<title>Report of made &amp; &quot;so&quot;</title>" in text


def test_traces_of_other_data_are_shown_each_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, word in (("a", "x"), ("b", "y")):
        write_lines(tmp_path / f"{name}.jsonl", [greedy(None, [word], [word, "</s>"])])
    assert run(capsys, tmp_path)[0] == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    found = re.findall(r'<script type="application/json" class="sentence">(.*?)</script>', page)
    names = [json.loads(one)["name"] for one in found]
    assert names == ["a.jsonl, sentence of line 1", "b.jsonl, sentence of line 1"]
    assert "No sentence is in all traces" in page


def test_warnings_name_what_differs():
    first, second = (
        report.Document(name, "table", table(**changes), [])
        for name, changes in (
            ("a.json", {}),
            ("b.json", {"versions": {"torch": "3"}, "machine": MACHINE | {"cores": 4}}),
        )
    )
    assert report.warnings([first, first]) == []
    machine = 'P <1> & "2", {} cores, accelerator: none: {}'
    assert report.warnings([first, second]) == [
        (
            "Times of different machines must not be compared.",
            [machine.format(2, "a.json"), machine.format(4, "b.json")],
        ),
        ("Not all was measured with the same torch.", ["torch 2.13.0: a.json", "torch 3: b.json"]),
    ]


def test_a_broken_promise_and_other_signatures_are_warnings():
    contents = [json.loads(BENCHMARK.read_text("utf-8")) for _ in range(2)]
    assert report.warnings([report.Document("b.json", "benchmark", contents[0], [])]) == []
    gad = next(s for s in contents[0]["systems"] if s["label"] == "gad")
    gad["agreement"]["1"]["beyond ties"] = 2
    contents[1]["signatures"]["BLEU"] = "tok:intl"
    files = [report.Document(f"{i}.json", "benchmark", c, []) for i, c in enumerate(contents)]
    scores, promise = report.warnings(files)
    assert scores[0].startswith("Not all BLEU scores are of one kind") and scores[1] == [
        "BLEU nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0: 0.json",
        "BLEU tok:intl: 1.json",
    ]
    checked = sum(one["sentences"] for one in gad["agreement"].values())
    assert promise[1] == [f"0.json: gad is NOT EXACT (2 of {checked})"]


@pytest.mark.parametrize(
    ("promise", "verdict", "title"),
    [
        ({"lossless": True, "engine_dtype": "fp32"}, BEYOND, "Not all is exact that promised it."),
        ({"lossless": True, "engine_dtype": "bf16"}, "other dtype", None),
        ({"lossless": False, "engine_dtype": "fp32"}, BEYOND, None),
        ({}, BEYOND, "Whether these outputs were promised to be exact is not recorded."),
    ],
)
def test_an_audit_is_judged_by_what_the_record_promises(promise, verdict, title):
    """Whatever the method and its flags: GAD++ with a beta of 1 is exact, and says so."""
    tally = Tally("t.jsonl", True)
    for audit in ({"identical": False, "tie": False}, {"identical": False, "tie": True},
                  {"identical": True}, None):  # fmt: skip
        changes = {"decoding": "gad_pp", "flags": {"accept_topk": 1}, "audit": audit}
        record = greedy(1, ["a"], ["</s>"]) | changes
        made_by = ("lossless", "engine_dtype")
        tally.add({n: v for n, v in record.items() if n not in made_by} | promise, None)
    assert tally.audits == {"identical": 1, "ties": 1, verdict: 1}
    said = "t.jsonl: 1 of 3 outputs are not fairseq's greedy search's, ties apart"
    assert report.warnings([], [tally]) == ([] if title is None else [(title, [said])])


def doctored() -> dict[str, Any]:
    """A benchmark whose tables contradict its samples."""
    document: dict[str, Any] = json.loads(BENCHMARK.read_text("utf-8"))
    document["tables"][1]["rows"][0]["p95"] += 0.01
    return document


# ---- errors ------------------------------------------------------------------------------------


def changed(content: dict[str, Any], **changes: Any) -> str:
    """Return a document with other fields; None drops one."""
    new = content | changes
    return json.dumps({name: value for name, value in new.items() if value is not None})


ONE = greedy(1, ["a"], ["b", "</s>"])
LINE = json.dumps(ONE) + "\n"
STATISTICS = json.dumps(without_passes(ONE)) + "\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", json.dumps(table())[:-20], "a.json: cannot be read as JSON, or only a part of"),
        ("a.json", changed(table(), version=2), "version 2; allowed: version 1"),
        ("a.json", changed(table(), setting="x"), "a.json: 'setting' is no dict"),
        ("a.json", changed(table(), rows=[]), "a.json: 'rows' must be one or more"),
        ("a.json", changed(table(), machine=None), "a.json: 'machine' is missing"),
        ("a.json", json.dumps(doctored()), "a.json: its tables are not what its raw samples say"),
        ("a.jsonl", "", "a.jsonl, line 1: "),
        ("a.jsonl", LINE + LINE[: len(LINE) // 2], "line 2: the file is cut off in the middle"),
        ("a.jsonl", changed(ONE, version=99) + "\n", "a.jsonl, line 1: got version 99; allowed"),
        ("a.jsonl", LINE + STATISTICS, "a.jsonl, line 2: got a line of another kind"),
        ("a.jsonl", STATISTICS + LINE, "a.jsonl, line 2: got a line of another kind"),
        ("a.jsonl", changed(ONE, output=["c"]) + "\n", "a.jsonl, line 1: the sentence contradicts"),
        ("a.jsonl", changed(ONE, num_drafted=[-1]) + "\n", "line 1: 'num_drafted' is missing"),
        ("a.jsonl", changed(ONE, flags=[1]) + "\n", "a.jsonl, line 1: 'decoding' or 'flags'"),
        ("a.txt", "", "allowed: a folder with what the measuring commands wrote"),
        ("a.json", '{"schema": []}', "a.json is JSON of another kind (schema: [])"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
):
    if "of another kind (" not in said and name != "a.txt":  # beside one that is right
        (tmp_path / "b.json").write_text(json.dumps(table()))
    (tmp_path / name).write_text(text)
    status, out, err = run(capsys, tmp_path)
    assert (status, out) == (2, "") and not (tmp_path / "report.html").exists()
    assert err.startswith("paradec report: error: ") and said in err and err.count("\n") == 1


def test_wrong_folders_and_pages(folder: Path, capsys: pytest.CaptureFixture[str]):
    for args, said in (
        (["no"], "DIR: got 'no'; allowed: a folder"),
        ([folder, "--out", folder / "profile.json"], "--out: got "),
        ([folder, "--out", folder / "no" / "a.html"], "--out: got "),
    ):
        status, _, err = run(capsys, *args)
        assert status == 2 and said in err
