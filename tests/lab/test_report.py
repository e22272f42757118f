"""paradec report: one page of a folder, whose numbers are those of its files."""

import html
import json
import re
import shutil

import pytest
from support.browser import chromium
from support.commands import ROOT
from support.stats_records import greedy
from support.tables import refused, run
from support.trace_records import one_pass, write

from fairseq_paradec.lab.analysis import speed_ups
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Result, Table, Value, column, from_json, to_json
from fairseq_paradec.lab.show import report
from fairseq_paradec.lab.show.tally import BEYOND, Tally

BENCHMARK = ROOT / "results" / "benchmark-gad-tiny.json"
MACHINE = {"processor": 'P <1> & "2"', "cores": 2, "threads": 1, "accelerator": "none"}

#: Texts that HTML, scripts and terminals could take for something else.
NASTY = "</script><b title='x'>\"&amp; -- --> $x_1 שלום 日本語 \x1b\ud800\u202e\u2028"
#: The same as a reader sees them.
NASTY_SHOWN = NASTY[:-4] + "\\x1b\\ud800\\u202e\\u2028"


def benchmark():
    return json.loads(BENCHMARK.read_bytes())


def table(title="A table", **changes):
    """A table's document; None drops a field."""
    cells = (
        ("gad 10", Value(10.5, 1, 2), Value.share(9, 100), Value(0.1, -1, 1), True),
        ("Ü <i>", None, Value.share(100, 100), Value(-0.75, -1, 1), None),
        ("gad 9", Value(9.3, 1, 2), Value.share(76, 100), Value(-1.5, -2, 0), False),
        ("gad 8", None, Value.share(8, 100), Value(0, 0, 0), False),
    )
    times, gain = column("times", unit="x", form=".1f"), column("gain", form="+.2f")
    rows = [dict(zip(("name", times, "share", gain, "on"), row)) for row in cells]
    document = {
        "schema": "fairseq_paradec.table",
        "version": 4,
        "title": title,
        "notes": ["Read `a|b` so.", "An odd ` is one."],
        "command": "paradec it --title '<t>'",
        "date": "2026-01-02",
        "machine": MACHINE,
        **to_json(Table.of(rows)),
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
    } | changes
    return {name: value for name, value in document.items() if value is not None}


def drafted(number, source, output):
    """The record of the same as greedy's by two passes.

    The first drafts two tokens, the first of which is right only for a rule that lets pass what the
    verifier has second, and the second wrong; the second drafts all the rest, and is right.
    """
    first, second, *rest = output
    nothing, half = [None] * len(rest), [-0.5] * len(rest)
    return greedy(number, source, output) | {
        "decoding": "gad_pp",
        "lossless": False,
        "decoder_passes": 2,
        "flags": {"block_size": 2, "adaptive_block": False, "accept_margin": 1.5},
        "num_drafted": [2, len(rest)],
        "num_accepted": [1, len(rest)],
        "audit": {"identical": False, "position": 0, "gap": 0.2, "tie": False},
        "trace": [
            one_pass(0, f"{first} wrong", f"better {second}", 1, 2)
            | {
                "log_probs": [-0.1, -0.25],
                "runner_up": [first, "no"],
                "draft_ranks": [1, 9],
                "runner_up_log_probs": [-0.3, -3.0],
                "draft_log_probs": [-0.3, -4.0],
            },
            one_pass(2, " ".join(rest), " ".join(rest), len(rest), len(rest))
            | {
                "log_probs": half,
                "draft_log_probs": half,
                "draft_ranks": [0] * len(rest),
                "runner_up": nothing,
                "runner_up_log_probs": nothing,
            },
        ],
    }


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


def grid(page, name):
    """The cells of the table of a name, the heads first."""
    found = page.split(f'aria-label="{html.escape(name)}"')[1].split("</table>")[0]
    rows = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in found.split("<tr>")[1:]]
    return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in rows]


