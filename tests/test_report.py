"""paradec report: one page of a folder, whose numbers are those of its files."""

from __future__ import annotations

import json
import re

import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import chromium
from support.commands import ROOT
from support.stats_records import greedy
from support.trace_records import write

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


def benchmark():
    return json.loads(BENCHMARK.read_text("utf-8"))


def table(title="A table", **changes):
    """A table's document; None drops a field."""
    cells = (
        ("gad 10", "10.5x (1-2)", "9/100", "+0.10 [-1, 1]", True),
        ("Ü <i>", "-", "100/100", "-0.75 [-1, 1]", None),
        ("gad 9", "9.3x (1-2)", "76/100", "-1.50 [-2, 0]", False),
        ("gad 8", None, "8/100", "+0.00 [0, 0]", False),
    )
    rows = [dict(zip(("name", "x", "share", "gain", "on"), row)) for row in cells]
    document = {
        "schema": "fairseq_paradec.table", "version": 1, "title": title,
        "notes": ["Read `a|b` so.", "An odd ` is one."], "command": "paradec it --title '<t>'",
        "date": "2026-01-02", "machine": MACHINE, "rows": rows,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
    } | changes  # fmt: skip
    return {name: value for name, value in document.items() if value is not None}


def drafted(number, source, output):
    """The record of the same as greedy's by two passes.

    The first drafts two tokens, the first of which is right only for a rule that lets pass what the
    verifier has second, and the second wrong; the second drafts all the rest, and is right.
    """
    first, second, *rest = output
    nothing = [None] * len(rest)
    return greedy(number, source, output) | {
        "decoding": "gad_pp", "lossless": False, "decoder_passes": 2,
        "flags": {"block_size": 2, "adaptive_block": False, "accept_margin": 1.5},
        "num_drafted": [2, len(rest)], "num_accepted": [1, len(rest)],
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
                "verifier": rest, "log_probs": [-0.5] * len(rest), "runner_up": nothing,
                "runner_up_log_probs": nothing, "draft_log_probs": [-0.5] * len(rest),
                "draft_ranks": [0] * len(rest),
            },
        ],
    }  # fmt: skip


SENTENCES = {
    10: (["a", "b", "</s>"], ["<b>", "&amp;", '"q"', "</s>"]),
    2: (["שלום", "</s>"], ["مرحبا", "بالعالم", "日本語", "</s>"]),
    3: (["long", "</s>"], [f"t{i}" for i in range(199)] + ["</s>"]),
}


def without_passes(record):
    """A record as --stats-file writes it."""
    return {name: value for name, value in record.items() if name != "trace"}


@pytest.fixture
def folder(tmp_path):
    """A folder with a table, traces and statistics, and some files that are of no kind."""
    made = tmp_path / 'made & "so"'
    made.mkdir()
    other = {"torch": "2.12.1", "python": "3.11.7"}
    (made / "a table.json").write_text(json.dumps(table(NASTY, versions=other)), "utf-8")
    write(made / "gad_pp.jsonl", *(drafted(n, *both) for n, both in SENTENCES.items()))
    greedies = [greedy(n, *both) for n, both in SENTENCES.items()]
    write(made / "greedy.jsonl", *reversed(greedies), greedy(77, ["x"], ["y", "</s>"]))
    write(made / "stats.jsonl", *map(without_passes, greedies))
    (made / "profile.json").write_text('{"schema": "other", "version": 1}')
    (made / "run.partial.jsonl").write_text('{"spec": {}}\n')
    (made / "below.json").mkdir()
    return made


def run(capsys, *args):
    """The command's status and what it printed."""
    status = paradec(["report", *map(str, args)])
    return status, *capsys.readouterr()


# ---- the page in a browser ---------------------------------------------------------------------

FIND = """const box = [...document.querySelectorAll(".scroll")].find(
    (one) => one.getAttribute("aria-label") === arguments[0]);"""
GRID = """return [...box.querySelectorAll("tr")].map(
    (row) => [...row.cells].map((cell) => cell.textContent));"""
HEAD = """const head = [...box.querySelectorAll("thead button")].find(
    (one) => one.textContent === arguments[1]);
    head.scrollIntoView({block: "center"});
    return head;"""


@pytest.mark.slow
def test_page_in_a_browser(folder, capsys):
    (folder / BENCHMARK.name).write_text(json.dumps(benchmark() | {"title": f"GAD {NASTY}"}))
    pages = []
    for _ in range(2):
        assert run(capsys, folder, "--title", f"All of it {NASTY}")[0] == 0
        pages.append((folder / "report.html").read_bytes())
    assert pages[0] == pages[1]
    with chromium() as browser:
        browser.open(folder / "report.html")
        check_values(browser)
        check_sorting(browser)
        check_viewer(browser)
        browser.check_quiet()


