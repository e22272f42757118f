"""Greedy search, one token per pass: the baseline of the other methods, on the same scorer."""

from collections.abc import Sequence

from ..batch import Numbers
from ..decoding.acceptance import ExactMatch
from ..decoding.loop import Drafter, Proposal, Verifier, draft_and_verify, no_draft
from ..engine.native.drafts import NativeDrafting
from ..engine.native.library import Drafted, DraftedBy
from ..row import Row
from ..token_rules import TokenRules
from .base import ParallelDecoder


class GreedyDrafter(Drafter):
    """Drafts no tokens, so each pass commits the verifier's own next token."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose no tokens."""
        return no_draft(len(rows))

    def natively(self) -> NativeDrafting:
        """Describe the drafter to the native loop."""
        return NativeDrafting(Drafted(by=DraftedBy.NOTHING))


def greedy_lengths(scorer: Verifier, rows: Sequence[Row], rules: TokenRules) -> list[int]:
    """Return the lengths of greedy search's outputs, with ``</s>``; the scorer has encoded."""
    twins = [row.fresh() for row in rows]
    draft_and_verify(scorer, twins, GreedyDrafter(), ExactMatch(), rules)
    return [len(twin.tokens) for twin in twins]


class GreedyDecoder(ParallelDecoder):
    """``--decoding greedy``: fairseq's ``--beam 1`` on this package's scorer."""

    def make_drafter(
        self, rows: Sequence[Row], source: Numbers, rules: TokenRules
    ) -> GreedyDrafter:
        """Return a drafter that drafts no tokens."""
        return GreedyDrafter()
