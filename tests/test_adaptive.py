"""Adaptive blocks: the rule, fairseq's own output, and the passes of a slow twin."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import adaptive as twin
from reference.greedy import rules_for
from reference.jacobi import sentence
from support.adaptive import gad_twin, heads_twin
from support.blockwise import numbers
from support.builders import Limits, batch, built, source_rows
from support.exact import PREFIXES, RAGGED, Decoded, check, watched
from support.gad import greedy_of, never_ends, noisy, pair, perfect, run, wrong

from fairseq_paradec.decoding.drafting import BlockSizes


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


def compare(got: list[Decoded], want: list[twin.Result]) -> None:
    """Check tokens, scores (where the twin has them) and every pass of every row."""
    for ours, theirs in zip(got, want, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.passes == [(p.start, p.num_drafted, p.num_accepted) for p in theirs.passes]
        assert not theirs.scores or ours.row.scores == pytest.approx(theirs.scores, abs=1e-4)


@pytest.mark.parametrize("script", [perfect, wrong, noisy, never_ends])
def test_gad_with_scripted_drafters(script: Callable[..., Any]) -> None:
    given = pair("learned_positions", "causal-copy-shared")
    sample = batch(given.task, RAGGED, seed=1)
    greedy = greedy_of(given, sample)
    said, rows = script(greedy), source_rows(sample)
    for size in (1, 2, 5, 16):
        flags = {"decoding": "gad", "block_size": size, "adaptive_block": True}
        got = run(given, sample, script=said, **flags)
        assert [one.tokens for one in got] == list(greedy.values())
        compare(got, [gad_twin(given, row, script=said, block_size=size) for row in rows])
        if script is wrong:
            assert all(drafted <= 2 for one in got for _, drafted, _ in one.passes[1:])


@pytest.mark.parametrize("kind", ["bidirectional", "causal-copy-shared"])
def test_gad_pp_with_random_drafters(kind: str) -> None:
    """A short block is of as many masks as a long one, for they see each other."""
    given = pair("separate", kind)
    sample, rule = batch(given.task, RAGGED, seed=1), {"accept_topk": 20, "accept_margin": math.inf}
    flags = {"decoding": "gad_pp", "block_size": 5, "adaptive_block": True, **rule}
    got, rows = run(given, sample, **flags), source_rows(sample)
    compare(got, [gad_twin(given, r, block_size=5, topk=20, margin=math.inf) for r in rows])
    counts = {drafted for one in got for _, drafted, _ in one.passes[:-1]}
    assert len(counts) > 2  # it shrinks and grows


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("dense-first", {}),
        ("lent", {"accept_distance": 2}),
        ("per_head", {"min_block": 3, "accept_topk": 4}),
        ("gelu-first", {"block_size": 3, "min_block": 2}),
        ("dense", {"min_block": 6}),
    ],
)
def test_blockwise_is_the_twins(kind: str, flags: dict[str, Any]) -> None:
    given = numbers(kind)
    sample = batch(given.task, RAGGED, seed=1)
    want = [heads_twin(given, row, **flags) for row in source_rows(sample)]
    args = argparse.Namespace(**Limits().flags(), adaptive_block=True, **given.flags, **flags)
    generator = given.task.build_generator([given.model], args)
    compare(watched(given.task, generator, [given.model], sample), want)
    for result in want:  # but for what the output's end cuts
        least = flags.get("min_block", 1) - 1
        assert all(p.num_accepted >= least for p in result.passes[1:-1])


@pytest.mark.parametrize("init", ["pad", "ngram"])
def test_sliding_windows(init: str) -> None:
    task, model = built("learned_positions")
    words, sample = task.target_dictionary, batch(task, RAGGED[:4], seed=2)
    for limits, (size, last) in itertools.product(
        (Limits(), Limits(max_len_b=0, min_len=0), Limits(min_len=9, unkpen=-2.0, temperature=1.3)),
        ((3, None), (5, 7), (50, None)),
    ):
        flags = {"decoding": "pgj", "block_size": size, "jacobi_window": "sliding"}
        flags |= {"jacobi_init": init, "adaptive_block": True}
        if last is not None:
            flags |= {"decoding": "hgj", "hybrid_length": last}
        check(task, [model], sample, flags, limits)
        check(task, [model], sample, flags, limits, torch.tensor(PREFIXES["ragged"]))
        generator = task.build_generator([model], argparse.Namespace(**limits.flags(), **flags))
        want = []
        for row in source_rows(sample):
            rules = rules_for(words, [model], len(row), **limits.reference())
            want.append(twin.sliding(sentence([model], row, rules), size, last, init))
        compare(watched(task, generator, [model], sample), want)
