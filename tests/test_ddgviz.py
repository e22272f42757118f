"""paradec ddgviz, and pictures of graphs and traces: what is drawn, where, and in which font."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from support.browser import chromium
from support.builders import DEMO
from support.jacobi_records import FIVE, one_pass, record

from fairseq_paradec.analysis import ddg, ddg_plot, fonts, sheet, symbols, trace_plot, trace_view
from fairseq_paradec.analysis.page import MARK
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.trace import SCHEMA, SCHEMA_VERSION

#: Tokens that a careless picture would break: markup, quotes, TeX, other scripts, a very long one.
NASTY = [
    "<b>", "&amp;", '"', "'", "$x_1$", "a_b^c", "\\frac", "%s", "漢字", "日本語", "שלום", "العربية",
    "Donaudampfschifffahrtsgesellschaft", "@@x", "\x1b[2J", "\u202eabc", "...", "</s>",
]  # fmt: skip
NOWHERE = "\U0010fffd"  # private use: no font has it


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[sheet.Sheet]:
    """The sheets that were saved, in place of files."""
    sheets: list[sheet.Sheet] = []
    monkeypatch.setattr(sheet.Sheet, "save", lambda self, path: sheets.append(self))
    return sheets


def words(one: sheet.Sheet) -> list[str]:
    return [text.get_text() for text in one.axes.texts]


def at(one: sheet.Sheet, name: str) -> tuple[float, float]:
    """Where a text stands that is there once."""
    (found,) = [text for text in one.axes.texts if text.get_text() == name]
    return found.get_position()


def matrix(
    one: sheet.Sheet, index: int = 0
) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """A matrix's colours by row and column, and its edges (left, right, bottom, top)."""
    image = one.axes.images[index]
    return np.asarray(image.get_array()), image.get_extent()


def colour(name: str) -> list[int]:
    return [round(255 * part) for part in to_rgb(name)]


# ---- pictures of graphs ------------------------------------------------------------------------


def test_the_matrix_of_five_tokens(drawn: list[sheet.Sheet]) -> None:
    """Each cell's colour; each probability in the cell where its token became final."""
    ddg_plot.draw(ddg.from_record(FIVE, "sentence 3"), Path("x.png"), ["s", "</s>"])
    (one,) = drawn
    colours, (left, right, bottom, top) = matrix(one)
    kinds = {
        "1": ddg_plot.ALONE, "+": ddg_plot.PARALLEL, "a": ddg_plot.AFTER_ALONE,
        "p": ddg_plot.AFTER_PARALLEL, "l": ddg_plot.LOST, "x": ddg_plot.WRONG,
    }  # fmt: skip
    rows = ["1lxxx", "axx1x", "a1xax", "aa+a+"]
    assert colours.tolist() == [[colour(kinds[kind]) for kind in row] for row in rows]
    for text, row, column in (
        ("0.99", 1, 0), ("0.87", 2, 3), ("0.89", 3, 1), ("0.79", 4, 2), ("0.77", 4, 4),
    ):  # fmt: skip
        x, y = at(one, text)
        assert 5 * (x - left) / (right - left) == pytest.approx(column + 0.5)
        assert 4 * (y - top) / (bottom - top) == pytest.approx(row - 0.5)
    shown = words(one)
    assert {"sentence 3 (pj)", "source: s </s>", "right, but lost again"} <= set(shown)
    assert [shown.count(token) for token in FIVE["output"]] == [2] * 5  # graph and matrix


def test_the_graph_of_five_tokens(drawn: list[sheet.Sheet]) -> None:
    """Waves from left to right, their tokens above each other, arrows to the wave before."""
    ddg_plot.draw(ddg.from_record(FIVE, "sentence 3"), Path("x.png"))
    (one,) = drawn
    boxes = [patch for patch in one.axes.patches if patch.get_zorder() == 2]
    places = [(box.get_x(), box.get_y()) for box in boxes]  # by position
    a, b, c, d, end = places
    assert a[0] < d[0] < b[0] < c[0] == end[0]
    assert a[1] == d[1] == b[1] and c[1] < a[1] < end[1]
    highlighted = [box.get_edgecolor()[:3] == to_rgb(ddg_plot.PARALLEL) for box in boxes]
    assert highlighted == [False, False, True, False, True]
    (arrows,) = [each for each in one.axes.collections if hasattr(each, "U")]
    starts = np.stack([arrows.X, arrows.Y], axis=1)
    ends = starts + np.stack([arrows.U, arrows.V], axis=1)

    def token(point: np.ndarray) -> int:
        near = [
            max(box.get_x() - point[0], point[0] - box.get_x() - box.get_width(), 0)
            + abs(box.get_y() + box.get_height() / 2 - point[1])
            for box in boxes
        ]
        assert min(near) < 0.03
        return near.index(min(near))

    edges = [(token(start), token(end)) for start, end in zip(starts, ends, strict=True)]
    assert edges == [(3, 0), (1, 3), (2, 1), (4, 1)]
    assert {"pass 1", "pass 2", "pass 3", "pass 4"} <= set(words(one))


