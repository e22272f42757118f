"""Beam search by pairs of words, in loops over lists. Slow.

Imamura and Sumita 2020, Algorithm 1. There is no cache: in every step the decoder reads all that
was written. EOD is `</s>`.
"""

import math
from collections.abc import Callable, Sequence

from fairseq_paradec.target_order import TargetOrder

from .greedy import Rules
from .multiword_beam import Ask, Hypothesis, Step


def double_top_k(
    live: Sequence[Hypothesis], tables: Sequence[list[list[float]]], eod: int, width: int
) -> list[Hypothesis]:
    """DOUBLETOPK: the best 2W left words of the whole beam, then the best 3W pairs with them."""
    lefts = []
    for hypothesis, (left, right) in zip(live, tables, strict=True):
        for word, score in enumerate(left):
            if score > -math.inf:
                lefts.append((hypothesis.with_word(word, score), right))
    lefts.sort(key=lambda pair: -pair[0].total)
    pairs = []
    for hypothesis, right in lefts[: 2 * width]:
        for word, score in enumerate(right):
            if hypothesis.slots[-1] == eod and word != eod:
                continue  # no end on the left alone
            if score > -math.inf:
                pairs.append(hypothesis.with_word(word, score))
    pairs.sort(key=lambda hypothesis: -hypothesis.total)
    return pairs[: 3 * width]


def search(
    ask: Ask,
    spec: TargetOrder,
    rules: Rules,
    width: int,
    rank: Callable[[float, int], float],
    steps: list[Step] | None = None,
) -> list[Hypothesis]:
    """What one sentence's search finishes (FINALIZE), of one step the best that are wanted.

    With a list of `steps`, which it fills, it searches to the limit and returns all that is
    finished.
    """

    def value(one: Hypothesis) -> float:
        return rank(one.total, one.slots.index(rules.eos) + 1)

    live, finished, t = [Hypothesis()], [], 0
    while live and (steps is not None or len(finished) < width) and t <= rules.max_len:
        tables = ask([hypothesis.slots for hypothesis in live])
        pairs = double_top_k(live, tables, rules.eos, width)
        live, new = [], []
        for place, hypothesis in enumerate(pairs):
            if rules.eos in hypothesis.slots[-2:]:
                if place < width:
                    new.append(hypothesis)
            elif len(live) < width:
                live.append(hypothesis)
        new.sort(key=lambda one: -value(one))
        finished += new if steps is not None else new[: width - len(finished)]
        t += 2
        if steps is not None:
            ranks = sorted(map(value, finished), reverse=True)
            steps.append(Step(t, [one.total for one in live], ranks))
    return finished
