"""Decoding dependency graphs by hand and by an independent run, and as a kind of trace."""

import functools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from reference.ddg import Graph, dependency_graph
from reference.greedy import rules_for
from support import trace_records
from support.builders import DEMO, Limits, batch, built, collate, decode, source_rows
from support.tables import refused, run
from support.trace_records import read, write

from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.show.ddg import DependencyGraph, as_text, from_record
from fairseq_paradec.lab.show.page import MARK

KIND = ("--kind", "dependencies")

record = functools.partial(trace_records.record, decoding="pj", source=["s", "</s>"])


def one_pass(start: int, verifier: str, committed: int, accepted: int = 0) -> dict[str, Any]:
    """A pass whose tokens have the probabilities 0.91, 0.82, 0.73 ... and runners-up in capitals.

    Pass and position are in the probability, so that none stands for another.
    """
    tokens = verifier.split()
    scores = [math.log(0.99 - 0.1 * start - 0.01 * i) for i in range(len(tokens))]
    guesses = " ".join(tokens[:accepted] + ["<pad>"] * (len(tokens) - accepted))
    told = {"log_probs": scores, "runner_up": [token.upper() for token in tokens]}
    told["runner_up_log_probs"] = [score - 1 for score in scores]
    return trace_records.one_pass(start, guesses, verifier, accepted, committed, **told)


#: `b` is right, then wrong, then right; `d` before `c` to its left.
FIVE = record(
    "a b c d </s>",
    one_pass(0, "a b x x y", 1),
    one_pass(1, "x x d y", 0),
    one_pass(1, "b x d y", 1),
    one_pass(2, "c d </s>", 3),
)


def test_five_tokens_by_hand() -> None:
    graph = from_record(FIVE, "sentence 3")
    assert graph.tokens == ["a", "b", "c", "d", "</s>"]
    assert graph.num_passes == 4
    assert graph.final_pass == [1, 3, 4, 2, 4]
    assert graph.waves == [[0], [3], [1], [2, 4]]
    assert graph.edges == [(3, 0), (1, 3), (2, 1), (4, 1)]
    assert graph.parallel == [False, False, True, False, True]
    # a: 0.99 of pass 1; b: pass 3, which starts at it; c: pass 4; d: pass 2, third of its window
    shown = [math.exp(value) for value in graph.log_probs]
    assert shown == pytest.approx([0.99, 0.89, 0.79, 0.87, 0.77], abs=1e-12)
    assert [cell.runner_up for cell in graph.finals] == ["A", "B", "C", "D", "</S>"]
    second = [cell.runner_up_log_prob for cell in graph.finals]
    assert second == pytest.approx([v - 1 for v in graph.log_probs], abs=1e-12)
    one = graph.predictions[2][3]
    assert one is not None and (one.token, one.log_prob) == ("d", math.log(0.87))
    assert (one.runner_up, one.runner_up_log_prob) == ("D", math.log(0.87) - 1)
    for number, right in enumerate(("ab", "ad", "abd", "abcd."), start=1):
        assert [graph.is_right(number, i) for i in range(5)] == [t in right for t in "abcd."]


