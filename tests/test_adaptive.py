"""Adaptive blocks: the rule, fairseq's own output, and the passes of a slow twin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from reference import adaptive as twin
from reference.greedy import rules_for, stock_greedy
from reference.jacobi import sentence
from support.adaptive import compare, gad_twin, heads_twin, passes
from support.blockwise import KINDS as HEADS
from support.blockwise import SCRIPTS as HEAD_SCRIPTS
from support.blockwise import numbers, outputs_of, told, wide
from support.blockwise import perfect as perfect_heads
from support.blockwise import wrong as wrong_heads
from support.builders import (
    DEMO,
    DEMO_DRAFTER,
    Limits,
    batch,
    built,
    collate,
    demo,
    source_rows,
)
from support.exact import INITS, PREFIXES, RAGGED, check
from support.gad import (
    KINDS,
    SCRIPTS,
    ScriptedScorer,
    greedy_of,
    pair,
    perfect,
    wrong,
)

from fairseq_paradec.decoding.drafting import BlockSizes
from fairseq_paradec.decoding.engine.projection import DraftProjection

LIMITS = [
    Limits(max_len_b=0, min_len=0),
    Limits(max_len_b=1),
    Limits(max_len_b=4),
    Limits(max_len_b=200),
    Limits(min_len=9, unkpen=-2.0, temperature=1.3),
]

# ---- the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "accepted", "blocks"),
    [
        (8, [8, 8], [8, 8, 8]),
        (8, [0, 0], [8, 2, 2]),
        (8, [3, 1, 0, 2, 4, 6, 8], [8, 5, 3, 2, 4, 6, 8, 8]),
        (3, [0, 2, 1, 3], [3, 2, 3, 3, 3]),
        (1, [0, 1, 0], [1, 1, 1, 1]),
    ],
)
def test_the_rule(most: int, accepted: list[int], blocks: list[int]) -> None:
    sizes = BlockSizes(most, 2, adaptive=True)
    found = [sizes.sizes]
    for count in accepted:
        sizes.observe([count, 0])
        found.append(sizes.sizes)
    assert found == [[most, most], *([block, min(2, most)] for block in blocks[1:])]
    sizes.drop([1])
    assert sizes.sizes == found[-1][1:]


# ---- decoding, watched --------------------------------------------------------------------------


def each_alone(
    task: Any, model: Any, sample: dict[str, Any], want: Sequence[twin.Result], **flags: Any
) -> None:
    """Check that neighbours change nothing."""
    for row, result in zip(source_rows(sample), want, strict=True):
        compare(passes(task, model, collate(task, [torch.tensor(row)]), **flags), [result])


# ---- gad and gad_pp -----------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("variant", ["learned_positions", "mbart"])
def test_gad_with_scripted_drafters(variant: str, script: Callable[..., Any]) -> None:
    given = pair(variant, "causal-copy-shared")
    (model,), sample = given.models, batch(given.task, RAGGED, seed=1)
    greedy = greedy_of(given, sample)
    said = script(greedy)
    for size in (1, 2, 5, 16):
        flags = {"decoding": "gad", "drafter_path": given.path, "block_size": size, "script": said}
        got = passes(given.task, model, sample, **flags)
        rows = source_rows(sample)
        assert [r.tokens for r in got] == [greedy[tuple(row)] for row in rows]
        compare(got, [gad_twin(given, row, script=said, block_size=size) for row in rows])
        if size == 5:
            each_alone(given.task, model, sample, got, **flags)
        if script is wrong:
            blocks = [[p.block for p in r.passes] for r in got]
            assert all(b[1:] == [min(2, size)] * (len(b) - 1) for b in blocks)
        if script is perfect:
            assert {p.block for r in got for p in r.passes} == {size}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["default", "adaptive_softmax", "separate"])
def test_gad_with_random_drafters(variant: str, kind: str) -> None:
    """fairseq's tokens and scores; gad_pp as the twin."""
    given = pair(variant, kind)
    (model,), rule = given.models, {"accept_topk": 20, "accept_margin": math.inf}
    for sample in (batch(given.task, RAGGED, seed=1), batch(given.task, [5], seed=3)):
        flags = {"drafter_path": given.path, "block_size": 5}
        exact = {"decoding": "gad", "adaptive_block": True, **flags}
        check(given.task, [model], sample, exact, Limits())
        rows = source_rows(sample)
        got = passes(given.task, model, sample, decoding="gad", **flags)
        compare(got, [gad_twin(given, row, block_size=5) for row in rows])
        got = passes(given.task, model, sample, decoding="gad_pp", **flags, **rule)
        compare(got, [gad_twin(given, r, block_size=5, topk=20, margin=math.inf) for r in rows])


