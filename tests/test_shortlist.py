"""Drafts out of the dictionary's first tokens: fairseq's output, and the drafts of a slow twin."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference import blockwise as heads_paper
from reference import gad as gad_paper
from reference.greedy import rules_for
from support.blockwise import Given, criterion, numbers, whole
from support.builders import (
    DEMO,
    DEMO_DRAFTER,
    DRAFTER_BLOCK_SIZE,
    VOCABULARY,
    Limits,
    batch,
    built,
    collate,
    demo,
    source_rows,
)
from support.exact import PREFIXES, RAGGED, check
from support.gad import KINDS, Pair, pair, twin_drafter, twin_verifier
from torch import Tensor

from fairseq_paradec.decoding.engine.block import BlockScorer
from fairseq_paradec.decoding.engine.projection import DraftProjection
from fairseq_paradec.decoding.row import Row
from fairseq_paradec.errors import UsageError

#: A pass: the tokens written before it, its draft, and how many of that were accepted.
Pass = tuple[int, tuple[int, ...], int]


def passes(
    task: Any,
    model: Any,
    sample: dict[str, Any],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    prefix_tokens: Tensor | None = None,
    **flags: Any,
) -> list[tuple[list[int], list[Pass]]]:
    """Each row's output and passes."""
    args = argparse.Namespace(**limits.flags(), **flags)
    generator = task.build_generator([model], args)
    generator.record_tokens = True
    rows: list[Row] = []
    make_rows = generator._make_rows

    def keep_rows(*args: Any) -> list[Row]:
        rows.extend(make_rows(*args))
        return rows

    generator._make_rows = keep_rows
    task.inference_step(generator, [model], sample, prefix_tokens=prefix_tokens)
    return [
        (row.tokens, [(p.start, tuple(p.tokens.draft), p.num_accepted) for p in row.passes])
        for row in rows
    ]


def cut(scores: Tensor, size: int) -> Tensor:
    """Scores in which no token beyond the shortlist can be the best."""
    scores = scores.clone()
    scores[..., size:] = -math.inf
    return scores


# ---- gad ----------------------------------------------------------------------------------------


def gad_flags(given: Pair, **flags: Any) -> dict[str, Any]:
    return {"decoding": "gad", "drafter_path": given.path} | flags


def gad_twin(
    given: Pair,
    source: Sequence[int],
    shortlist: int,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Sequence[int] = (),
    topk: int = 1,
    margin: float = 0.0,
) -> tuple[list[int], list[Pass]]:
    """The paper's algorithm, its drafter's full scores cut."""
    words = given.task.target_dictionary
    rules = rules_for(words, given.models, len(source), prefix=prefix, **limits.reference())
    said = twin_drafter(given, tuple(source), DRAFTER_BLOCK_SIZE)
    verify = twin_verifier(given, tuple(source), limits.temperature)
    result = gad_paper.gad(verify, lambda y: cut(said(y), shortlist), rules, topk, margin)
    return result.tokens, [(p.start, p.draft, p.num_accepted) for p in result.passes]


@pytest.mark.slow
@pytest.mark.parametrize("shortlist", [5, 12, 20, VOCABULARY])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["default", "learned_positions", "adaptive_softmax"])
def test_gad_drafts_the_best_of_the_first(variant: str, kind: str, shortlist: int) -> None:
    """fairseq's tokens and scores; the drafts are the full scores' best among the first N."""
    given = pair(variant, kind)
    (model,), sample = given.models, batch(given.task, RAGGED, seed=1)
    flags = gad_flags(given, drafter_shortlist=shortlist)
    check(given.task, [model], sample, flags, Limits())
    got = passes(given.task, model, sample, **flags)
    rows = source_rows(sample)
    assert got == [gad_twin(given, row, shortlist) for row in rows]
    assert all(token < shortlist for _, each in got for p in each for token in p[1])
    free = passes(given.task, model, sample, **gad_flags(given))
    if shortlist == VOCABULARY:
        assert got == free
    else:  # the best token lay outside
        assert any(token >= shortlist for _, each in free for p in each for token in p[1])
        (alone,) = passes(given.task, model, collate(given.task, [torch.tensor(rows[1])]), **flags)
        assert alone == got[1]


