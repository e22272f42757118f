"""The decoding dependency graph of one sentence, written like the paper's Algorithms 1 and 2. Slow.

Santilli et al. (ACL 2023), section 3.5 and Figure 4: after each Jacobi iteration, which tokens are
those of greedy search, and with what probability. Each iterate is kept, whatever of it is final.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from fairseq.models.transformer import TransformerModelBase

from .greedy import Rules, full_log_probs
from .jacobi import Sentence, hybrid, parallel_jacobi

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
        length: of a block. `oracle` or `grow`: Algorithm 1's. A number: Algorithm 2, one block of
            that length after the other.
        stop: when a block is left.
    """
    iterates: list[tuple[int, ...]] = []
    scores: list[list[Told]] = []

    def predict(guesses: Sequence[int]) -> list[int]:
        new, told = _iterate(tuple(models), tuple(source), rules, tuple(guesses))
        iterates.append(new)
        scores.append(told)
        return list(new)

    x = Sentence(predict, tuple(source), rules.max_len, rules.eos, rules.pad)
    if isinstance(length, int):
        result = hybrid(x, length, stop=stop)
    else:
        result = parallel_jacobi(x, stop=stop, length=length)
    first = len(iterates) - result.num_passes  # before these greedy told the oracle's length
    iterates, scores = iterates[first:], scores[first:]
    finals = [
        1 + max((n for n, y in enumerate(iterates, 1) if y[i : i + 1] != (token,)), default=0)
        for i, token in enumerate(result.tokens)
    ]
    told_then = [scores[final - 1][i] for i, final in enumerate(finals)]
    return Graph(result.tokens, finals, *(list(one) for one in zip(*told_then, strict=True)))


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
    allowed = [rules.apply(row, i, y[:i]) for i, row in enumerate(log_probs)]
    new = tuple(int(row.argmax()) for row in allowed)
    told: list[Told] = []
    for token, row in zip(new, allowed, strict=True):
        log_prob = float(row[token])
        row[token] = -math.inf
        told.append((log_prob, int(row.argmax()) if float(row.max()) > -math.inf else None))
    return new, told