def test_blocks_of_gad_pp_shrink_and_grow() -> None:
    """What the test above stands on: a relaxed rule accepts some of a block."""
    given = pair("separate", "causal")
    rows = source_rows(batch(given.task, RAGGED, seed=1))
    found = [gad_twin(given, row, block_size=5, topk=20, margin=math.inf) for row in rows]
    steps = [(one.block, two.block) for r in found for one, two in itertools.pairwise(r.passes)]
    assert any(a > b for a, b in steps) and any(a < b for a, b in steps)


def test_gad_projects_no_more_masks_than_are_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """But always has k of them, for they see each other."""
    given = pair("mbart", "causal")
    sample = batch(given.task, (5,))
    greedy = greedy_of(given, sample)
    asked: list[tuple[int, int]] = []
    fill, logits = ScriptedScorer.fill, DraftProjection.logits
    monkeypatch.setattr(
        ScriptedScorer, "fill", lambda self, y, k: asked.append((len(y[0]), k)) or fill(self, y, k)
    )
    projected: list[int] = []
    monkeypatch.setattr(
        DraftProjection,
        "logits",
        lambda self, of, h, whole: projected.append(h.size(1)) or logits(self, of, h, whole),
    )
    flags = {"decoding": "gad", "drafter_path": given.path, "block_size": 9}
    for script, adaptive in itertools.product((perfect, wrong), (True, False)):
        asked.clear(), projected.clear()
        (got,) = passes(
            given.task, given.models[0], sample, script=script(greedy),
            **flags | {"adaptive_block": adaptive},
        )  # fmt: skip
        assert {k for _, k in asked} == {9}
        blocks = zip(asked, got.passes, strict=False)
        want = [min(16 - start, one.block) for (start, _), one in blocks]
        assert projected == want
        assert (max(projected[1:], default=2) <= 2) or not (adaptive and script is wrong)


