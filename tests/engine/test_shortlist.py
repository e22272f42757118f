"""Drafts out of the dictionary's first tokens: fairseq's output, and the drafts of a slow twin."""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference import blockwise as heads_paper
from reference.greedy import rules_for
from support import gad
from support.blockwise import Given, criterion, numbers, whole
from support.builders import VOCABULARY, Limits, batch, built, source_rows
from support.exact import PREFIXES, RAGGED, check, watched
from support.gad import Pair, pair, said_by
from torch import Tensor

from fairseq_paradec.engine.projection import DraftProjection
from fairseq_paradec.errors import UsageError

#: A row's output; and its passes: the tokens written before it, its draft, how many were accepted.
Found = tuple[list[int], list[tuple[int, tuple[int, ...], int]]]


def found(
    task: Any,
    model: Any,
    sample: dict[str, Any],
    limits: Limits = Limits(),
    prefix_tokens: Tensor | None = None,
    **flags: Any,
) -> list[Found]:
    args = argparse.Namespace(**limits.flags(), **flags)
    generator = task.build_generator([model], args)
    generator.decoder.record_tokens = True
    return [
        (one.tokens, [(p.start, tuple(p.tokens.draft), p.num_accepted) for p in one.row.passes])
        for one in watched(task, generator, [model], sample, prefix_tokens)
    ]


def drafted(rows: Sequence[Found]) -> set[int]:
    return {token for _, passes in rows for p in passes for token in p[1]}


def cut(scores: Tensor, size: int) -> Tensor:
    """Scores in which no token beyond the shortlist can be the best."""
    scores = scores.clone()
    scores[..., size:] = -math.inf
    return scores


def gad_twin(
    given: Pair,
    source: Sequence[int],
    shortlist: int,
    limits: Limits = Limits(),
    prefix: Sequence[int] = (),
    topk: int = 1,
) -> Found:
    def script(source: tuple[int, ...], y: Sequence[int], size: int) -> Tensor:
        return cut(said_by(given, source, size)(y), shortlist)

    rule = {"decoding": "gad_pp", "accept_topk": topk, "accept_margin": math.inf}
    result = gad.twin(given, source, limits, prefix, script, **rule)
    return result.tokens, [(p.start, p.draft, p.num_accepted) for p in result.passes]


@pytest.mark.parametrize(
    ("variant", "kind", "shortlist", "topk"),
    [
        ("default", "bidirectional", 5, 1),
        ("learned_positions", "causal-copy-shared", 12, 1),
        ("adaptive_softmax", "causal", VOCABULARY, 1),
        ("separate", "causal", 20, 20),
    ],
)
def test_gad_drafts_the_best_of_the_first(
    variant: str, kind: str, shortlist: int, topk: int
) -> None:
    """fairseq's tokens and scores; the drafts are the full scores' best among the first N."""
    given = pair(variant, kind)
    (model,), sample = given.models, batch(given.task, RAGGED, seed=1)
    flags: dict[str, Any] = {"decoding": "gad", "drafter_path": given.path}
    if topk > 1:
        flags |= {"decoding": "gad_pp", "accept_topk": topk, "accept_margin": math.inf}
    short = flags | {"drafter_shortlist": shortlist}
    if topk == 1:
        check(given.task, [model], sample, short, Limits())
        ensemble = [model, built("other_dims")[1]]
        if kind == "bidirectional":
            check(given.task, ensemble, sample, short | {"adaptive_block": True}, Limits())
    got = found(given.task, model, sample, **short)
    assert got == [gad_twin(given, row, shortlist, topk=topk) for row in source_rows(sample)]
    assert max(drafted(got)) < shortlist
    free = found(given.task, model, sample, **flags)
    assert (got == free) if shortlist == VOCABULARY else max(drafted(free)) >= shortlist


