"""The decoding dependency graph of one sentence, written like the paper's Algorithms 1 and 2. Slow.

Santilli et al. (ACL 2023), section 3.5 and Figure 4: after each Jacobi iteration, which tokens are
those of greedy search, and with what probability. Every iteration predicts the whole block from the
iterate before it with a full forward pass, whatever is known to be final already.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from fairseq.models.transformer import TransformerModelBase

from .greedy import Rules, full_log_probs

#: Of a prediction: its log-probability, and the runner-up.
Told = tuple[float, int | None]


class Graph(NamedTuple):
    """Of each of greedy's tokens, ``</s>`` included: the number of the iteration from which on it
    was right in every one, its log-probability in that one, and the second best token there."""

    tokens: list[int]
    final_pass: list[int]
    log_probs: list[float]
    runner_up: list[int | None]


def dependency_graph(
    models: Sequence[TransformerModelBase],
    source: Sequence[int],
    rules: Rules,
    length: str | int,
    stop: str = "unchanged",
) -> Graph:
    """Iterate and look when each of greedy's tokens came to stay.

    Args:
        source: source tokens, `</s>` included.
        length: of a block. `oracle`: greedy's output's. `grow`: the source's; then, as long as
            `</s>` is missing, what has been covered is doubled, and the new part iterated. A
            number: Algorithm 2, one block of that length after the other.
        stop: `unchanged`: a block is left after an iteration that changed nothing (equation 5);
            `prefix`: after one that changed nothing before its last position. That one was then
            predicted from final tokens alone, so that another iteration would change nothing.
    """
    models, source = tuple(models), tuple(source)
    y: tuple[int, ...] = ()
    while y[-1:] != (rules.eos,):  # equation 3: one token after the other
        y += _iterate(models, source, rules, (*y, rules.pad))[0][-1:]
    tokens = list(y)
    first = {"oracle": len(tokens), "grow": len(source)}
    ends = [length if isinstance(length, int) else first[length]]
    while ends[-1] < len(tokens):
        more = length if isinstance(length, int) else ends[-1]
        ends.append(min(ends[-1] + more, rules.max_len + 1))
    iterates: list[tuple[int, ...]] = []
    scores: list[list[Told]] = []
    y = ()
    for end in ends:
        most = end - len(y)  # Algorithms 1 and 2 end here at the latest
        y += (rules.pad,) * most  # INITT
        for _ in range(most):
            old, (y, told) = y, _iterate(models, source, rules, y)
            iterates.append(y)
            scores.append(told)
            if y == old or (stop == "prefix" and y[:-1] == old[:-1]):
                break
    finals = [
        1 + max((n for n, y in enumerate(iterates, 1) if y[i : i + 1] != (token,)), default=0)
        for i, token in enumerate(tokens)
    ]
    told_then = [scores[final - 1][i] for i, final in enumerate(finals)]
    return Graph(tokens, finals, [one[0] for one in told_then], [one[1] for one in told_then])


# The same question has the same answer: remembering it only saves time.
@functools.cache
def _iterate(
    models: tuple[TransformerModelBase, ...],
    source: tuple[int, ...],
    rules: Rules,
    y: tuple[int, ...],
) -> tuple[tuple[int, ...], list[Told]]:
    """Equation 4: each position anew, from the old ones before it; and what is told of each."""
    log_probs = full_log_probs(models, source, y[:-1], rules.temperature, start=rules.eos)
    allowed = [rules.apply(row, i) for i, row in enumerate(log_probs)]
    new = tuple(int(row.argmax()) for row in allowed)
    told: list[Told] = []
    for token, row in zip(new, allowed, strict=True):
        log_prob = float(row[token])
        row[token] = -math.inf
        told.append((log_prob, int(row.argmax()) if float(row.max()) > -math.inf else None))
    return new, told