# ---- blockwise ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"accept_topk": 3},
        {"accept_distance": 2},
        {"min_block": 3},
        {"min_block": 6},
        {"min_block": 3, "accept_topk": 4},
        {"block_size": 3, "min_block": 2},
        {"block_size": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", HEADS)
def test_blockwise_is_the_twins(kind: str, flags: dict[str, Any]) -> None:
    given = numbers(kind)
    sample = batch(given.task, RAGGED, seed=1)
    want = [heads_twin(given, row, **flags) for row in source_rows(sample)]
    compare(passes(given.task, given.model, sample, **given.flags, **flags), want)
    each_alone(given.task, given.model, sample, want, **given.flags, **flags)
    least = flags.get("min_block", 1) - 1
    assert all(p.block >= least for r in want for p in r.passes)
    for result in want:  # but for what the output's end cuts
        assert all(p.num_accepted >= least for p in result.passes[1:-1])


@pytest.mark.parametrize("script", HEAD_SCRIPTS)
def test_heads_that_are_told_what_to_say(script: Any) -> None:
    """fairseq's output, and only heads that are of use are run."""
    task, base = wide()
    sample = batch(task, RAGGED, seed=1)
    want = stock_greedy(task, [base], sample, **Limits().stock())
    outputs = outputs_of(sample, want)
    given = told(task, base, sample, want, script, size=7)
    check(task, [base], sample, given.flags | {"adaptive_block": True}, Limits(), want=want)
    got = passes(task, base, sample, **given.flags)
    for ours, tokens in zip(got, outputs.values(), strict=True):
        drafts = ours.passes[1:]
        if script is wrong_heads:
            assert [p.block for p in drafts] == [6, *[2] * (len(drafts) - 1)][: len(drafts)]
            assert len(ours.passes) == len(tokens)
        if script is perfect_heads:
            assert {p.block for p in drafts} <= {6}
            assert len(ours.passes) == 1 + math.ceil((len(tokens) - 1) / 7)
    each_alone(task, base, sample, got, **given.flags)


def test_no_more_heads_run_than_are_of_use() -> None:
    task, base = wide()
    sample = batch(task, (5,), seed=1)
    want = stock_greedy(task, [base], sample, **Limits().stock())
    given = told(task, base, sample, want, wrong_heads, size=7)
    asked: list[list[int]] = []
    forward = given.heads.forward
    given.heads.forward = lambda states, ahead: asked.append(list(ahead)) or forward(states, ahead)
    (got,) = passes(task, base, sample, **given.flags)
    assert (
        asked
        == [[1, 2, 3, 4, 5, 6][: min(p.block, 16 - p.start)] for p in got.passes[1:]][: len(asked)]
    )
    assert len(asked) >= len(got.passes) - 2 > 0


# ---- sliding windows ----------------------------------------------------------------------------


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("variant", ["learned_positions", "mbart"])
def test_sliding_windows(variant: str, init: str) -> None:
    task, model = built(variant)
    for sample, (size, last) in itertools.product(
        (batch(task, RAGGED, seed=2), batch(task, [5], seed=3)),
        ((1, None), (3, None), (8, None), (5, 7), (50, None)),
    ):
        flags = {"decoding": "pgj", "block_size": size, "jacobi_window": "sliding"}
        flags |= {"jacobi_init": init, "adaptive_block": True}
        if last is not None:
            flags |= {"decoding": "hgj", "hybrid_length": last}
        check(task, [model], sample, flags, Limits())
        got = passes(task, model, sample, **flags)
        want = []
        for row in source_rows(sample):
            rules = rules_for(task.target_dictionary, [model], len(row), **Limits().reference())
            want.append(twin.sliding(sentence([model], row, rules), size, last, init))
        compare(got, want)
        if size == 8:
            each_alone(task, model, sample, got, **flags)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_sliding_windows_within_limits(limits: Limits) -> None:
    task, model = built("learned_positions")
    sample = batch(task, RAGGED[:4], seed=1)
    flags = {"decoding": "hgj", "block_size": 6, "jacobi_window": "sliding"}
    flags |= {"jacobi_init": "ngram", "adaptive_block": True}
    check(task, [model], sample, flags, limits)
    check(task, [model], sample, flags, limits, torch.tensor(PREFIXES["ragged"]))


# ---- a trained model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "fewer"),
    [
        ({"decoding": "gad", "drafter_path": str(DEMO_DRAFTER)}, 0.82),
        ({"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt")}, 0.68),
        ({"decoding": "pgj", "jacobi_window": "sliding", "block_size": 5}, 0.5),
    ],
    ids=lambda value: value["decoding"] if isinstance(value, dict) else str(value),
)
def test_fewer_tokens_in_about_as_many_passes(flags: dict[str, Any], fewer: float) -> None:
    """All sentences of the demo: what the rule was chosen by."""
    task, model, rows = demo()
    counts = []
    for adaptive in (False, True):
        found = []
        for first in range(0, len(rows), 50):
            sample = collate(task, rows[first : first + 50])
            found += passes(task, model, sample, Limits(max_len_b=60), adaptive_block=adaptive,
                            **flags)  # fmt: skip
        drafted = sum(p.num_drafted for r in found for p in r.passes)
        counts.append((sum(len(r.passes) for r in found), drafted, [r.tokens for r in found]))
    (old_passes, old_drafted, old), (new_passes, new_drafted, new) = counts
    assert old == new
    assert new_passes <= 1.01 * old_passes
    assert new_drafted <= fewer * old_drafted
