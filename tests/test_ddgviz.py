"""paradec ddgviz, and pictures of graphs and traces: what is drawn, and where."""

from __future__ import annotations

import io
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from support import trace_records
from support.builders import DEMO
from support.jacobi_records import FIVE
from support.trace_records import FROM_BOTH_ENDS

from fairseq_paradec.analysis import ddg, ddg_plot, sheet, trace_plot, trace_view
from fairseq_paradec.analysis.page import MARK
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.trace import SCHEMA, SCHEMA_VERSION


def test_colours_of_graphs_and_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relaxed drafts, a block that waits, and a model that writes from both ends."""
    sheets: list[sheet.Sheet] = []
    monkeypatch.setattr(sheet.Sheet, "save", lambda self, path: sheets.append(self))
    ddg_plot.draw(ddg.from_record(FIVE, "sentence 3"), Path("x.png"))
    made, step = trace_records.record, trace_records.one_pass
    relaxed = made("a b c </s>", step(0, "a b x y", "a z c q", 2, 3), step(3, "", "</s>", 0, 1))
    waits = made(
        "a b c </s>", step(0, "a x", "a b", 1, 0), step(0, "a b", "a b", 2, 2),
        step(2, "", "c </s>", 0, 2),
    )  # fmt: skip
    ends = made("A B C D", *(one | {"directions": ["1→", "2←"]} for one in FROM_BOTH_ENDS))
    sentences = [trace_view.read_sentence(one, "sentence 3") for one in (relaxed, waits, ends)]
    trace_plot.draw(sentences, Path("x.png"))
    kinds = {
        "1": ddg_plot.ALONE, "+": ddg_plot.PARALLEL, "a": ddg_plot.AFTER_ALONE,
        "p": ddg_plot.AFTER_PARALLEL, "l": ddg_plot.LOST, "x": ddg_plot.WRONG,
    }  # fmt: skip
    states = {
        "a": trace_plot.COLOURS["accepted"], "r": trace_plot.COLOURS["rescued"],
        "b": trace_plot.COLOURS["bifurcation"], "+": trace_plot.COLOURS["bonus"],
        ".": trace_plot.PALE["previous"], "x": trace_plot.PALE["discarded"],
        "w": trace_plot.PALE["pending"], " ": trace_plot.NOTHING,
        "1": trace_plot.DIRECTIONS[0], "2": trace_plot.DIRECTIONS[1],
    }  # fmt: skip
    wanted = [(kinds, ["1lxxx", "axx1x", "a1xax", "aa+a+"]), (states, ["arbx", "...+"])]
    wanted += [(states, ["wx  ", "aa  ", "..++"]), (states, ["1  2", ".12."])]
    images = [image for one in sheets for image in one.axes.images]
    for image, (names, rows) in zip(images, wanted, strict=True):
        colours = [[[round(255 * x) for x in to_rgb(names[kind])] for kind in row] for row in rows]
        assert image.get_array().tolist() == colours


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


def write(path: Path, *records: dict[str, object]) -> Path:
    trace_records.write(path, *({"schema": SCHEMA, "version": SCHEMA_VERSION} | r for r in records))
    return path


@pytest.mark.slow
def test_a_sentence_of_ones_own(run: Run, tmp_path: Path) -> None:
    """Tokenised, split and decoded as by fairseq's commands; all that is written agrees."""
    out, html, kept = (tmp_path / name for name in ("man.svg", "man.html", "man.jsonl"))
    sentence = "Two men's dogs are waiting for the train, quietly."
    given = ("--out", out, "--html", html, "--trace", kept)
    status, told, _ = run(DEMO, "--text", sentence, *given)
    assert status == 0
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
    how = ("--decoding", "pgj", "--block-size", 4, "--out", tmp_path / "a.png")
    status, told, _ = run(DEMO, "--ids", 33, 8, 33, *how)
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
    assert run(strange, "--sentence", "a/b", "../../x", "--out", tmp_path / "h.svg")[0] == 0
    assert {path.name for path in tmp_path.glob("h*")} == {"h-a_b.svg", "h-.._.._x.svg"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{trace}", "--sentence", "9"], "--sentence: got '9'; allowed: numbers (id) of sentences"),
        (["{trace}", "--out", "g.pdf"], "--out: got 'g.pdf'; allowed: a name that ends in .png"),
        (["{trace}", "--html", "{trace}"], "allowed: a new file, or an earlier page"),
        (["{gad}"], "gad.jsonl, line 1: sentence 3: got a trace of 'gad'; allowed: greedy, pj"),
        (["{strange}"], "\\x1b[2J"),
        (["{demo}", "--text", "a", "--ids", "1"], "DATA: got --text and --ids; allowed: one of"),
        (["{demo}", "--ids", "1", "--decoding", "gad"], "--decoding: got 'gad'; allowed: greedy,"),
        (["{demo}", "--ids", "1", "--trace", "{demo}/model.pt"], "--trace: got "),
        (["{demo}", "--text", "a", "--trace", "{folder}/x", "--html", "{folder}/x"], "--html's"),
        (["{demo}", "--text", ""], "no sentence could be decoded"),
        (["{demo}", "--ids", "100", "--out", "{folder}/g.png"], "--ids: got 100; allowed: numbers"),
    ],
)  # fmt: skip
def test_mistakes(run: Run, tmp_path: Path, args: list[str], message: str) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("trace", "gad", "strange")}
    write(files["trace"], FIVE | {"id": 3})
    write(files["gad"], FIVE | {"id": 3, "decoding": "gad"})
    write(files["strange"], FIVE | {"id": "\x1b[2J", "output": ["a"]})
    before = set(tmp_path.iterdir())
    texts = {"folder": str(tmp_path), "demo": str(DEMO)} | {n: str(p) for n, p in files.items()}
    status, told, errors = run(*(arg.format(**texts) for arg in args))
    assert (status, told) == (2, "")
    assert errors.startswith("paradec ddgviz: error: ") and errors.count("\n") == 1
    assert message.format(**texts) in errors and "\x1b" not in errors
    assert set(tmp_path.iterdir()) == before