def long_record(tokens: int = 200) -> dict[str, Any]:
    """A sentence of nasty tokens that pj takes nearly as many passes for; now and then two."""
    output = [NASTY[i % (len(NASTY) - 1)] for i in range(tokens - 1)] + ["</s>"]
    passes, start = [], 0
    while start < tokens:
        count = 2 if start % 20 == 7 else 1
        right = output[start : start + count]
        wrong = ["x"] * (tokens - start - len(right))
        scores = [-0.25] * (tokens - start)
        passes.append(
            {
                "start": start, "num_accepted": count - 1, "num_committed": count,
                "draft": right[:-1] + ["<pad>"] * (len(wrong) + 1), "verifier": right + wrong,
                "log_probs": scores, "runner_up": [None] * len(scores),
                "runner_up_log_probs": [None] * len(scores),
            }
        )  # fmt: skip
        start += count
    return {"decoding": "pj", "source": output, "output": output, "trace": passes}


@pytest.mark.slow
def test_two_hundred_tokens_stay_legible(drawn: list[sheet.Sheet]) -> None:
    graph = ddg.from_record(long_record(), "a & b")
    assert (len(graph.tokens), graph.num_passes) == (200, 190)
    ddg_plot.draw(graph, Path("x.png"), graph.tokens)
    trace_plot.draw([trace_view.read_sentence(long_record(), "a & b")] * 4, Path("x.png"))
    for one in drawn:
        width, height = one.figure.get_size_inches()
        assert width < 40 and height < 60
        assert min(text.get_fontsize() for text in one.axes.texts) >= sheet.SMALLEST
        for text in one.axes.texts:
            x, y = text.get_position()
            assert 0 <= x <= width and 0 <= y <= height
        shown = words(one)
        for token in NASTY:
            assert sheet.label(token) in shown
        assert not any("\x1b" in text or "\u202e" in text for text in shown)
    shown = words(drawn[0])
    assert shown.count("0.78") == 200  # exp(-0.25): in every column
    assert {text for text in shown if text.startswith("pass ")} == {
        f"pass {number}" for number in graph.final_pass
    }
    boxes = [patch for patch in drawn[0].axes.patches if patch.get_zorder() == 2]
    assert len(boxes) == 200
    assert max(box.get_x() + box.get_width() for box in boxes) < drawn[0].limits[0][1]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_bytes_each_time(tmp_path: Path, suffix: str) -> None:
    nasty = record(" ".join(NASTY), one_pass(0, " ".join(NASTY), 1))
    nasty["output"] = NASTY
    nasty["trace"][0] |= {
        "verifier": NASTY, "draft": NASTY, "num_accepted": 17, "num_committed": 18,
        "log_probs": [-0.5] * 18, "runner_up": NASTY, "runner_up_log_probs": [-1.0] * 18,
    }  # fmt: skip
    graph = ddg.from_record(nasty, '<"&>')
    sentence = trace_view.read_sentence(nasty, '<"&>')
    files = [tmp_path / f"{i}{suffix}" for i in range(4)]
    for path in files[:2]:
        ddg_plot.draw(graph, path, NASTY)
    for path in files[2:]:
        trace_plot.draw([sentence], path)
    found = [path.read_bytes() for path in files]
    assert found[0] == found[1] and found[2] == found[3]
    if suffix == ".svg":
        for one in found[0], found[2]:
            assert ElementTree.fromstring(one).tag.endswith("svg")
            assert b"<dc:date>" not in one
    else:
        with Image.open(files[0]) as image:
            assert "Software" not in image.info


# ---- pictures of traces ------------------------------------------------------------------------