def grid(browser, name):
    """The cells of the table of a name, the heads first."""
    return browser.driver.execute_script(FIND + GRID, name)


def check_values(browser):
    """What the page says is what the files say, read and worked out here."""
    assert browser.one("h1").text == f"All of it {NASTY_SHOWN}"
    document = benchmark()
    tables = {one["title"]: one for one in [*document["tables"], *speed_ups.tables(document)]}
    for title, one in (tables | {"a table.json": table()}).items():
        words = {"None": "not run", "True": "yes", "False": "no"}
        rows = [[words.get(str(cell), str(cell)) for cell in r.values()] for r in one["rows"]]
        assert grid(browser, title) == [list(one["rows"][0]), *rows]
    texts = browser.texts("#file-benchmark-gad-tiny")[0]
    for said in [f"GAD {NASTY_SHOWN}", document["command"], *document["signatures"].values()]:
        assert said in texts
    # 4 + 4 + 200 tokens; the first two of each by one pass, with one of two drafts accepted
    total = {row[0]: " ".join(row[1:]) for row in grid(browser, "Traces and statistics")[1:]}
    assert total == {
        "gad_pp.jsonl": "gad_pp none 3 208 6 34.67 208 205 0.99 3 3 0 0 0 3",
        "greedy.jsonl": "greedy exact 4 210 210 1.0 0 0 - 0 4 4 0 0 0",
        "stats.jsonl": "greedy exact 3 208 208 1.0 0 0 - - 3 3 0 0 0",
    }
    warnings = browser.texts(".warnings")[0]
    assert "2.12.1" in warnings and MACHINE["processor"] in warnings


def check_sorting(browser):
    """By numbers (the first in a cell; cells without one last, either way), shares and names."""
    rising = ["9.3x (1-2)", "10.5x (1-2)"]
    for head, place, order in (
        ("x", 1, [*rising, "-", "not run"]),
        ("x", 1, [*rising[::-1], "-", "not run"]),
        ("x", 1, ["10.5x (1-2)", "-", "9.3x (1-2)", "not run"]),  # as it was
        ("share", 2, ["8/100", "9/100", "76/100", "100/100"]),
        ("gain", 3, ["-1.50 [-2, 0]", "-0.75 [-1, 1]", "+0.00 [0, 0]", "+0.10 [-1, 1]"]),
        ("name", 0, ["gad 8", "gad 9", "gad 10", "Ü <i>"]),
    ):
        browser.driver.execute_script(FIND + HEAD, "a table.json", head).click()
        assert [row[place] for row in grid(browser, "a table.json")[1:]] == order


def check_viewer(browser):
    """Click through the sentences that both traces have, in order of their numbers."""
    for number in (2, 3, 10):
        assert browser.one("#viewer .name").text == f"sentence {number}"
        for panel in ("gad_pp", "greedy"):
            words = browser.texts(f".panel[data-decoding='{panel}'] .boxes .token .word")
            assert words == SENTENCES[number][1]
        if number != 10:
            browser.one("#viewer .onward").click()
    browser.one("#viewer .views [value='passes']").find_element("xpath", "..").click()
    drafts = browser.texts(".panel[data-decoding='gad_pp'] [data-what='draft'] .word")
    assert drafts == ["<b>", "wrong", '"q"', "</s>"]
    # Keys outside of the viewer leave the sentence as it is.
    browser.all(".scroll")[0].send_keys(Keys.ARROW_LEFT)
    assert browser.one("#viewer .name").text == "sentence 10"


# ---- what is on it, and what is not ------------------------------------------------------------


def test_what_is_left_out_is_said(folder, capsys):
    out = folder.parent / "page.html"
    status, printed, _ = run(capsys, folder, "--out", out)
    left = ["below.json: no file", "profile.json: JSON of another kind (schema: other)",
            "run.partial.jsonl: JSON lines of another kind"]  # fmt: skip
    text = out.read_text("utf-8")
    assert status == 0 and all(f"<li>{line}</li>" in text for line in left)
    said = [f"left out: {line.replace(': ', ', ', 1)}" for line in left]
    assert printed.splitlines() == [*said, f"{out}: 1 results, 3 traces or statistics"]
    assert "<title>Report of made &amp; &quot;so&quot;</title>" in text


def test_traces_of_other_data_are_shown_each_by_itself(tmp_path, capsys):
    for name, word in (("a", "x"), ("b", "y")):
        write(tmp_path / f"{name}.jsonl", greedy(None, [word], [word, "</s>"]))
    assert run(capsys, tmp_path)[0] == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    found = re.findall(r'<script type="application/json" class="sentence">(.*?)</script>', page)
    names = [json.loads(one)["name"] for one in found]
    assert names == ["a.jsonl, sentence of line 1", "b.jsonl, sentence of line 1"]
    assert "No sentence is in all traces" in page