def test_gad_pp_with_a_shortlist() -> None:
    given = pair("separate", "causal")
    sample = batch(given.task, RAGGED, seed=1)
    flags = gad_flags(given, drafter_shortlist=20, accept_topk=20, accept_margin=math.inf)
    got = passes(given.task, given.models[0], sample, **flags | {"decoding": "gad_pp"})
    want = [gad_twin(given, r, 20, topk=20, margin=math.inf) for r in source_rows(sample)]
    assert got == want
    assert any(p[2] > 0 for _, each in got for p in each)


@pytest.mark.parametrize(
    "limits",
    [Limits(max_len_b=1), Limits(max_len_b=200), Limits(min_len=9, unkpen=-6.0, temperature=1.4)],
    ids=str,
)
def test_gad_within_limits(limits: Limits) -> None:
    given = pair("mbart", "causal")
    sample = batch(given.task, RAGGED, seed=1)
    flags = gad_flags(given, drafter_shortlist=9)
    for adaptive in (False, True):
        every = flags | {"adaptive_block": adaptive}
        check(given.task, given.models, sample, every, limits)
    got = passes(given.task, given.models[0], sample, limits, **flags)
    assert got == [gad_twin(given, row, 9, limits) for row in source_rows(sample)]


def test_gad_for_an_ensemble() -> None:
    given = pair("default", "causal")
    models = [*given.models, built("other_dims")[1]]
    flags = gad_flags(given, drafter_shortlist=12)
    check(given.task, models, batch(given.task, RAGGED, seed=1), flags, Limits())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_forced_tokens_are_drafted_wherever_they_stand(prefix: str) -> None:
    """With --prefix-size drafts come from the whole dictionary: 39 is no token of a shortlist."""
    given = pair("learned_positions", "causal")
    sample, forced = batch(given.task, RAGGED[:4], seed=1), torch.tensor(PREFIXES[prefix])
    for limits in (Limits(min_len=4), Limits(max_len_b=5, unkpen=0.5)):
        flags = gad_flags(given, drafter_shortlist=7)
        check(given.task, given.models, sample, flags, limits, forced)
        got = passes(given.task, given.models[0], sample, limits, forced, **flags)
        rows = zip(source_rows(sample), PREFIXES[prefix], strict=True)
        assert got == [gad_twin(given, row, VOCABULARY, limits, head) for row, head in rows]
        heads = whole(*_learned())
        every = heads.flags | {"drafter_shortlist": 7}
        check(heads.task, [heads.model], sample, every, limits, forced)


@functools.cache
def _learned() -> tuple[Any, str]:
    return built("learned_positions")[0], "learned_positions"


# ---- blockwise ----------------------------------------------------------------------------------


class ShortNetwork(heads_paper.Network):
    """Heads, but not p_1, know the first tokens only."""

    shortlist = 0

    def log_probs(self, state: Tensor, head: int, temperature: float) -> Tensor:
        scores = super().log_probs(state, head, temperature)
        return cut(scores, self.shortlist) if head > 0 else scores


def heads_twin(
    given: Given, source: Sequence[int], shortlist: int, **flags: Any
) -> tuple[list[int], list[Pass]]:
    """The paper's algorithm; a block's drafts are verified by the pass after its first token's."""
    heads = heads_paper.heads_of(given.heads, given.model.flags.activation_fn)
    network = ShortNetwork(given.model, heads, source)
    network.shortlist = shortlist
    words = given.task.target_dictionary
    rules = rules_for(words, [given.model], len(source), **Limits().reference())
    rule = criterion(given.task, flags)
    result = heads_paper.blockwise(network, rules, given.heads.block_size, rule)
    verified = [b for b in result.blocks if b.predicted[0] != 2]
    found = [(b.start + 1, b.predicted[1:], b.size - 1) for b in verified]
    return result.tokens, [(0, (), 0), *found]


