"""Beam search by steps of z words, in loops over lists. Slow.

Zhang et al. 2020, Algorithm 1, with what it leaves open as in fairseq's search: a hypothesis ends
at its first `</s>`, and is finished if it ranks among the best B of all candidates of as many
words. There is no cache: in every step the decoder reads all that was written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fairseq_paradec.target_order import TargetOrder

from .greedy import Rules
from .target_order import average, log_probs, read, start

Slots = tuple[int, ...]

#: Hypotheses of equally many slots -> of each, the scores of the next z slots' words, z×V.
Ask = Callable[[Sequence[Slots]], list[list[list[float]]]]


@dataclass(frozen=True)
class Hypothesis:
    """Words slot by slot, with `</s>` if it is finished, and their log-probabilities."""

    slots: Slots = ()
    scores: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """The sum of the log-probabilities."""
        return sum(self.scores)

    def with_word(self, word: int, score: float) -> Hypothesis:
        """The hypothesis longer by a word."""
        return Hypothesis((*self.slots, word), (*self.scores, score))


@dataclass(frozen=True)
class Output:
    """A finished hypothesis in natural order, `</s>` last."""

    tokens: list[int]
    scores: list[float]
    score: float


def asker(
    models: Sequence[Any], spec: TargetOrder, source: Sequence[int], rules: Rules, bos: int = 0
) -> Ask:
    """The models' full forward over all slots, and the rules slot by slot."""
    known: dict[Slots, list[list[float]]] = {}

    def ask(hypotheses: Sequence[Slots]) -> list[list[list[float]]]:
        new = [slots for slots in hypotheses if slots not in known]
        if new:  # the same question has the same answer: only saves time
            inputs = [[*start(spec, bos, rules.eos), *slots] for slots in new]
            with torch.no_grad():
                parts = [log_probs(m, spec, source, inputs, rules.temperature) for m in models]
            scores = parts[0] if len(parts) == 1 else average(parts)
            for b, slots in enumerate(new):
                t = len(slots)
                rows = [
                    rules.apply(scores[b, t + i], t + i, None) for i in range(spec.tokens_per_step)
                ]
                known[slots] = [row.tolist() for row in rows]
        return [known[slots] for slots in hypotheses]

    return ask


def best(candidates: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The `count` best ones that are possible at all, the best one first."""
    possible = [hypothesis for hypothesis in candidates if hypothesis.total > -math.inf]
    return sorted(possible, key=lambda hypothesis: -hypothesis.total)[:count]


def outer_addition(
    hypothesis: Hypothesis, table: list[list[float]], eos: int, beam: int
) -> list[tuple[list[Hypothesis], list[Hypothesis]]]:
    """For each slot: what ends there, and the best B of a hypothesis, which go on (lines 6-8)."""
    found, kept = [], [hypothesis]
    for row in table:
        ended = [one.with_word(eos, row[eos]) for one in kept]
        grown = [
            (total + score, one, word, score)
            for one, total in [(one, one.total) for one in kept]
            for word, score in enumerate(row)
            if word != eos and total + score > -math.inf
        ]
        grown.sort(key=lambda candidate: -candidate[0])
        kept = [one.with_word(word, score) for _, one, word, score in grown[:beam]]
        found.append((ended, kept))
    return found


@dataclass(frozen=True)
class Step:
    """What a search has after a step."""

    written: int  # slots of each live hypothesis
    live: list[float]  # their totals
    ranks: list[float]  # of all that is finished, the best one first


def settled(step: Step, beam: int, most: int, rank: Callable[[float, int], float]) -> bool:
    """Whether no live hypothesis can get among the best `beam`, of any length up to `most`."""
    lengths = range(step.written + 1, most + 1)
    reach = [rank(total, length) for total in step.live for length in lengths]
    return len(step.ranks) >= beam and max(reach, default=-math.inf) <= step.ranks[beam - 1]


def search(
    ask: Ask,
    spec: TargetOrder,
    rules: Rules,
    beam: int,
    rank: Callable[[float, int], float],
    steps: list[Step] | None = None,
) -> list[Hypothesis]:
    """What one sentence's search finishes: step by step, and of one step the best that are wanted.

    A hypothesis' `rank` is its score from the sum of its log-probabilities and its length. With a
    list of `steps`, which it fills, it searches to the limit and returns all that is finished.
    """
    live, finished, t = [Hypothesis()], [], 0
    while live and (steps is not None or len(finished) < beam) and t <= rules.max_len:
        tables = ask([hypothesis.slots for hypothesis in live])
        grown = [
            outer_addition(hypothesis, table, rules.eos, beam)
            for hypothesis, table in zip(live, tables, strict=True)
        ]
        new = []
        for i in range(spec.tokens_per_step):
            candidates = [one for parts in grown for one in (*parts[i][0], *parts[i][1])]
            new += [one for one in best(candidates, beam) if one.slots[-1] == rules.eos]
        if beam == 1:
            del new[1:]  # greedy search: nothing goes on behind a best word that is `</s>`
        new.sort(key=lambda one: -rank(one.total, len(one.slots)))
        finished += new if steps is not None else new[: beam - len(finished)]
        live = best([one for parts in grown for one in parts[-1][1]], beam)
        if beam == 1 and finished:
            live = []
        t += spec.tokens_per_step
        if steps is not None:
            ranks = sorted((rank(one.total, len(one.slots)) for one in finished), reverse=True)
            steps.append(Step(t, [one.total for one in live], ranks))
    return finished


def outputs(
    finished: Sequence[Hypothesis], spec: TargetOrder, eos: int, rank: Callable[[float, int], float]
) -> list[Output]:
    """Finished hypotheses in natural order, with one `</s>`, the best one first."""
    found = []
    for hypothesis in finished:
        n = hypothesis.slots.index(eos)
        ends = 2 - n % 2 if spec.double_token else 1
        assert hypothesis.slots[n:] == (eos,) * ends
        score = rank(hypothesis.total, n + 1)
        words, scores = read(spec, hypothesis.slots[:n]), read(spec, hypothesis.scores[:n])
        found.append(Output([*words, eos], [*scores, sum(hypothesis.scores[n:])], score))
    return sorted(found, key=lambda output: -output.score)


def every_output(ask: Ask, spec: TargetOrder, rules: Rules) -> list[Hypothesis]:
    """All outputs that the limits allow, with their log-probabilities: no search at all."""
    found: dict[Slots, Hypothesis] = {}
    live, eos = [Hypothesis()], rules.eos
    while live:
        longer = []
        for hypothesis, table in zip(live, ask([one.slots for one in live]), strict=True):
            for words in itertools.product(range(len(table[0])), repeat=spec.tokens_per_step):
                if spec.double_token and words[0] == eos != words[1]:
                    continue  # no end on the left alone
                if eos in words and not spec.double_token:
                    words = words[: words.index(eos) + 1]
                grown = hypothesis
                for word, row in zip(words, table, strict=False):
                    grown = grown.with_word(word, row[word])
                if grown.total > -math.inf and eos in words:
                    found[grown.slots] = grown
                elif grown.total > -math.inf:
                    longer.append(grown)
        live = longer
    return list(found.values())