def broken(**fields: Any) -> dict[str, Any]:
    """FIVE with other fields in its second pass."""
    first, second, *more = FIVE["trace"]
    return FIVE | {"trace": [first, second | fields, *more]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (FIVE | {"decoding": "gad"}, "s: got a trace of 'gad'; allowed: greedy, pj, pgj, hgj"),
        (FIVE | {"output": ["a"]}, "s contradicts itself: what its passes commit"),
        (record(""), "s has no output"),
        (broken(log_probs=[-1.0, math.nan, -1.0, -1.0]), "s, pass 2: 'log_probs' lacks a value"),
        (broken(log_probs=[-1.0, 800, -1.0, -1.0]), "s, pass 2: 'log_probs' lacks a value"),
        (broken(log_probs=[-1.0, None, -1.0, -1.0]), "s, pass 2: 'log_probs' lacks a value"),
        (broken(log_probs=[-1.0]), "s, pass 2: 'log_probs' lacks a value"),
        (broken(start=2), "s, pass 2 starts at 2, after 1 committed"),
        (  # a relaxed rule's trace under a Jacobi decoder's name: `x` was drafted, `b` predicted
            record("a x c", one_pass(0, "a b c", 3, accepted=2) | {"draft": ["a", "x", "c"]}),
            "s contradicts itself: what it commits at position 1 is not what the model predicted",
        ),
    ],
)
def test_broken_records(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        from_record(bad, "s")


def decoded(task: Any, model: Any, rows: Any, size: int, path: Path, limits: Limits, **flags: Any):
    """The rows' graphs in their order, decoded in batches of `size`."""
    for start in range(0, len(rows), size):
        sample = collate(task, rows[start : start + size])
        sample["id"] += start
        decode(task, [model], sample, limits, trace_file=str(path), **flags)
    records = sorted(read(path), key=lambda one: one["id"])
    assert [one["id"] for one in records] == list(range(len(rows)))
    return [from_record(one, f"sentence {one['id']}") for one in records]


def check(task: Any, got: DependencyGraph, want: Graph, tolerance: float) -> None:
    """The same tokens, final from the same pass on, with the probabilities of that pass."""
    words = task.target_dictionary
    assert got.tokens == [words[token] for token in want.tokens]
    assert got.final_pass == want.final_pass
    assert got.log_probs == pytest.approx(want.log_probs, abs=tolerance)
    runner_up = [cell.runner_up for cell in got.finals]
    assert runner_up == [None if token is None else words[token] for token in want.runner_up]


@pytest.mark.usefixtures("exact_softmax")
def test_random_models_in_double_precision(tmp_path: Path) -> None:
    """Blocks, too, of models that find one token or several in a pass."""
    cases: list[tuple[str | int, dict[str, Any]]] = [
        ("oracle", {"decoding": "pj", "jacobi_length": "oracle"}),
        ("grow", {"decoding": "pj"}),
        (3, {"decoding": "pgj", "block_size": 3}),
        (5, {"decoding": "hgj", "block_size": 5}),
        (1, {"decoding": "greedy"}),
    ]
    limits, waves = Limits(), set()
    for variant in ("learned_positions", "mbart"):
        task, model = built(variant)
        rows = [torch.tensor(row) for row in source_rows(batch(task, (3, 7, 5, 9, 2, 4), seed=2))]
        for length, flags in cases:
            for stop in ("prefix",) if length == 1 else ("prefix", "unchanged"):
                how = flags if length == 1 else flags | {"jacobi_stop": stop}
                path = tmp_path / f"{variant}-{length}-{stop}.jsonl"
                graphs = decoded(task, model, rows, len(rows), path, limits, **how)
                for graph, row in zip(graphs, rows, strict=True):
                    words, given = task.target_dictionary, limits.reference()
                    rules = rules_for(words, [model], len(row), **given)
                    want = dependency_graph([model], row.tolist(), rules, length, stop)
                    check(task, graph, want, 1e-9)
                    waves |= set(map(len, graph.waves))
    assert waves > {1}


@pytest.mark.slow
def test_a_sentence_of_ones_own(capsys: Any, tmp_path: Path) -> None:
    """All that is written of its trace agrees."""
    out, html, trace = (tmp_path / name for name in ("man.svg", "man.html", "man.jsonl"))
    sentence = "Two men's dogs are waiting for the train, quietly."
    how = ("--decoding", "pj", "--jacobi-length", "oracle", "--trace-file", trace)
    assert run(capsys, "translate", "--model", DEMO, "--text", sentence, *how)[0] == 0
    (found,) = read(trace)
    assert found["decoding"] == "pj" and found["flags"]["jacobi_length"] == "oracle"
    assert " ".join(found["source"]).startswith("Two men &apos;s dogs are waiting for the train , ")
    graph = from_record(found, "sentence 0")
    given = (*KIND, trace, "--picture", out, "--html", html)
    status, told, _ = run(capsys, "trace", *given)
    assert status == 0 and told == as_text(graph, found["source"]) + "\n"
    assert ElementTree.fromstring(out.read_bytes()).tag.endswith("svg")
    page = html.read_text(encoding="utf-8")
    assert page.startswith(MARK) and 'data-view="dependencies"' in page
    before = out.read_bytes()
    assert run(capsys, "trace", *given)[0] == 0
    assert out.read_bytes() == before


def test_sentences_of_a_trace(capsys: Any, tmp_path: Path) -> None:
    file, strange = tmp_path / "t.jsonl", tmp_path / "s.jsonl"
    write(file, *(FIVE | {"id": number} for number in (3, 5, 4, 3)))
    given = ("--sentence", 4, 3, "--picture", tmp_path / "g.svg")
    status, told, _ = run(capsys, "trace", *KIND, file, *given)
    assert status == 0 and told.startswith("sentence 3 (pj)\nsource  s </s>\npass 1  0:a 0.99\n")
    assert told.count("sentence ") == 3
    names = {path.name for path in tmp_path.glob("*.svg")}
    assert names == {"g-3.svg", "g-3-line4.svg", "g-4.svg"}
    drawn = re.findall(r">([^<>]+)</text>", (tmp_path / "g-4.svg").read_text("utf-8"))
    assert drawn[:3] == ["sentence 4 (pj)", from_record(FIVE, "s").summary, "source: s &lt;/s&gt;"]
    assert {"0.89", "0.87", "pass 4", "d"} <= set(drawn)
    write(strange, *(FIVE | {"id": name} for name in ("a/b", "../../x")))
    given = ("--sentence", "a/b", "../../x", "--picture", tmp_path / "h.png")
    assert run(capsys, "trace", *KIND, strange, *given)[0] == 0
    assert {path.name for path in tmp_path.glob("h*")} == {"h-a_b.png", "h-.._.._x.png"}
    # Without --sentence all are printed, and the first is drawn.
    status, told, _ = run(capsys, "trace", *KIND, file, "--picture", tmp_path / "i.svg")
    assert (status, told.count("sentence ")) == (0, 4)
    assert [path.name for path in tmp_path.glob("i*")] == ["i.svg"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{trace}", "--sentence", "9"], "--sentence: got '9'; allowed: numbers (id) of sentences"),
        (["{trace}", "--html", "{trace}"], "allowed: a new file, or an earlier page"),
        (["{gad}"], "gad.jsonl, line 1: sentence 3: got a trace of 'gad'; allowed: greedy, pj"),
        (["{strange}"], "\\x1b[2J"),
        (["{trace}", "--words", "a"], "--words a needs --kind order"),
        (["{trace}", "{trace}", "--picture", "{folder}/a.svg"], "needs one FILE, with --kind dep"),
        (["{trace}", "--image-size", "2x2", "--picture", "{folder}/a.svg"], "passes or steps"),
        ([], "FILE: got none; allowed: a file that --trace-file wrote"),
    ],
)
def test_mistakes(capsys: Any, tmp_path: Path, args: list[str], message: str) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("trace", "gad", "strange")}
    write(files["trace"], FIVE)
    write(files["gad"], FIVE | {"decoding": "gad"})
    write(files["strange"], FIVE | {"id": "\x1b[2J", "output": ["a"]})
    before = set(tmp_path.iterdir())
    texts = {"folder": str(tmp_path), "demo": str(DEMO)} | {n: str(p) for n, p in files.items()}
    errors = refused(capsys, "trace", *KIND, *(arg.format(**texts) for arg in args))
    assert message.format(**texts) in errors and "\x1b" not in errors
    assert set(tmp_path.iterdir()) == before
