"""Beam search as fairseq's, and with drafts of its next steps, in loops over lists. Slow.

Hypotheses are tuples of tokens. There is no tree and no cache: what a pass reads is the set of
beginnings that it is asked about, and each is read from its first token on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .greedy import Rules, known_log_probs

Tokens = tuple[int, ...]
#: Tokens -> the scores of the next one, V; -inf where it is forbidden.
Ask = Callable[[Tokens], list[float]]


def asker(models: Any, source: Sequence[int], rules: Rules) -> Ask:
    """The models' full forward, and fairseq's limits; the same question has the same answer."""
    known: dict[Tokens, list[float]] = {}
    log_probs = known_log_probs(models, source, rules)

    def ask(tokens: Tokens) -> list[float]:
        if tokens not in known:
            known[tokens] = rules.apply(log_probs(tokens)[-1], len(tokens), tokens).tolist()
        return known[tokens]

    return ask


@dataclass(frozen=True)
class Hypothesis:
    """Tokens, `</s>` last if it is finished, and the sum of their log-probabilities."""

    tokens: Tokens = ()
    scores: tuple[float, ...] = ()
    total: float = 0.0


@dataclass
class Search:
    """A sentence's search: fairseq's `_generate`, a step at a time."""

    rules: Rules
    beam: int
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    finished: list[Hypothesis] = field(default_factory=list)
    step: int = 0
    ends: bool = False

    def advance(self, ask: Ask) -> None:
        """The best 2·beam candidates; of the first beam of them those that end are finished."""
        ranked = [
            (one.total + score, one, token, score)
            for one in self.live
            for token, score in enumerate(ask(one.tokens))
        ]
        ranked.sort(key=lambda candidate: -candidate[0])  # stable: of equal ones the first
        candidates = [
            Hypothesis((*one.tokens, token), (*one.scores, score), total)
            for total, one, token, score in ranked[: 2 * self.beam]
        ]
        for one in candidates[: self.beam]:
            ends = one.tokens[-1] == self.rules.eos and one.total > -math.inf
            if ends and len(self.finished) < self.beam:
                self.finished.append(one)
        goes_on = [one for one in candidates if one.tokens[-1] != self.rules.eos]
        self.live = [one for one in goes_on[: self.beam] if one.total > -math.inf]
        full = len(self.finished) == self.beam
        self.ends = full or self.step == self.rules.max_len or not self.live
        self.step += 1


@dataclass(frozen=True)
class Pass:
    """A verifying pass: steps before it, steps drafted, steps taken, beginnings read."""

    start: int
    depth: int
    steps: int
    nodes: int


def search(
    verify: Ask, draft: Ask, rules: Rules, beam: int, depth: int
) -> tuple[list[Hypothesis], list[Pass]]:
    """Search with drafts; the finished hypotheses in the order of finishing, and the passes."""
    own, read, passes = Search(rules, beam), set[Tokens](), []

    def guess(tokens: Tokens) -> list[float]:
        return verify(tokens) if tokens in read else draft(tokens)

    while not own.ends:
        # 1. The same search, by the drafter where the model has not read.
        ahead = replace(own, live=list(own.live), finished=list(own.finished))
        wanted = {one.tokens for one in ahead.live}
        for _ in range(depth):
            if ahead.ends:
                break
            ahead.advance(guess)
            if not ahead.ends:
                wanted |= {one.tokens for one in ahead.live}
        # 2. One pass reads what is new.
        new = wanted - read
        read |= new
        # 3. Steps whose hypotheses are all read.
        start = own.step
        while not own.ends and all(one.tokens in read for one in own.live):
            own.advance(verify)
        passes.append(Pass(start, ahead.step - start, own.step - start, len(new)))
    return own.finished, passes


def plain(verify: Ask, rules: Rules, beam: int) -> list[Hypothesis]:
    """fairseq's search without drafts."""
    own = Search(rules, beam)
    while not own.ends:
        own.advance(verify)
    return own.finished


def ranked(
    finished: Sequence[Hypothesis], lenpen: float = 1.0, unnormalized: bool = False
) -> list[tuple[Hypothesis, float]]:
    """Hypotheses with fairseq's scores, the best first."""
    scores = [
        one.total if unnormalized else one.total / len(one.tokens) ** lenpen for one in finished
    ]
    return sorted(zip(finished, scores, strict=True), key=lambda pair: -pair[1])
