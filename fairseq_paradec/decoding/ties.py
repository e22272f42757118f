"""Ties: whether an output differs from greedy search's by rounding only, by the scores of both."""

import math

from ..row import Row

# If the log-probabilities of two tokens differ by less than this, another order of floating-point
# sums may swap them. An output that first differs there differs by a tie.
TIE_GAP = 1e-4

# Largest differences of log-probabilities (natural log) that rounding to these dtypes causes.
_COARSE_GAP = {"fp16": 0.02, "bf16": 0.15, "int8": 0.15}


def tie_gap(dtype: str) -> float:
    """Return the difference of log-probabilities below which two tokens of passes in it tie."""
    return _COARSE_GAP.get(dtype, TIE_GAP)


def gap(ours: Row, other: Row) -> float:
    """Return the difference of scores at the first token that differs; inf if it is no tie.

    The probabilities of two tokens of one distribution sum to at most 1. If they exceed that, the
    scores come from different distributions, and one of the outputs is wrong.
    """
    pairs = zip(ours.tokens, other.tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return math.inf
    apart = abs(ours.scores[at] - other.scores[at])
    both = math.exp(ours.scores[at]) + math.exp(other.scores[at])
    return apart if both <= 1 + apart else math.inf


def score_gap(ours: Row, other: Row) -> float:
    """Return how far the log-probabilities of two beam searches' outputs are apart, a token."""
    our_score, other_score = (sum(row.scores) / len(row.scores) for row in (ours, other))
    return abs(our_score - other_score)
