"""What drafters share: how long a row's block is, and drafting from a model's scores."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UsageError
from .loop import Drafter, Proposal, Verdict, no_draft
from .row import Row
from .token_rules import TokenRules


class BlockSizes:
    """How many tokens may be drafted for each row of a batch.

    Fixed, it is always ``most``. Adaptive, it is ``most`` at first, and then one token more than
    the row's last pass wrote. A pass writes what it accepts and the verifier's own token, so a
    block that was accepted whole grows by two, as in Hugging Face's assisted generation (Gante
    2023, ``num_assistant_tokens_schedule="heuristic"``), and one that was not shrinks at once,
    where that shrinks by one.

    Args:
        most: the longest block.
        num_rows: B.
        adaptive: whether blocks adapt (``--adaptive-block``).
    """

    def __init__(self, most: int, num_rows: int, adaptive: bool) -> None:
        self.most = most
        self.adaptive = adaptive
        self.sizes = [most] * num_rows

    def __getitem__(self, b: int) -> int:
        return self.sizes[b]

    def observe(self, num_accepted: Sequence[int]) -> None:
        """Adapt to what a pass accepted that drafted something for each row."""
        if self.adaptive:
            self.sizes = [min(self.most, count + 2) for count in num_accepted]

    def drop(self, stay: Sequence[int]) -> None:
        """Keep these rows only."""
        self.sizes = [self.sizes[b] for b in stay]


class ScoredDrafter(Drafter):
    """Drafts the token that a model finds best at each of the next positions.

    Args:
        rules: what may stand at a position.
        sizes: how many tokens may be drafted for each row.
    """

    def __init__(self, rules: TokenRules, sizes: BlockSizes) -> None:
        self.rules = rules
        self.sizes = sizes

    @abc.abstractmethod
    def scores(self, rows: Sequence[Row], count: int, whole: bool) -> Tensor:
        """Score the tokens at the next positions.

        Args:
            rows: B rows.
            count: K, how many positions are of use.
            whole: whether all tokens are wanted, or a shortlist's will do.

        Returns:
            B×K×V, free to be written to; need not be normalised.
        """

    @abc.abstractmethod
    def nan_error(self) -> UsageError:
        """Return the error for a model whose scores are not numbers."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Draft as far as tokens are of use: up to a row's block, its limit and ``</s>``."""
        # At a row's last position only </s> may come, which need not be drafted.
        counts = [min(row.room - 1, self.sizes[b]) for b, row in enumerate(rows)]
        if max(counts) == 0:
            return no_draft(len(rows))
        # A forced token need not be in the shortlist.
        scores = self.scores(rows, max(counts), whole=self.rules.forced_len > 0)
        best, tokens = self.rules.choose(scores, rows)  # B×K each
        if bool(torch.isnan(best).any()):
            raise self.nan_error()
        drafts = []
        for draft, count in zip(tokens.tolist(), counts, strict=True):
            draft = draft[:count]
            eos = self.rules.eos
            drafts.append(draft[: draft.index(eos) + 1] if eos in draft else draft)
        # One more position is scored than drafted, for the bonus token; none follows </s>.
        return Proposal(drafts, [len(d) + (not d or d[-1] != self.rules.eos) for d in drafts])

    def observe(self, verdict: Verdict) -> None:
        """Adapt the blocks."""
        self.sizes.observe(verdict.num_accepted)

    def drop(self, stay: Sequence[int]) -> None:
        """Keep the blocks of these rows."""
        self.sizes.drop(stay)
