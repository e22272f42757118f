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

from .greedy import Rules
from .target_order import Spec, average, log_probs, read, start

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
    models: Sequence[Any], spec: Spec, source: Sequence[int], rules: Rules, bos: int = 0
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
                rows = [rules.apply(scores[b, t + i], t + i) for i in range(spec.z)]
                known[slots] = [row.tolist() for row in rows]
        return [known[slots] for slots in hypotheses]

    return ask


def best(candidates: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The `count` best ones that are possible at all, the best one first."""
    possible = [hypothesis for hypothesis in candidates if hypothesis.total > -math.inf]
    return sorted(possible, key=lambda hypothesis: -hypothesis.total)[:count]


def all_tuples(
    hypothesis: Hypothesis, table: list[list[float]], eos: int, beam: int
) -> list[tuple[list[Hypothesis], list[Hypothesis]]]:
    """For each slot i: every w_0..w_i with `</s>` as w_i, and every one without any `</s>`."""
    found = []
    for i in range(len(table)):
        ended, longer = [], []
        allowed = [[w for w, score in enumerate(row) if score > -math.inf] for row in table]
        for words in itertools.product(*allowed[: i + 1]):
            if eos in words[:i]:
                continue
            grown = hypothesis
            for slot, word in enumerate(words):
                grown = grown.with_word(word, table[slot][word])
            (ended if words[i] == eos else longer).append(grown)
        found.append((ended, longer))
    return found


def outer_addition(
    hypothesis: Hypothesis, table: list[list[float]], eos: int, beam: int
) -> list[tuple[list[Hypothesis], list[Hypothesis]]]:
    """The same, but for each slot the best B of a hypothesis go on (lines 6 to 8)."""
    found, kept = [], [hypothesis]
    for row in table:
        ended = [one.with_word(eos, row[eos]) for one in kept]
        grown = [
            one.with_word(word, score)
            for one in kept
            for word, score in enumerate(row)
            if word != eos and score > -math.inf
        ]
        kept = best(grown, beam)
        found.append((ended, kept))
    return found


def search(
    ask: Ask, spec: Spec, rules: Rules, beam: int, rank: Callable[[float, int], float]
) -> list[Hypothesis]:
    """What one sentence's search finishes: step by step, and of one step the best that are wanted.

    A hypothesis' `rank` is its score from the sum of its log-probabilities and its length.
    """
    live, finished, t = [Hypothesis()], [], 0
    while live and len(finished) < beam and t <= rules.max_len:
        tables = ask([hypothesis.slots for hypothesis in live])
        grown = [
            outer_addition(hypothesis, table, rules.eos, beam)
            for hypothesis, table in zip(live, tables, strict=True)
        ]
        new = []
        for i in range(spec.z):
            candidates = [one for parts in grown for one in (*parts[i][0], *parts[i][1])]
            new += [one for one in best(candidates, beam) if one.slots[-1] == rules.eos]
        if beam == 1:
            del new[1:]  # greedy search: nothing goes on behind a best word that is `</s>`
        new.sort(key=lambda one: -rank(one.total, len(one.slots)))
        finished += new[: beam - len(finished)]
        live = best([one for parts in grown for one in parts[-1][1]], beam)
        t += spec.z
    return finished


def outputs(
    finished: Sequence[Hypothesis], spec: Spec, eos: int, rank: Callable[[float, int], float]
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


def every_output(ask: Ask, spec: Spec, rules: Rules) -> list[Hypothesis]:
    """All outputs that the limits allow, with their log-probabilities: no search at all."""
    found, live = [], [Hypothesis()]
    while live:
        longer = []
        for hypothesis, table in zip(live, ask([one.slots for one in live]), strict=True):
            grown = all_tuples(hypothesis, table, rules.eos, 0)
            found += [one for ended, _ in grown for one in best(ended, len(ended))]
            longer += best(grown[-1][1], len(grown[-1][1]))
        live = longer
    return found