@pytest.mark.parametrize("prefix", ["one", "ragged", "long"])
def test_forced_tokens_are_drafted_wherever_they_stand(prefix: str) -> None:
    """With --prefix-size drafts come from the whole dictionary: 39 is no token of a shortlist."""
    given = pair("learned_positions", "causal")
    sample, forced = batch(given.task, RAGGED[:4], seed=1), torch.tensor(PREFIXES[prefix])
    heads = whole(given.task, "learned_positions")
    limits = Limits(max_len_b=5, unkpen=0.5)
    flags = {"decoding": "gad", "drafter_path": given.path, "drafter_shortlist": 7}
    check(given.task, given.models, sample, flags, limits, forced)
    got = found(given.task, given.models[0], sample, limits, forced, **flags)
    rows = zip(source_rows(sample), PREFIXES[prefix], strict=True)
    assert got == [gad_twin(given, row, VOCABULARY, limits, head) for row, head in rows]
    flags = heads.flags | {"drafter_shortlist": 7}
    check(heads.task, [heads.model], sample, flags, limits, forced)


class ShortNetwork(heads_paper.Network):
    """Heads, but not p_1, know the first tokens only."""

    shortlist = 0

    def log_probs(self, state: Tensor, head: int, temperature: float, first: int = 0) -> Tensor:
        scores = super().log_probs(state, head, temperature, first)
        return cut(scores, self.shortlist) if head > 0 else scores


def heads_twin(given: Given, source: Sequence[int], shortlist: int, **flags: Any) -> Found:
    """The paper's algorithm; a block's drafts are verified by the pass after its first token's."""
    heads = heads_paper.heads_of(given.heads, given.model.flags.activation_fn)
    network = ShortNetwork(given.model, heads, source)
    network.shortlist = shortlist
    words = given.task.target_dictionary
    rules = rules_for(words, [given.model], len(source), **Limits().reference())
    rule = criterion(given.task, flags)
    result = heads_paper.blockwise(network, rules, given.heads.block_size, rule)
    verified = [b for b in result.blocks if b.predicted[0] != 2]
    passes = [(b.start + 1, b.predicted[1:], b.size - 1) for b in verified]
    return result.tokens, [(0, (), 0), *passes]


@pytest.mark.parametrize("flags", [{}, {"accept_topk": 3}, {"min_block": 3}], ids=str)
@pytest.mark.parametrize(("kind", "shortlist"), [("per_head", 5), ("dense-first", 9), ("lent", 16)])
def test_heads_draft_the_best_of_the_first(
    kind: str, shortlist: int, flags: dict[str, Any]
) -> None:
    given = numbers(kind)
    sample = batch(given.task, RAGGED, seed=1)
    short = given.flags | flags | {"drafter_shortlist": shortlist}
    got = found(given.task, given.model, sample, **short)
    assert got == [heads_twin(given, row, shortlist, **flags) for row in source_rows(sample)]
    assert max(drafted(got)) < shortlist
    free = found(given.task, given.model, sample, **given.flags | flags)
    assert (got == free) if shortlist == 16 else max(drafted(free)) >= shortlist
    if not flags:
        adaptive = short | {"adaptive_block": True}
        check(given.task, [given.model], sample, adaptive, Limits())


def test_a_shortlist_has_words_and_lies_in_the_dictionary() -> None:
    given = pair("default", "causal")
    heads, said = whole(given.task), "from 5 .one word besides the 4 special symbols. to 40"
    gad = {"decoding": "gad", "drafter_path": given.path}
    for model, flags in ((given.models[0], gad), (heads.model, heads.flags)):
        for size in (5, VOCABULARY):
            args = argparse.Namespace(**flags, drafter_shortlist=size)
            given.task.build_generator([model], args)
        for size in (4, VOCABULARY + 1):
            args = argparse.Namespace(**flags, drafter_shortlist=size)
            with pytest.raises(UsageError, match=f"--drafter-shortlist: got {size}; .*{said}"):
                given.task.build_generator([model], args)
    task, model = built("adaptive_softmax")
    with pytest.raises(UsageError, match=r"--drafter-shortlist 9 excludes an adaptive softmax"):
        DraftProjection(model, 9, task.target_dictionary)
