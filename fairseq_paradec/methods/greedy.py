"""Greedy search, one token per pass: the baseline of the other methods, on the same scorer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..decoding.loop import Drafter, Proposal, no_draft
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from .base import ParallelGenerator


class GreedyDrafter(Drafter):
    """Drafts no tokens, so each pass commits the verifier's own next token."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose no tokens."""
        return no_draft(len(rows))


class GreedyGenerator(ParallelGenerator):
    """``--decoding greedy``: fairseq's ``--beam 1`` on this package's scorer."""

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> GreedyDrafter:
        """Return a drafter that drafts no tokens."""
        return GreedyDrafter()