def test_strips_of_several_methods(drawn: list[sheet.Sheet]) -> None:
    """Hand-made: relaxed drafts, a block that waits, and a model that writes from both ends."""
    head = {"source": ["s", "</s>"], "output": ["a", "b", "c", "</s>"]}
    relaxed = head | {
        "decoding": "gad_pp",
        "flags": {"drafter_path": "/home/me/drafter.pt", "accept_topk": 3},
        "trace": [
            {"start": 0, "num_accepted": 2, "num_committed": 3, "draft": ["a", "b", "x", "y"],
             "verifier": ["a", "z", "c", "q"]},
            {"start": 3, "num_accepted": 0, "num_committed": 1, "draft": [], "verifier": ["</s>"]},
        ],
    }  # fmt: skip
    waits = head | {
        "decoding": "pgj",
        "trace": [
            {"start": 0, "num_accepted": 1, "num_committed": 0, "draft": ["a", "x"],
             "verifier": ["a", "b"]},
            {"start": 0, "num_accepted": 2, "num_committed": 2, "draft": ["a", "b"],
             "verifier": ["a", "b"]},
            {"start": 2, "num_accepted": 0, "num_committed": 2, "draft": [],
             "verifier": ["c", "</s>"]},
        ],
    }  # fmt: skip
    ends = head | {
        "decoding": "multiword_beam",
        "trace": [
            {"start": 0, "num_accepted": 0, "num_committed": 2, "verifier": ["a", "c"], "draft": [],
             "positions": [0, 2], "directions": ["1→", "2←"]},
            {"start": 2, "num_accepted": 0, "num_committed": 2, "verifier": ["b", "</s>"],
             "draft": [], "positions": [1, 3], "directions": ["1→", "2←"]},
        ],
    }  # fmt: skip
    sentences = [trace_view.read_sentence(one, "sentence 3") for one in (relaxed, waits, ends)]
    trace_plot.draw(sentences, Path("x.png"))
    kinds = {
        "a": trace_plot.COLOURS[trace_view.ACCEPTED], "r": trace_plot.COLOURS[trace_view.RESCUED],
        "b": trace_plot.COLOURS[trace_view.BIFURCATION], "+": trace_plot.COLOURS[trace_view.BONUS],
        ".": trace_plot.PALE[trace_view.PREVIOUS], "x": trace_plot.PALE[trace_view.DISCARDED],
        "w": trace_plot.PALE[trace_view.PENDING], " ": trace_plot.NOTHING,
        "1": trace_plot.DIRECTIONS[0], "2": trace_plot.DIRECTIONS[1],
    }  # fmt: skip
    strips = [["arbx", "...+"], ["wx  ", "aa  ", "..++"], ["1 2 ", ".1.2"]]
    for index, rows in enumerate(strips):
        colours, _ = matrix(drawn[0], index)
        assert colours.tolist() == [[colour(kinds[kind]) for kind in row] for row in rows]
    shown = words(drawn[0])
    assert shown.count("*") == 1 and shown.count("[]") == 1 and shown.count("+") == 3
    assert shown.count("1→") == 2 and shown.count("2←") == 2
    told = " ".join(shown)
    for strip in (
        "gad_pp tokens: 4, passes: 2, tokens per pass: 2.00, drafted tokens accepted: 2 (rescued: "
        "1) --drafter-path drafter.pt --accept-topk 3",
        "pgj tokens: 4, passes: 3, tokens per pass: 1.33, drafted tokens accepted: 2 (rescued: 0)",
        "multiword_beam tokens: 4, passes: 2, tokens per pass: 2.00, drafted tokens accepted: 0 "
        "(rescued: 0)",
    ):
        assert told.count(strip) == 1
    corners = {text.get_text(): text.get_position() for text in drawn[0].axes.texts}
    (x1, y1), (x2, y2), (x3, y3) = (corners[n] for n in ("gad_pp", "pgj", "multiword_beam"))
    assert x1 < x2 < x3 and y1 == y2 == y3  # side by side
    legend = {
        "drafted and accepted", "accepted, though not the verifier's first choice (*)",
        "the verifier's own, in the place of a rejected draft ([])", "drafted, not used",
        "the model's own, where nothing was drafted (+)", "committed by earlier passes",
        "agreed on, but the pass commits nothing yet", "written in direction 1→",
        "written in direction 2←",
    }  # fmt: skip
    assert legend <= set(shown)
    trace_plot.draw(sentences[1:2], Path("x.png"))
    assert not {text for text in words(drawn[1]) if "direction" in text or "first choice" in text}


