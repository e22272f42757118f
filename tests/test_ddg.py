"""Decoding dependency graphs: hand-made ones, and those of an independent run of the algorithm."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from reference.ddg import Graph, dependency_graph
from reference.greedy import rules_for
from support.builders import Limits, batch, built, collate, decode, demo, source_rows
from support.jacobi_records import FIVE, one_pass, record

from fairseq_paradec.analysis.ddg import DependencyGraph, Prediction, from_record
from fairseq_paradec.errors import UsageError


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
    assert graph.runner_up == ["A", "B", "C", "D", "</S>"]
    assert graph.runner_up_log_probs == pytest.approx([v - 1 for v in graph.log_probs], abs=1e-12)
    one = graph.predictions[2][3]
    assert one == Prediction("d", math.log(0.87), "D", math.log(0.87) - 1)
    right = [[graph.is_right(number, i) for i in range(5)] for number in range(1, 5)]
    assert right == [
        [True, True, False, False, False],
        [True, False, False, True, False],
        [True, True, False, True, False],
        [True, True, True, True, True],
    ]


def broken(**fields: Any) -> dict[str, Any]:
    """FIVE with other fields in its second pass."""
    first, second, *more = FIVE["trace"]
    return FIVE | {"trace": [first, second | fields, *more]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (FIVE | {"decoding": "gad"}, "s: got a trace of 'gad'; allowed: greedy, pj, pgj, hgj"),
        (FIVE | {"trace": None}, "s: 'trace' is missing or no list"),
        (FIVE | {"output": ["a"]}, "s contradicts itself: what its passes commit"),
        (record(""), "s has no output"),
        (broken(log_probs=[-1.0] * 3), "s, pass 2: 'log_probs' is missing or no list of 4"),
        (broken(log_probs=[-1.0, None, -1.0, -1.0]), "s, pass 2: 'log_probs' holds other"),
        (broken(log_probs=[-1.0, math.nan, -1.0, -1.0]), "s, pass 2: 'log_probs' holds other"),
        (broken(log_probs=[-1.0, 800, -1.0, -1.0]), "s, pass 2: 'log_probs' holds other"),
        (broken(runner_up=["a", "b", 3, None]), "s, pass 2: 'runner_up' holds other"),
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


# ---- an independent run ------------------------------------------------------------------------


def decoded(task: Any, model: Any, rows: Any, size: int, path: Path, limits: Limits, **flags: Any):
    """The rows' graphs in their order, decoded in batches of `size`."""
    for start in range(0, len(rows), size):
        sample = collate(task, rows[start : start + size])
        sample["id"] += start
        decode(task, [model], sample, limits, trace_file=str(path), **flags)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    records.sort(key=lambda one: one["id"])
    assert [one["id"] for one in records] == list(range(len(rows)))
    return [from_record(one, f"sentence {one['id']}") for one in records]


def check(task: Any, got: DependencyGraph, want: Graph, tolerance: float) -> None:
    """The same tokens, final from the same pass on, with the probabilities of that pass."""
    words = task.target_dictionary
    assert got.tokens == [words[token] for token in want.tokens]
    assert got.final_pass == want.final_pass
    assert got.log_probs == pytest.approx(want.log_probs, abs=tolerance)
    assert got.runner_up == [None if token is None else words[token] for token in want.runner_up]


@pytest.mark.parametrize(
    ("length", "stop"), [("oracle", "unchanged"), ("grow", "unchanged"), ("grow", "prefix")]
)
def test_fifty_sentences(tmp_path: Path, length: str, stop: str) -> None:
    """Gate: the demo's model, one by one and in ragged batches.

    With oracle's single block it makes no difference when the iteration ends: the reference runs
    until nothing changes, the decoder until all is known to be final.
    """
    task, model, sources = demo()
    rows, limits = sources[:50], Limits(max_len_b=200)
    wanted = []
    for row in rows:
        rules = rules_for(task.target_dictionary, [model], len(row))
        wanted.append(dependency_graph([model], row.tolist(), rules, length, stop))
    for own_stop, size in (("prefix" if length == "oracle" else stop, 1), (stop, 17)):
        path = tmp_path / f"{own_stop}-{size}.jsonl"
        flags = {"decoding": "pj", "jacobi_length": length, "jacobi_stop": own_stop}
        graphs = decoded(task, model, rows, size, path, limits, **flags)
        for graph, want in zip(graphs, wanted, strict=True):
            check(task, graph, want, 1e-4)
        assert sum(sum(graph.parallel) for graph in graphs) > 20  # not only chains


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
                    rules = rules_for(
                        task.target_dictionary, [model], len(row), **limits.reference()
                    )
                    want = dependency_graph([model], row.tolist(), rules, length, stop)
                    check(task, graph, want, 1e-9)
                    waves |= set(map(len, graph.waves))
    assert waves > {1}
