"""Greedy search, one token per pass: the baseline of the other methods, on the same scorer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..decoding.acceptance import ExactMatch
from ..decoding.loop import Drafter, Proposal, Verifier, draft_and_verify, no_draft
from ..decoding.writing import write
from ..engine.chunk import ChunkScorer
from ..records import PassRecord
from ..row import Row
from ..token_rules import TokenRules
from .base import ParallelDecoder

#: Tokens of a row that the library writes in one call, and where somebody waits for single rows.
AT_ONCE, SOON = 32, 8


class GreedyDrafter(Drafter):
    """Drafts no tokens, so each pass commits the verifier's own next token."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose no tokens."""
        return no_draft(len(rows))


def greedy_lengths(scorer: Verifier, rows: Sequence[Row], rules: TokenRules) -> list[int]:
    """Return the lengths of greedy search's outputs, with ``</s>``; the scorer has encoded."""
    twins = [row.fresh() for row in rows]
    draft_and_verify(scorer, twins, GreedyDrafter(), ExactMatch(), rules)
    return [len(twin.tokens) for twin in twins]


class GreedyDecoder(ParallelDecoder):
    """``--decoding greedy``: fairseq's ``--beam 1`` on this package's scorer."""

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> GreedyDrafter:
        """Return a drafter that drafts no tokens."""
        return GreedyDrafter()

    def _write(self, rows: Sequence[Row], rules: TokenRules, drafter: Drafter) -> None:
        """Write many tokens a call in the native library if it can; else run the loop."""
        scorer = self.scorer
        at_once = isinstance(scorer, ChunkScorer) and scorer.writes(scorer.projection)
        if at_once and not self.record_tokens and not any(row.given for row in rows):
            write_rows(scorer, rows, rules)
        else:
            super()._write(rows, rules, drafter)


def write_rows(scorer: Any, rows: Sequence[Row], rules: TokenRules) -> None:
    """Write all rows to their end, many tokens a call; see ``draft_and_verify``.

    Sentences that wait take the places of rows that have left.
    """
    more = rows[0].more
    live = list(rows)
    while live:
        most = AT_ONCE if all(row.end is None for row in live) else SOON
        counts = [min(row.room, most) for row in live]
        tokens, scores, _ = write(scorer, scorer.projection, rules, live, counts)
        for row, new, log_probs in zip(live, tokens, scores, strict=True):
            start = len(row.tokens)
            row.passes += [PassRecord(start + i, 0, 0, 1) for i in range(len(new))]
            row.commit(new, log_probs, rules.eos)
            row.tell_end()
        stay = [b for b, row in enumerate(live) if not row.finished]
        live = [live[b] for b in stay]
        if live or more is not None:
            scorer.reorder(stay)
        if more is not None and len(live) < len(rows):
            entering = more(len(rows) - len(live))
            if entering is not None:
                scorer.add(entering.net_input)
                live += entering.rows