def test_two_files_of_one_method(drawn: list[sheet.Sheet]) -> None:
    sentence = trace_view.read_sentence(FIVE, "sentence 3")
    trace_plot.draw([sentence, sentence], Path("x.png"), ["one.jsonl", "two.jsonl"])
    shown = " ".join(words(drawn[0]))
    assert "pj (one.jsonl) tokens" in shown and "pj (two.jsonl) tokens" in shown
    trace_plot.draw([sentence], Path("x.png"), ["one.jsonl"])
    assert "one.jsonl" not in " ".join(words(drawn[1]))


def test_without_output_or_source(drawn: list[sheet.Sheet]) -> None:
    nothing = {"decoding": "nat", "output": [], "trace": []}
    trace_plot.draw([trace_view.read_sentence(nothing, "sentence 3")], Path("x.png"))
    assert "source: (not in the trace)" in words(drawn[0])


# ---- fonts -------------------------------------------------------------------------------------


def pixels(text: str) -> np.ndarray:
    """A text as an image in the fonts that were chosen for it."""
    with fonts.drawing([text]):
        figure = Figure(figsize=(3, 0.6))
        figure.text(0.1, 0.3, text, fontsize=20)
        image = io.BytesIO()
        figure.savefig(image, format="png")
        with Image.open(image) as opened:
            return np.asarray(opened.convert("L"))


@pytest.mark.skipif(not sheet.SHAPES, reason="matplotlib shapes text from 3.11 on")
def test_right_to_left() -> None:
    """The first letter stands on the right: as the letters in the other order, forced."""

    def forced(text: str) -> np.ndarray:
        return pixels(f"\u202d{text}\u202c")

    assert np.array_equal(pixels("אב"), forced("בא"))
    assert not np.array_equal(pixels("אב"), pixels("בא"))
    # a whole source: word by word from the right, and `</s>` still reads `</s>`
    (line,) = sheet.source_lines(["אב", "ab", "</s>"], 9, 20)
    assert np.array_equal(pixels(line), forced("</s> ab בא source:"))
    (line,) = sheet.source_lines(["ab", "אב", "</s>"], 9, 20)
    assert np.array_equal(pixels(line), forced("source: ab בא </s>"))
    assert sheet.source_lines(["ab", "</s>"], 9, 20) == ["source: ab </s>"]
    assert symbols.is_rtl(["1", ".", "אב", "ab"]) and not symbols.is_rtl(["1", "ab", "אב"])


def test_what_no_font_has_is_named() -> None:
    assert fonts.choose(["a" + NOWHERE, "\ue000b"]).missing == ["\ue000", NOWHERE]
    told = fonts.warning(["漢", "\ue000"])
    assert "has 漢 (U+6F22), U+E000; there" in told and "fonts-noto-cjk" in told
    many = fonts.warning([chr(0xE000 + i) for i in range(10)])
    assert "U+E007 and 2 more" in many and "\n" not in many


# ---- the command -------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command here; return its status, output and errors."""

    def call(*args: object) -> tuple[int, str, str]:
        status = paradec(["ddgviz", *map(str, args)])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def write(path: Path, *records: dict[str, Any]) -> Path:
    head = {"schema": SCHEMA, "version": SCHEMA_VERSION}
    lines = [json.dumps(head | one, ensure_ascii=False) + "\n" for one in records]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_sentence_of_ones_own(run: Run, tmp_path: Path) -> None:
    """Tokenised, split and decoded as by fairseq's commands; all that is written agrees."""
    out, html, kept = (tmp_path / name for name in ("man.svg", "man.html", "man.jsonl"))
    sentence = "Two men's dogs are waiting for the train, quietly."
    status, told, errors = run(
        DEMO, "--text", sentence, "--out", out, "--html", html, "--trace", kept
    )
    assert (status, errors) == (0, "")
    (line,) = kept.read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert found["decoding"] == "pj" and found["flags"]["jacobi_length"] == "oracle"
    assert " ".join(found["source"]).startswith("Two men &apos;s dogs are waiting for the train , ")
    graph = ddg.from_record(found, "sentence 0")
    assert told == ddg.as_text(graph, found["source"]) + "\n"
    assert ElementTree.fromstring(out.read_bytes()).tag.endswith("svg")
    assert html.read_text(encoding="utf-8").startswith(MARK)
    before = out.read_bytes()
    status, again, _ = run(kept, "--out", out, "--html", html)  # the trace gives the same
    assert (status, again, out.read_bytes()) == (0, told, before)
    with chromium() as browser:
        browser.open(html)
        text = browser.one("main").text
        assert all(token in text for token in found["output"])
        assert f"{math.exp(graph.log_probs[0]):.2f}" in text
        browser.check_quiet()


