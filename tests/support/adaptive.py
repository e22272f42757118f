"""Decoding with adaptive blocks, watched, and its slow twin."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference import adaptive as twin
from reference import gad as gad_paper
from reference.greedy import rules_for
from torch import Tensor

from fairseq_paradec.decoding.row import Row
from support.blockwise import Given, criterion, network
from support.builders import (
    DRAFTER_BLOCK_SIZE,
    Limits,
    source_rows,
)
from support.gad import (
    Pair,
    ScriptedScorer,
    twin_drafter,
    twin_verifier,
)


def passes(
    task: Any,
    model: Any,
    sample: dict[str, Any],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    prefix_tokens: Tensor | None = None,
    script: Any = None,
    **flags: Any,
) -> list[twin.Result]:
    """Decode a batch, and say of each row what the twin would say of it.

    Args:
        script: what GAD's drafter is to say; see test_gad.
    """
    args = argparse.Namespace(**limits.flags(), **{"adaptive_block": True} | flags)
    generator = task.build_generator([model], args)
    if script is not None:
        scorer = generator.draft_scorer = ScriptedScorer(generator.drafter, script)
        scorer.sources = source_rows(sample)
    seen: list[tuple[Row, list[int]]] = []
    make_drafter = generator.make_drafter

    def watch(rows: Sequence[Row], *args: Any) -> Any:
        seen.extend((row, []) for row in rows)
        drafter = make_drafter(rows, *args)
        propose = drafter.propose

        def spy(live: Sequence[Row]) -> Any:
            for row, size in zip(live, drafter.sizes.sizes, strict=True):
                seen[row.index][1].append(size)
            return propose(live)

        drafter.propose = spy
        return drafter

    generator.make_drafter = watch
    task.inference_step(generator, [model], sample, prefix_tokens=prefix_tokens)
    return [
        twin.Result(
            row.tokens,
            row.scores,
            [
                twin.Pass(p.start, block, p.num_drafted, p.num_accepted)
                for p, block in zip(row.passes, blocks, strict=True)
            ],
        )
        for row, blocks in seen
    ]


def compare(got: Sequence[twin.Result], want: Sequence[twin.Result]) -> None:
    """Check tokens, scores (where the twin has them) and every pass of every row."""
    for ours, theirs in zip(got, want, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.passes == theirs.passes
        if theirs.scores:
            assert ours.scores == pytest.approx(theirs.scores, abs=1e-4)


def gad_twin(
    given: Pair,
    source: Sequence[int],
    limits: Limits = Limits(),  # noqa: B008
    prefix: Sequence[int] = (),
    script: Any = None,
    block_size: int = DRAFTER_BLOCK_SIZE,
    topk: int = 1,
    margin: float = 0.0,
) -> twin.Result:
    """The twin with GAD's drafter, or with one that follows a script."""
    words = given.task.target_dictionary
    rules = rules_for(words, given.models, len(source), prefix=prefix, **limits.reference())
    said = twin_drafter(given, tuple(source), block_size)
    if script is not None:
        said = functools.partial(_ask, script, tuple(source), block_size)

    def draft(y: Sequence[int]) -> list[int]:
        return [int(rules.apply(s, len(y) + i).argmax()) for i, s in enumerate(said(y))]

    def accepts(scores: Tensor, token: int) -> bool:
        return gad_paper.passes(scores, token, topk, margin)

    verify = twin_verifier(given, tuple(source), limits.temperature)
    return twin.decode(verify, draft, rules, block_size, accepts)


def _ask(script: Any, source: tuple[int, ...], size: int, prefix: Sequence[int]) -> Tensor:
    scores: Tensor = script(source, prefix, size)
    return scores


def heads_twin(
    given: Given,
    source: Sequence[int],
    limits: Limits = Limits(),  # noqa: B008
    prefix: Sequence[int] = (),
    **flags: Any,
) -> twin.Result:
    """The twin with heads: they draft behind the token that was chosen at the state they see."""
    net = network(given, tuple(source))
    words = given.task.target_dictionary
    rules = rules_for(words, [given.model], len(source), prefix=prefix, **limits.reference())
    size = flags.get("block_size", given.heads.block_size)
    rule = criterion(given.task, flags)

    def verify(y: Sequence[int]) -> Tensor:
        return torch.stack([net.log_probs(s, 0, limits.temperature) for s in net.states(y)])

    def draft(y: Sequence[int]) -> list[int]:
        if not y:
            return []
        state, at = net.states(y[:-1])[-1], len(y) - 1
        each = [(i, net.log_probs(state, i, limits.temperature)) for i in range(1, size)]
        return [int(rules.apply(scores, at + i).argmax()) for i, scores in each]

    # One token of a block is the verifier's own.
    return twin.decode(verify, draft, rules, size - 1, rule.holds, rule.least - 1)
