"""Acceptance rules: how much of a draft the verifier lets pass.

A rule says how many drafted tokens pass, and from that how many tokens of the pass are committed.
Rules are pure functions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class ExactMatch:
    """A drafted token is accepted if it is the verifier's own choice and so are all before it.

    The verifier's choice after the accepted part is right too, for what it saw is right; so a pass
    commits one token more than it accepts, if that position was scored. Sources: Xia et al. 2022,
    section 3 (GAD's verification); Santilli et al. 2023, section 3.2 (a Jacobi iterate is final up
    to the first disagreement).
    """

    @property
    def exact(self) -> bool:
        """Whether nothing but the verifier's own choices is accepted."""
        return type(self).accept is ExactMatch.accept

    def accept(self, draft: Tensor, choice: Tensor, log_probs: Tensor) -> Tensor:
        """Count the accepted tokens of each row.

        Args:
            draft: B×K drafted tokens, ``<pad>`` (which is never chosen) where a row drafts less.
            choice: B×R the verifier's choices at the same positions; R >= K.
            log_probs: B×R×V what it chose from; -inf where a token is forbidden.

        Returns:
            B: num_accepted, the length of the accepted start.
        """
        return _leading(draft.eq(choice[:, : draft.size(1)]))

    def commit(self, num_accepted: int, num_drafted: int, num_scored: int) -> int:
        """Return how many tokens of the scored positions are final."""
        return min(num_accepted + 1, num_scored)


class Unchanged(ExactMatch):
    """A block is committed whole, after a pass that changed none of its tokens.

    Source: Santilli et al. 2023, section 3.3, equation 5.
    """

    def commit(self, num_accepted: int, num_drafted: int, num_scored: int) -> int:
        """Return ``num_scored`` if every guess was predicted again, else 0."""
        return num_scored if num_accepted == num_drafted else 0


class Unverified(ExactMatch):
    """What a pass predicts is final at every position: nothing verifies it."""

    def commit(self, num_accepted: int, num_drafted: int, num_scored: int) -> int:
        """Return ``num_scored``."""
        return num_scored


class TopKMargin(ExactMatch):
    """A drafted token is accepted if it is among the verifier's best, and not far from the best.

    Sources: Xia et al. 2022, section 4: among the top beta (equation 6), and at most tau below the
    top-1 in log-probability (equation 7); Stern et al. 2018, section 5.1: the former alone. A token
    that ties with the beta-th is among them.

    Args:
        topk: beta; fewer than beta tokens may score strictly higher.
        margin: tau, natural log.
    """

    def __init__(self, topk: int, margin: float = math.inf) -> None:
        self.topk = topk
        self.margin = margin

    def accept(self, draft: Tensor, choice: Tensor, log_probs: Tensor) -> Tensor:
        """Count the accepted tokens of each row; see ExactMatch."""
        scores = log_probs[:, : draft.size(1)]  # B×K×V
        drafted = scores.gather(2, draft[:, :, None])  # B×K×1
        higher = scores.gt(drafted).sum(dim=2)
        best = scores.gather(2, choice[:, : draft.size(1), None])
        near = (best - drafted).squeeze(2) <= self.margin
        allowed = drafted.squeeze(2) > -math.inf
        return _leading((higher < self.topk) & near & allowed)


class Distance(ExactMatch):
    """A drafted number is accepted if it is near the verifier's own choice.

    Source: Stern et al. 2018, section 5.2, with d(u, v) = |u - v|.

    Args:
        limit: epsilon; the distance that still passes.
        numbers: V, the number that each token stands for; NaN if none: it must be chosen itself.
    """

    def __init__(self, limit: int, numbers: Tensor) -> None:
        self.limit = limit
        self.numbers = numbers

    def accept(self, draft: Tensor, choice: Tensor, log_probs: Tensor) -> Tensor:
        """Count the accepted tokens of each row; see ExactMatch."""
        choice = choice[:, : draft.size(1)]
        near = (self.numbers[draft] - self.numbers[choice]).abs() <= self.limit
        allowed = log_probs[:, : draft.size(1)].gather(2, draft[:, :, None]).squeeze(2) > -math.inf
        return _leading(draft.eq(choice) | (near & allowed))


class AtLeast(ExactMatch):
    """So many drafted tokens are accepted whatever the verifier says, and more by another rule.

    Source: Stern et al. 2018, section 5.3: a minimum block size of l, one token of which is the
    verifier's own.

    Args:
        rule: the other rule.
        least: l - 1; a shorter draft is accepted whole.
        pad: what fills up drafts.
    """

    def __init__(self, rule: ExactMatch, least: int, pad: int) -> None:
        self.rule = rule
        self.least = least
        self.pad = pad

    def accept(self, draft: Tensor, choice: Tensor, log_probs: Tensor) -> Tensor:
        """Count the accepted tokens of each row; see ExactMatch."""
        forced = draft[:, : self.least].ne(self.pad).sum(dim=1)
        return self.rule.accept(draft, choice, log_probs).maximum(forced)


def _leading(passes: Tensor) -> Tensor:
    """Count the True values before the first False: B×K -> B."""
    return passes.to(torch.long).cumprod(dim=1).sum(dim=1)