def test_the_pages_numbers_are_those_of_the_files(folder, capsys):
    document, out = benchmark(), folder.parent / "page.html"
    (folder / BENCHMARK.name).write_text(json.dumps(document))
    status, printed, _ = run(capsys, "report", folder, "--out", out)
    page = out.read_text("utf-8")
    tables = [*documents.check(document, "b.json").tables, *speed_ups.tables(document)]
    by_title = {one.title: one for one in tables} | {"a table.json": from_json(table())}
    for title, one in by_title.items():
        assert grid(page, title) == [[c.name for c in one.columns], *one.text()]
    # 4 + 4 + 200 tokens; the first two of each by one pass, with one of two drafts accepted
    total = {row[0]: " ".join(row[1:]) for row in grid(page, "Traces and statistics")[1:]}
    assert total == {
        "gad_pp.jsonl": "gad_pp none 3 208 6 34.67 208 205 0.99 3 3 0 0 0 3",
        "greedy.jsonl": "greedy exact 4 210 210 1.0 0 0 - 0 4 4 0 0 0",
        "stats.jsonl": "greedy exact 3 208 208 1.0 0 0 - - 3 3 0 0 0",
    }
    left = [
        "below.json: no file",
        "profile.json: JSON of another kind (schema: other)",
        "run.partial.jsonl: JSON lines of another kind",
    ]
    assert status == 0 and all(f"<li>{line}</li>" in page for line in left)
    said = [f"left out: {line.replace(': ', ', ', 1)}" for line in left]
    assert printed.splitlines() == [*said, f"{out}: 2 results, 3 traces or statistics"]
    assert "<title>Report of made &amp; &#34;so&#34;</title>" in page


def test_records_of_the_first_version_are_read(tmp_path, capsys):
    """They do not say what was promised."""
    for name in ("stats", "trace"):
        shutil.copy(
            ROOT / "tests" / "fixtures" / f"version1.{name}.jsonl", tmp_path / f"{name}.jsonl"
        )
    status, printed, _ = run(capsys, "trace", tmp_path / "trace.jsonl", "--color", "never")
    assert status == 0 and "   1 V  [Zwei]  ~ende~  ~e~     ~e~\n" in printed
    assert run(capsys, "report", tmp_path)[0] == 0
    rows = grid((tmp_path / "report.html").read_text("utf-8"), "Traces and statistics")
    assert [row[:6] for row in rows[1:]] == [
        ["stats.jsonl", "hgj", "not recorded", "1", "7", "7"],
        ["trace.jsonl", "hgj", "not recorded", "1", "7", "7"],
    ]


def test_sentences_of_most_traces_come_first_and_those_of_another_source_are_others(
    tmp_path, capsys
):
    same = greedy(2, ["c"], ["d", "</s>"])
    write(tmp_path / "a.jsonl", greedy(1, ["a"], ["b", "</s>"]), same)
    write(tmp_path / "b.jsonl", greedy(1, ["x"], ["y", "</s>"]), same)
    assert run(capsys, "report", tmp_path)[0] == 0
    text = (tmp_path / "report.html").read_text("utf-8")
    blocks = map(json.loads, re.findall(r'class="sentence">(.*?)</script>', text))
    assert [(one["name"], len(one["panels"]), one["missing"]) for one in blocks] == [
        ("sentence 2", 2, []),
        ("sentence 1", 1, ["b.jsonl"]),
        ("sentence 1", 1, ["a.jsonl"]),
    ]


@pytest.mark.slow
def test_page_in_a_browser(folder, capsys):
    assert run(capsys, "report", folder, "--title", f"All of it {NASTY}")[0] == 0
    with chromium() as browser:
        browser.open(folder / "report.html")
        assert browser.one("h1").text == f"All of it {NASTY_SHOWN}"
        # Sorted by the first number in a cell, cells without one last.
        browser.all("[aria-label='a table.json'] thead button")[1].click()
        column = browser.texts("[aria-label='a table.json'] tbody td:nth-child(2)")
        assert column == ["9.3x (1.0-2.0)", "10.5x (1.0-2.0)", "-", "-"]
        # The sentences that both traces have, in order of their numbers.
        for number in (2, 3, 10):
            assert browser.one("#viewer .name").text == f"sentence {number}"
            for panel in ("gad_pp", "greedy"):
                words = browser.texts(f".panel[data-decoding='{panel}'] .boxes .token .word")
                assert words == SENTENCES[number][1]
            browser.one("#viewer .onward").click()
        browser.check_quiet()