@pytest.mark.parametrize("flags", [{}, {"accept_topk": 3}, {"min_block": 3}], ids=str)
@pytest.mark.parametrize("shortlist", [5, 9, 16])
@pytest.mark.parametrize("kind", ["per_head", "dense-first", "lent"])
def test_heads_draft_the_best_of_the_first(
    kind: str, shortlist: int, flags: dict[str, Any]
) -> None:
    given = numbers(kind)
    sample = batch(given.task, RAGGED, seed=1)
    given_flags = given.flags | flags | {"drafter_shortlist": shortlist}
    got = passes(given.task, given.model, sample, **given_flags)
    assert got == [heads_twin(given, row, shortlist, **flags) for row in source_rows(sample)]
    assert all(token < shortlist for _, each in got for p in each for token in p[1])
    free = passes(given.task, given.model, sample, **given.flags | flags)
    if shortlist == 16:
        assert got == free
    else:
        assert any(token >= shortlist for _, each in free for p in each for token in p[1])
    if not flags:
        for adaptive in (False, True):
            every = given_flags | {"adaptive_block": adaptive}
            check(given.task, [given.model], sample, every, Limits())


# ---- what is projected, and what is refused -----------------------------------------------------


@pytest.mark.parametrize("lasting", [False, True])
def test_only_the_first_tokens_are_projected(lasting: bool) -> None:
    """With the model's own bias, if it has one; all other scores stay whole."""
    given = pair("default", "causal", torch.float32)
    sample = batch(given.task, (5, 3))
    scorer = BlockScorer(given.drafter)
    given.drafter._is_generation_fast = lasting  # type: ignore[assignment]
    try:
        drafts = DraftProjection(scorer.model, 11, given.task.target_dictionary)
        with torch.inference_mode():
            scorer.encode(sample["net_input"])
            hidden = scorer.fill([[], []], 4)
            short = drafts.logits(scorer.projection, hidden)
            whole_ = drafts.logits(scorer.projection, hidden, whole=True)
            everything = scorer.log_probs(hidden)
    finally:
        del given.drafter._is_generation_fast
    assert short.shape == (2, 4, 11) and whole_.shape == (2, 4, VOCABULARY)
    torch.testing.assert_close(short, whole_[..., :11])
    assert everything.shape == whole_.shape


@pytest.mark.parametrize("size", [1, 4, VOCABULARY + 1, 10**9])
def test_a_shortlist_has_words_and_lies_in_the_dictionary(size: int) -> None:
    given = pair("default", "causal")
    said = f"got {size}; allowed: from 5 .one word besides the 4 special symbols. to 40"
    for build in (_build_gad, _build_heads):
        with pytest.raises(UsageError, match=f"--drafter-shortlist: {said}"):
            build(given, size)
        for allowed in (5, VOCABULARY):
            build(given, allowed)


def _build_gad(given: Pair, size: int) -> None:
    flags = gad_flags(given, drafter_shortlist=size)
    given.task.build_generator(list(given.models), argparse.Namespace(**flags))


def _build_heads(given: Pair, size: int) -> None:
    heads = whole(given.task)
    flags = heads.flags | {"drafter_shortlist": size}
    heads.task.build_generator([heads.model], argparse.Namespace(**flags))


def test_an_adaptive_softmax_has_no_shortlist() -> None:
    task, model = built("adaptive_softmax")
    with pytest.raises(UsageError, match=r"--drafter-shortlist: got 9; .*adaptive softmax"):
        DraftProjection(model, 9, task.target_dictionary)


# ---- a trained model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ({"decoding": "gad", "drafter_path": str(DEMO_DRAFTER)}, 1.12),
        ({"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt")}, 1.05),
    ],
    ids=lambda value: value["decoding"] if isinstance(value, dict) else str(value),
)
def test_a_trained_pair_loses_few_passes(flags: dict[str, Any], more: float) -> None:
    """Half of the demo's dictionary: the same outputs, about as many passes."""
    task, model, rows = demo()
    size = len(task.target_dictionary) // 2
    sample = collate(task, rows[:50])
    limits = Limits(max_len_b=60)
    free = passes(task, model, sample, limits, **flags)
    short = passes(task, model, sample, limits, **flags, drafter_shortlist=size)
    assert [tokens for tokens, _ in short] == [tokens for tokens, _ in free]
    count = [sum(len(each) for _, each in found) for found in (free, short)]
    assert count[0] <= count[1] <= more * count[0]