def test_sentences_of_the_data(run: Run, tmp_path: Path) -> None:
    status, told, _ = run(
        DEMO, "--ids", 33, 8, 33, "--decoding", "pgj", "--block-size", 4, "--out",
        tmp_path / "a.png",
    )  # fmt: skip
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-33.png", "a-8.png"]
    blocks = told.split("\n\n")
    lines = (DEMO / "bpe" / "demo.en").read_text(encoding="utf-8").splitlines()
    for block, number in zip(blocks, (33, 8), strict=True):
        first, source, *passes, summary = block.splitlines()
        assert first.startswith(f"sentence {number} (pgj --block-size 4 ")
        assert source.removeprefix("source").strip() == f"{lines[number]} </s>"
        assert summary.startswith(f"tokens: {block.count(':') - summary.count(':')}, ")
        assert f"passes: {len(passes)}," in summary


def test_lines_of_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty line has no translation, and its neighbours keep their numbers."""
    file = tmp_path / "lines.txt"
    file.write_text("A man .\n\nTwo men .\n", encoding="utf-8")
    options = ("--tokenized", "--decoding", "greedy")
    status, told, _ = run(DEMO, "--input", file, *options)
    assert status == 0
    assert [b.split(" (")[0] for b in told.split("\n\n")] == ["sentence 0", "sentence 2"]
    assert "sentence 1 is empty" in caplog.text
    monkeypatch.setattr(sys, "stdin", io.StringIO(file.read_text(encoding="utf-8")))
    assert run(DEMO, "--input", "-", *options)[:2] == (0, told)
    status, _, errors = run(DEMO, "--text", "")
    assert status == 2 and "no sentence could be decoded" in errors


def test_sentences_of_a_trace(run: Run, tmp_path: Path) -> None:
    three = [FIVE | {"id": number} for number in (3, 5, 4)]
    file = write(tmp_path / "t.jsonl", *three, three[0])
    assert run(file)[1].startswith("sentence 3 (pj)\nsource  s </s>\npass 1  0:a 0.99\n")
    status, told, _ = run(file, "--sentence", 4, 3, "--out", tmp_path / "g.svg")
    assert status == 0 and told.count("sentence 3 (") == 2 and told.count("sentence 4 (") == 1
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "g-3.svg", "g-3-line4.svg", "g-4.svg"
    }  # fmt: skip
    strange = write(tmp_path / "s.jsonl", *(FIVE | {"id": name} for name in ("a/b", "../../x")))
    drawn = tmp_path / "new"
    drawn.mkdir()
    assert run(strange, "--sentence", "a/b", "../../x", "--out", drawn / "g.svg")[0] == 0
    assert {path.name for path in drawn.iterdir()} == {"g-a_b.svg", "g-.._.._x.svg"}
    nameless = write(tmp_path / "n.jsonl", FIVE, FIVE)
    assert run(nameless)[1].startswith("sentence of line 1 (pj)")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{trace}", "--sentence", "9"], "--sentence: got '9'; allowed: numbers (id) of sentences"),
        (["{trace}", "--text", "a"], "--text: got ['a']; allowed: it with a data folder"),
        (["{trace}", "--tokenized"], "--tokenized: got True; allowed: it with a data folder"),
        (["{trace}", "--out", "g.pdf"], "--out: got 'g.pdf'; allowed: a name that ends in .png"),
        (["{trace}", "--html", "{trace}"], "allowed: a new file, or an earlier page"),
        (["{gad}"], "gad.jsonl, line 1: sentence 3: got a trace of 'gad'; allowed: greedy, pj"),
        (["{empty}"], "this one is empty"),
        (["{cut}"], "cut.jsonl, line 1"),
        (["{old}"], "version"),
        (["{folder}/none"], "FILE: got '{folder}/none'"),
        (["{demo}"], "DATA: got none; allowed: one of --text, --input, --ids"),
        (["{demo}", "--text", "a", "--ids", "1"], "DATA: got --text and --ids; allowed: one of"),
        (["{demo}", "--ids", "1", "--sentence", "2"], "--sentence: got '2'; allowed: --ids"),
        (["{demo}", "--text", "a", "--subset", "test"], "--subset: got 'test'; allowed: it with"),
        (["{demo}", "--ids", "1", "--bpe-codes", "x"], "--bpe-codes: got 'x'; allowed: it with"),
        (["{demo}", "--ids", "1", "--decoding", "gad"], "--decoding: got 'gad'; allowed: greedy,"),
        (["{demo}", "--ids", "1", "--path", "x"], "--path: got 'x'; allowed: a fairseq checkpoint"),
        (["{demo}", "--ids", "1", "--trace", "{demo}/model.pt"], "--trace: got "),
        (["{demo}", "--input", "{folder}/none"], "--input: got '{folder}/none'; allowed: a text"),
        (["{demo}", "--input", "{empty}"], "allowed: a file with a sentence a line; it is empty"),
        (["{demo}", "--text", "a", "--bpe-codes", "x"], "--bpe-codes: got 'x'; allowed: a file"),
        (["{folder}", "--text", "a"], "DATA: {folder} has no model.pt; allowed: --path MODEL"),
        (["{demo}", "--text", "a", "--tokenized", "--bpe-codes", "x"], "--bpe-codes: got 'x'; all"),
        (["{demo}", "--text", "a", "--bpe-codes", "{demo}/model.pt"], "subword-nmt's codes"),
        (["{demo}", "--text", "a", "--bpe-codes", "{empty}"], "subword-nmt's codes"),
        (["{demo}", "--text", "a", "--trace", "{folder}/x", "--html", "{folder}/x"], "--html's"),
        (["{demo}", "--text", "a", "--trace", "{pipe}"], "--trace: got '{pipe}'; allowed: a plain"),
        (["{order}"], "order.jsonl, line 1: sentence 3: got a trace of another order"),
        (["{certain}"], "sentence 3, pass 1: 'log_probs' holds other things"),
        (["{folder}", "--path", "{demo}/model.pt", "--text", "a"], "{folder} has no codes.bpe"),
        (["{demo}", "--ids", "100"], "--ids: got 100; allowed: numbers from 0 to 99, of sentences"),
        (["{demo}", "--ids", "1", "--subset", "valid"], "whose subset 'valid' is missing"),
        (["{demo}", "--ids", "1", "--block-size", "3"], "--block-size: got 3"),
        (
            ["{demo}", "--ids", "1", "--decoding", "hgj", "--jacobi-length", "grow"],
            "--jacobi-length: got 'grow'",
        ),
        (["{demo}", "--ids", "1", "--jacobi-length", "long"], "--jacobi-length: got 'long'"),
    ],
)  # fmt: skip
def test_mistakes(run: Run, tmp_path: Path, args: list[str], message: str) -> None:
    files = {"folder": tmp_path, "demo": DEMO}
    files |= {name: tmp_path / f"{name}.jsonl" for name in ("trace", "gad", "empty", "cut", "old")}
    write(files["trace"], FIVE | {"id": 3})
    write(files["gad"], FIVE | {"id": 3, "decoding": "gad"})
    files |= {name: tmp_path / f"{name}.jsonl" for name in ("order", "certain", "pipe")}
    placed = {"positions": [0], "verifier": ["a"], "draft": []}
    write(files["order"], {"decoding": "pj", "id": 3, "output": ["a"], "trace": [placed]})
    certain = one_pass(0, "a", 1) | {"log_probs": [0.99]}
    write(files["certain"], record("a", certain, id=3))
    os.mkfifo(files["pipe"])
    write(files["old"], FIVE | {"version": 99})
    files["cut"].write_bytes(files["trace"].read_bytes()[:-40])
    files["empty"].write_text("")
    names = {name: str(path) for name, path in files.items()}
    status, told, errors = run(*(arg.format(**names) for arg in args))
    assert (status, told) == (2, "")
    assert errors.startswith("paradec ddgviz: error: ") and errors.count("\n") == 1
    assert message.format(**names) in errors
    assert files["pipe"].is_fifo()


def test_what_a_trace_says_does_not_command_the_terminal(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", FIVE | {"id": "\x1b[2J", "output": ["a"]})
    status, _, errors = run(file)
    assert status == 2 and "\x1b" not in errors and "\\x1b[2J" in errors


def test_nothing_is_left_of_a_failure(run: Run, tmp_path: Path) -> None:
    out, kept = tmp_path / "g.png", tmp_path / "t.jsonl"
    assert run(DEMO, "--ids", 100, "--out", out, "--trace", kept)[0] == 2
    assert list(tmp_path.iterdir()) == []