def test_warnings_name_what_differs():
    def warnings(*contents):
        files = [Result(f"{i}.json", one, []) for i, one in enumerate(contents)]
        return report.warnings(files)

    other = table(versions={"torch": "3"}, machine=MACHINE | {"cores": 4})
    machine = 'P <1> & "2", {} cores, accelerator: none: {}'
    machines = [machine.format(2, "0.json"), machine.format(4, "1.json")]
    versions = ["torch 2.13.0: 0.json", "torch 3: 1.json"]
    assert warnings(table(), table()) == []
    assert warnings(table(), other) == [
        ("Times of different machines must not be compared.", machines),
        ("Not all was measured with the same torch.", versions),
    ]
    first, second = benchmark(), benchmark()
    assert warnings(first) == []
    gad = next(s for s in first["systems"] if s["label"] == "gad")
    gad["agreement"]["1"]["beyond ties"] = 2
    second["signatures"]["BLEU"] = "tok:intl"
    scores, promise = warnings(first, second)
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
    for audit in (
        {"identical": False, "tie": False},
        {"identical": False, "tie": True},
        {"identical": True},
        None,
    ):
        record = greedy(1, ["a"], ["</s>"])
        del record["lossless"], record["engine_dtype"]
        changes = {"decoding": "gad_pp", "flags": {"accept_topk": 1}, "audit": audit}
        tally.add(record | changes | promise, None)
    assert tally.audits == {"identical": 1, "ties": 1, verdict: 1}
    said = "t.jsonl: 1 of 3 outputs are not fairseq's greedy search's, ties apart"
    assert report.warnings([], [tally]) == ([] if title is None else [(title, [said])])


def doctored():
    """A benchmark whose samples contradict its setting."""
    document = benchmark()
    document["source_lengths"].append(9)
    return document


ONE = greedy(1, ["a"], ["b", "</s>"])
LINE = json.dumps(ONE) + "\n"
STATISTICS = json.dumps(without_passes(ONE)) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", json.dumps(table())[:-20], "a.json: cannot be read as JSON: "),
        ("a.json", table(version=1), "version 1; allowed: version 4"),
        ("a.json", table(rows=[]), "a.json: $.rows: [] should be non-empty"),
        ("a.json", doctored(), "a.json: as many source lengths as timed sentences"),
        ("a.jsonl", "", "a.jsonl, line 1: "),
        ("a.jsonl", LINE + LINE[: len(LINE) // 2], "line 2: the file is cut off in the middle"),
        ("a.jsonl", ONE | {"version": 99}, "a.jsonl, line 1: got version 99; allowed"),
        ("a.jsonl", STATISTICS + LINE, "a.jsonl, line 2: got a line of another kind"),
        ("a.jsonl", ONE | {"output": ["c"]}, "a.jsonl, line 1: the sentence contradicts"),
        ("a.jsonl", ONE | {"num_drafted": [-1]}, "line 1: 'num_drafted' is missing"),
    ],
)
def test_a_wrong_file_is_named_and_nothing_is_written(tmp_path, capsys, name, content, said):
    (tmp_path / "b.json").write_text(json.dumps(table()))  # beside one that is right
    text = content if isinstance(content, str) else json.dumps(content) + "\n"
    (tmp_path / name).write_text(text)
    assert said in refused(capsys, "report", tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_wrong_folders_and_pages(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"schema": []}')
    for args, said in (
        (["no"], "DIR: got 'no'; allowed: a folder"),
        ([tmp_path], "a.json is JSON of another kind (schema: [])"),
        ([tmp_path, "--out", tmp_path / "a.json"], "--out: got "),
        ([tmp_path, "--out", tmp_path / "no" / "a.html"], "--out: got "),
    ):
        assert said in refused(capsys, "report", *args)
