"""Acceptance rules: how much of a draft the verifier lets pass.

A rule says how many drafted tokens agree with the verifier, and from that how many tokens of the
pass are committed. Rules are pure functions.
"""

from __future__ import annotations

from torch import Tensor


class ExactMatch:
    """A drafted token is accepted if it is the verifier's own choice and so are all before it.

    The verifier's choice after the accepted part is right too, for what it saw is right; so a pass
    commits one token more than it accepts, if the chunk has a row for it. Sources: Xia et al. 2022,
    section 3 (GAD's verification); Santilli et al. 2023, section 3.2 (a Jacobi iterate is final up
    to the first disagreement).
    """

    def accept(self, draft: Tensor, choice: Tensor) -> Tensor:
        """Count the accepted tokens of each row.

        Args:
            draft: B×K drafted tokens, ``<pad>`` (which is never chosen) where a row drafts less.
            choice: B×R the verifier's choices at the same positions; R >= K.

        Returns:
            B: num_accepted, the length of the agreeing start.
        """
        agree = draft.eq(choice[:, : draft.size(1)])
        return agree.long().cumprod(dim=1).sum(dim=1)

    def commit(self, num_accepted: int, num_drafted: int, rows: int) -> int:
        """Return how many of a chunk's ``rows`` predictions are final."""
        return min(num_accepted + 1, rows)


class Unchanged(ExactMatch):
    """A block is committed whole, after a pass that changed none of its tokens.

    Source: Santilli et al. 2023, section 3.3, equation 5.
    """

    def commit(self, num_accepted: int, num_drafted: int, rows: int) -> int:
        """Return ``rows`` if every guess was predicted again, else 0."""
        return rows if num_accepted == num_drafted else 0