def warnings(kind, *contents):
    """What is warned of files 0.json, 1.json, ... of a kind."""
    files = [report.Document(f"{i}.json", kind, one, []) for i, one in enumerate(contents)]
    return report.warnings(files)


def test_warnings_name_what_differs():
    other = table(versions={"torch": "3"}, machine=MACHINE | {"cores": 4})
    assert warnings("table", table(), table()) == []
    machine = 'P <1> & "2", {} cores, accelerator: none: {}'
    assert warnings("table", table(), other) == [
        (
            "Times of different machines must not be compared.",
            [machine.format(2, "0.json"), machine.format(4, "1.json")],
        ),
        ("Not all was measured with the same torch.", ["torch 2.13.0: 0.json", "torch 3: 1.json"]),
    ]


def test_a_broken_promise_and_other_signatures_are_warnings():
    first, second = benchmark(), benchmark()
    assert warnings("benchmark", first) == []
    gad = next(s for s in first["systems"] if s["label"] == "gad")
    gad["agreement"]["1"]["beyond ties"] = 2
    second["signatures"]["BLEU"] = "tok:intl"
    scores, promise = warnings("benchmark", first, second)
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
        record = greedy(1, ["a"], ["</s>"])
        del record["lossless"], record["engine_dtype"]
        changes = {"decoding": "gad_pp", "flags": {"accept_topk": 1}, "audit": audit}
        tally.add(record | changes | promise, None)
    assert tally.audits == {"identical": 1, "ties": 1, verdict: 1}
    said = "t.jsonl: 1 of 3 outputs are not fairseq's greedy search's, ties apart"
    assert report.warnings([], [tally]) == ([] if title is None else [(title, [said])])


# ---- errors ------------------------------------------------------------------------------------


def doctored():
    """A benchmark whose tables contradict its samples."""
    document = benchmark()
    document["tables"][1]["rows"][0]["p95"] += 0.01
    return document


ONE = greedy(1, ["a"], ["b", "</s>"])
LINE = json.dumps(ONE) + "\n"
STATISTICS = json.dumps(without_passes(ONE)) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", json.dumps(table())[:-20], "a.json: cannot be read as JSON, or only a part of"),
        ("a.json", table(version=2), "version 2; allowed: version 1"),
        ("a.json", table(setting="x"), "a.json: 'setting' is no dict"),
        ("a.json", table(rows=[]), "a.json: 'rows' must be one or more"),
        ("a.json", table(machine=None), "a.json: 'machine' is missing"),
        ("a.json", doctored(), "a.json: its tables are not what its raw samples say"),
        ("a.jsonl", "", "a.jsonl, line 1: "),
        ("a.jsonl", LINE + LINE[: len(LINE) // 2], "line 2: the file is cut off in the middle"),
        ("a.jsonl", ONE | {"version": 99}, "a.jsonl, line 1: got version 99; allowed"),
        ("a.jsonl", LINE + STATISTICS, "a.jsonl, line 2: got a line of another kind"),
        ("a.jsonl", STATISTICS + LINE, "a.jsonl, line 2: got a line of another kind"),
        ("a.jsonl", ONE | {"output": ["c"]}, "a.jsonl, line 1: the sentence contradicts"),
        ("a.jsonl", ONE | {"num_drafted": [-1]}, "line 1: 'num_drafted' is missing"),
        ("a.jsonl", ONE | {"flags": [1]}, "a.jsonl, line 1: 'decoding' or 'flags'"),
        ("a.txt", "", "allowed: a folder with what the measuring commands wrote"),
        ("a.json", '{"schema": []}', "a.json is JSON of another kind (schema: [])"),
    ],
)
def test_a_wrong_file_is_named_and_nothing_is_written(tmp_path, capsys, name, content, said):
    if "of another kind (" not in said and name != "a.txt":  # beside one that is right
        (tmp_path / "b.json").write_text(json.dumps(table()))
    text = content if isinstance(content, str) else json.dumps(content) + "\n"
    (tmp_path / name).write_text(text)
    status, out, err = run(capsys, tmp_path)
    assert (status, out) == (2, "") and not (tmp_path / "report.html").exists()
    assert err.startswith("paradec report: error: ") and said in err and err.count("\n") == 1


def test_wrong_folders_and_pages(folder, capsys):
    for args, said in (
        (["no"], "DIR: got 'no'; allowed: a folder"),
        ([folder, "--out", folder / "profile.json"], "--out: got "),
        ([folder, "--out", folder / "no" / "a.html"], "--out: got "),
    ):
        status, _, err = run(capsys, *args)
        assert status == 2 and said in err
