"""The slow twin of decoding with adaptive blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from reference import adaptive as twin
from reference import gad as gad_paper
from reference.greedy import rules_for
from torch import Tensor

from support.blockwise import Given, criterion, network
from support.builders import DRAFTER_BLOCK_SIZE, Limits
from support.gad import Pair, said_by, twin_verifier


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
    said = said_by(given, tuple(source), block_size, script)

    def draft(y: Sequence[int]) -> list[int]:
        return [int(rules.apply(s, len(y) + i).argmax()) for i, s in enumerate(said(y))]

    def accepts(scores: Tensor, token: int) -> bool:
        return gad_paper.passes(scores, token, topk, margin)

    verify = twin_verifier(given, tuple(source), limits.temperature)
    return twin.decode(verify, draft, rules, block_size, accepts)


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
