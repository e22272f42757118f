"""Acceptance rules: how many tokens of a draft the verifier accepts.

A rule counts the accepted tokens of a draft, and from that the tokens that a pass commits.
Rules are pure functions.
"""

import math
from typing import Any

import numpy as np

from ..errors import needs
from ..token_rules import Scored


class ExactMatch:
    """A drafted token is accepted if it and all before it equal the verifier's choices.

    The verifier's choice after the accepted tokens is final too, because its input is final. So a
    pass commits one token more than it accepts, if that position is scored. Sources: Xia et al.
    2022, section 3 (GAD's verification); Santilli et al. 2023, section 3.2 (a Jacobi iterate is
    final up to the first disagreement).
    """

    @property
    def exact(self) -> bool:
        """Whether the rule accepts the verifier's own choices only."""
        own = type(self)
        return own.accept is ExactMatch.accept and own.passes is ExactMatch.passes

    @property
    def known_to_library(self) -> bool:
        """Whether the native loop has this rule."""
        return type(self) in (ExactMatch, Unchanged)

    def passes(self, draft: np.ndarray, scored: Scored) -> np.ndarray:
        """Return which tokens pass by themselves, whatever is before them, B×K; see ``accept``."""
        return _equal(draft, scored)

    def accept(self, draft: np.ndarray, scored: Scored) -> np.ndarray:
        """Count the accepted tokens of each row.

        Args:
            draft: B×K drafted tokens; ``<pad>``, which is never chosen, after a shorter draft.
            scored: the verifier's choices at the same positions, and its scores of the draft.

        Returns:
            B: num_accepted, the number of accepted tokens.
        """
        return _leading(self.passes(draft, scored))

    def commit(self, num_accepted: int, num_drafted: int, num_scored: int) -> int:
        """Return the number of scored positions whose tokens are final."""
        return min(num_accepted + 1, num_scored)


class Unchanged(ExactMatch):
    """A whole block is committed, after a pass that changes none of its tokens.

    Source: Santilli et al. 2023, section 3.3, equation 5.
    """

    def commit(self, num_accepted: int, num_drafted: int, num_scored: int) -> int:
        """Return ``num_scored`` if the pass predicts every drafted token again, else 0."""
        return num_scored if num_accepted == num_drafted else 0


class Unverified(ExactMatch):
    """Every prediction of a pass is final; no later pass verifies it."""

    def commit(self, num_accepted: int, num_drafted: int, num_scored: int) -> int:
        """Return ``num_scored``."""
        return num_scored


class TopKMargin(ExactMatch):
    """A drafted token is accepted if it is in the verifier's top k and close to the top 1.

    Sources: Xia et al. 2022, section 4: among the top beta (equation 6), and at most tau below the
    top-1 in log-probability (equation 7); Stern et al. 2018, section 5.1: top k only. A token
    that ties with the beta-th is in the top beta.

    Args:
        topk: beta; fewer than beta tokens may score strictly higher.
        margin: tau, natural log.
    """

    def __init__(self, topk: int, margin: float = math.inf) -> None:
        self.topk = topk
        self.margin = margin

    def passes(self, draft: np.ndarray, scored: Scored) -> np.ndarray:
        """Return which tokens pass by themselves; see ExactMatch."""
        drafted, higher = scored.draft_scores, scored.draft_ranks
        assert drafted is not None and higher is not None
        with np.errstate(invalid="ignore"):  # -inf less itself
            near = scored.scores[:, : draft.shape[1]] - drafted <= self.margin
        return (higher < self.topk) & near & (drafted > -math.inf)


class Distance(ExactMatch):
    """A drafted number is accepted if it is close to the verifier's own choice.

    Source: Stern et al. 2018, section 5.2, with d(u, v) = |u - v|.

    Args:
        limit: epsilon, the largest accepted distance.
        numbers: V, the number of each token; NaN for a token that is no number, which is accepted
            only if it equals the verifier's choice.
    """

    def __init__(self, limit: int, numbers: np.ndarray) -> None:
        self.limit = limit
        self.numbers = numbers

    def passes(self, draft: np.ndarray, scored: Scored) -> np.ndarray:
        """Return which tokens pass by themselves; see ExactMatch."""
        choice = scored.tokens[:, : draft.shape[1]]
        near = np.abs(self.numbers[draft] - self.numbers[choice]) <= self.limit
        assert scored.draft_scores is not None
        return _equal(draft, scored) | (near & (scored.draft_scores > -math.inf))


class AtLeast(ExactMatch):
    """The first tokens of a draft are always accepted, and more by another rule.

    Source: Stern et al. 2018, section 5.3: a minimum block size of l, one token of which is the
    verifier's own.

    Args:
        rule: the other rule.
        least: l - 1, the number of tokens that are always accepted.
        pad: the token that fills up shorter drafts.
    """

    def __init__(self, rule: ExactMatch, least: int, pad: int) -> None:
        self.rule = rule
        self.least = least
        self.pad = pad

    def accept(self, draft: np.ndarray, scored: Scored) -> np.ndarray:
        """Count the accepted tokens of each row; see ExactMatch."""
        forced = (draft[:, : self.least] != self.pad).sum(axis=1)
        return np.maximum(self.rule.accept(draft, scored), forced)


def numbers_of(words: Any, limit: int) -> np.ndarray:
    """Return the number of each token of a dictionary, V; NaN for special symbols; see Distance.

    Raises:
        UsageError: the dictionary has words that are no whole numbers.
    """
    special = words.nspecial
    fillers = [word.startswith("madeupword") for word in words.symbols]  # fairseq-preprocess's
    values = [float("nan")] * len(words)
    for token in range(special, len(words)):
        if fillers[token]:
            continue
        if not words[token].isdecimal():
            raise needs(
                "--accept-distance",
                limit,
                f"a dictionary of whole numbers; {words[token]!r} has no distance",
            )
        values[token] = float(words[token])
    return np.array(values)  # whole numbers up to 2^53 are exact


def _equal(draft: np.ndarray, scored: Scored) -> np.ndarray:
    """Return which drafted tokens are the verifier's choices, B×K."""
    equal: np.ndarray = draft == scored.tokens[:, : draft.shape[1]]
    return equal


def _leading(passes: np.ndarray) -> np.ndarray:
    """Count the True values before the first False: B×K -> B."""
    counts: np.ndarray = np.logical_and.accumulate(passes, axis=1).sum(axis=1)
    return counts
