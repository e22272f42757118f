"""paradec ddgviz, and pictures of graphs and traces: what is drawn, where, and in which font."""

from __future__ import annotations

import io
import json
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
from support.builders import DEMO
from support.jacobi_records import FIVE, one_pass, record

from fairseq_paradec.analysis import ddg, ddg_plot, fonts, sheet, symbols, trace_plot, trace_view
from fairseq_paradec.analysis.page import MARK
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.trace import SCHEMA, SCHEMA_VERSION


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
    assert {"sentence 3 (pj)", "source: s </s>", "right, but lost again"} <= set(words(one))


def test_the_graph_of_five_tokens(drawn: list[sheet.Sheet]) -> None:
    """Waves from left to right, arrows to the wave before."""
    ddg_plot.draw(ddg.from_record(FIVE, "sentence 3"), Path("x.png"))
    (one,) = drawn
    boxes = [patch for patch in one.axes.patches if patch.get_zorder() == 2]
    a, b, c, d, end = (box.get_x() for box in boxes)  # by position
    assert a < d < b < c == end
    (arrows,) = [each for each in one.axes.collections if hasattr(each, "U")]
    starts = np.stack([arrows.X, arrows.Y], axis=1)
    ends = starts + np.stack([arrows.U, arrows.V], axis=1)

    def token(point: np.ndarray) -> int:
        near = [
            max(box.get_x() - point[0], point[0] - box.get_x() - box.get_width(), 0)
            + abs(box.get_y() + box.get_height() / 2 - point[1])
            for box in boxes
        ]
        return near.index(min(near))

    edges = [(token(start), token(end)) for start, end in zip(starts, ends, strict=True)]
    assert edges == [(3, 0), (1, 3), (2, 1), (4, 1)]


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
    assert (
        "gad_pp tokens: 4, passes: 2, tokens per pass: 2.00, drafted tokens accepted: 2 (rescued: "
        "1) --drafter-path drafter.pt --accept-topk 3"
    ) in " ".join(shown)
    trace_plot.draw([sentences[1]] * 2, Path("x.png"), ["one.jsonl", "two.jsonl"])
    assert "pgj (two.jsonl) tokens" in " ".join(words(drawn[1]))
    nothing = {"decoding": "nat", "output": [], "trace": []}
    trace_plot.draw([trace_view.read_sentence(nothing, "sentence 3")], Path("x.png"))
    assert "source: (not in the trace)" in words(drawn[2])


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
    assert fonts.choose(["a\U0010fffd", "\ue000b"]).missing == ["\ue000", "\U0010fffd"]
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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{trace}", "--sentence", "9"], "--sentence: got '9'; allowed: numbers (id) of sentences"),
        (["{trace}", "--text", "a"], "--text: got ['a']; allowed: it with a data folder"),
        (["{trace}", "--out", "g.pdf"], "--out: got 'g.pdf'; allowed: a name that ends in .png"),
        (["{trace}", "--html", "{trace}"], "allowed: a new file, or an earlier page"),
        (["{gad}"], "gad.jsonl, line 1: sentence 3: got a trace of 'gad'; allowed: greedy, pj"),
        (["{empty}"], "this one is empty"),
        (["{cut}"], "cut.jsonl, line 1"),
        (["{order}"], "order.jsonl, line 1: sentence 3: got a trace of another order"),
        (["{certain}"], "sentence 3, pass 1: 'log_probs' holds other things"),
        (["{strange}"], "\\x1b[2J"),
        (["{demo}"], "DATA: got none; allowed: one of --text, --input, --ids"),
        (["{demo}", "--text", "a", "--ids", "1"], "DATA: got --text and --ids; allowed: one of"),
        (["{demo}", "--text", "a", "--subset", "test"], "--subset: got 'test'; allowed: it with"),
        (["{demo}", "--ids", "1", "--decoding", "gad"], "--decoding: got 'gad'; allowed: greedy,"),
        (["{demo}", "--ids", "1", "--path", "x"], "--path: got 'x'; allowed: a fairseq checkpoint"),
        (["{demo}", "--ids", "1", "--trace", "{demo}/model.pt"], "--trace: got "),
        (["{demo}", "--input", "{empty}"], "allowed: a file with a sentence a line; it is empty"),
        (["{folder}", "--text", "a"], "DATA: {folder} has no model.pt; allowed: --path MODEL"),
        (["{demo}", "--text", "a", "--bpe-codes", "{demo}/model.pt"], "subword-nmt's codes"),
        (["{demo}", "--text", "a", "--trace", "{folder}/x", "--html", "{folder}/x"], "--html's"),
        (["{demo}", "--text", ""], "no sentence could be decoded"),
        (["{demo}", "--ids", "100", "--out", "{folder}/g.png"], "--ids: got 100; allowed: numbers"),
        (["{demo}", "--ids", "1", "--block-size", "3"], "--block-size: got 3"),
    ],
)  # fmt: skip
def test_mistakes(run: Run, tmp_path: Path, args: list[str], message: str) -> None:
    names = ("trace", "gad", "empty", "cut", "order", "certain", "strange")
    files = {name: tmp_path / f"{name}.jsonl" for name in names}
    write(files["trace"], FIVE | {"id": 3})
    write(files["gad"], FIVE | {"id": 3, "decoding": "gad"})
    placed = {"positions": [0], "verifier": ["a"], "draft": []}
    write(files["order"], {"decoding": "pj", "id": 3, "output": ["a"], "trace": [placed]})
    certain = one_pass(0, "a", 1) | {"log_probs": [0.99]}
    write(files["certain"], record("a", certain, id=3))
    write(files["strange"], FIVE | {"id": "\x1b[2J", "output": ["a"]})
    files["cut"].write_bytes(files["trace"].read_bytes()[:-40])
    files["empty"].write_text("")
    before = set(tmp_path.iterdir())
    texts = {"folder": str(tmp_path), "demo": str(DEMO)} | {n: str(p) for n, p in files.items()}
    status, told, errors = run(*(arg.format(**texts) for arg in args))
    assert (status, told) == (2, "")
    assert errors.startswith("paradec ddgviz: error: ") and errors.count("\n") == 1
    assert message.format(**texts) in errors and "\x1b" not in errors
    assert set(tmp_path.iterdir()) == before
