"""THE loop: propose a chunk of tokens, score it in one pass, accept a start of it, keep that much.

Every method of this package is this loop with its own drafter and acceptance rule. All rows of a
batch go on independently; a finished row leaves the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .acceptance import ExactMatch
from .adaptive import AdaptiveBlock
from .engine.chunk import Scorer
from .row import Row
from .token_rules import TokenRules
from .trace import PassDetails, PassRecord


class Proposal(NamedTuple):
    """What a drafter proposes for every row of the batch.

    Attributes:
        tokens: B lists of drafted tokens; a row may draft fewer than others, or none.
        rows: B, how many rows of the chunk count for each sentence. The first row predicts the next
            token; with n drafted tokens there may be n rows, or n+1 if the prediction after the
            last drafted token (the bonus token) is wanted too; and at least 1.
    """

    tokens: list[list[int]]
    rows: list[int]


class Drafter(Protocol):
    """A method's own part: what to guess, and what to learn from the verifier's answer."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Guess the tokens that follow each row's committed ones."""
        ...

    def observe(
        self, rows: Sequence[Row], choices: list[list[int]], num_accepted: list[int], hidden: Any
    ) -> None:
        """See the verifier's choices for the rows of the chunk that count.

        Args:
            rows: the same rows as in ``propose``, with this pass's tokens committed.
            choices: B lists of the verifier's own tokens, one per row of the chunk that counts.
            num_accepted: B, how many drafted tokens were accepted.
            hidden: what the scorer's ``step`` returned, B×R×D of one model.
        """
        ...


def proposal(drafts: list[list[int]], rows: Sequence[Row], eos: int) -> Proposal:
    """Propose drafts as far as they are of use, each with a row for the bonus token.

    What follows ``</s>`` is no use, nor is what has no room before a row's limit or in its block.
    After ``</s>`` there is no bonus token.

    Args:
        drafts: B lists.
        rows: the same rows as in ``propose``.
        eos: ``</s>``.
    """
    cut = []
    for draft, row in zip(drafts, rows, strict=True):
        draft = draft[: of_use(row, len(draft))]
        cut.append(draft[: draft.index(eos) + 1] if eos in draft else draft)
    return Proposal(cut, [len(d) + (not d or d[-1] != eos) for d in cut])


def of_use(row: Row, size: int) -> int:
    """Return how many of ``size`` drafted tokens have room in a row and in its block."""
    return min(row.room - 1, size if row.block is None else min(size, row.block))


@torch.inference_mode()
def draft_and_verify(
    scorer: Scorer,
    rows: Sequence[Row],
    drafter: Drafter,
    acceptance: ExactMatch,
    rules: TokenRules,
    record_tokens: bool = False,
    adaptive: AdaptiveBlock | None = None,
) -> None:
    """Decode all rows to their end; fills in their tokens, scores and pass records.

    Args:
        scorer: the verifier; ``encode`` has been called for these rows, in this order.
        rows: the sentences, nothing committed yet.
        drafter: proposes.
        acceptance: says how much of a proposal holds.
        rules: what may be chosen at a position (limits, forced tokens), and the first input.
        record_tokens: keep each pass's tokens and probabilities, for a trace.
        adaptive: says how many tokens may be drafted for a row; None: as many as the drafter likes.
    """
    for row in rows:
        row.block = None if adaptive is None else adaptive.first()
    live = list(rows)
    while live:
        # 1. Propose: B lists of tokens to follow the committed ones.
        proposal = drafter.propose(live)
        width = max(proposal.rows)
        # 2. Score: the chunk is the last committed token and the draft, B×R.
        last = [row.tokens[-1] if row.tokens else rules.start for row in live]
        inputs = [[t, *draft][:width] for t, draft in zip(last, proposal.tokens, strict=True)]
        chunk = _rectangle(inputs, rules.pad, rules.device)  # B×R
        hidden = scorer.step(chunk)  # B×R×D
        log_probs = scorer.log_probs(hidden, rules.temperature)  # B×R×V
        choice_scores, choices = rules.choose(log_probs, live)  # B×R each
        # 3. Accept.
        told = choices.tolist()
        told = [c[:n] for c, n in zip(told, proposal.rows, strict=True)]
        details = None
        if record_tokens or not acceptance.exact:
            draft = _rectangle(proposal.tokens, rules.pad, rules.device)  # B×K
        if record_tokens:
            details = PassDetails(log_probs, choice_scores, draft)
        if acceptance.exact:  # what is emitted are the verifier's choices, and they are here
            accepted = list(map(_agreement, proposal.tokens, told))
            final, scores = told, choice_scores.tolist()
        else:
            num_accepted = acceptance.accept(draft, choices, log_probs)  # B
            emitted = _emitted(draft, choices, num_accepted)  # B×R
            accepted, final = num_accepted.tolist(), emitted.tolist()
            scores = log_probs.gather(2, emitted[:, :, None]).squeeze(2).tolist()
        # 4. Commit what is final, and keep that much of the cache.
        for b, row in enumerate(live):
            drafted = len(proposal.tokens[b])
            count = acceptance.commit(accepted[b], drafted, proposal.rows[b])
            record = PassRecord(len(row.tokens), drafted, accepted[b], count)
            row.commit(final[b][:count], scores[b], rules.eos)
            row.passes.append(record)
            if details is not None:
                record.tokens = details.of_row(b, proposal.tokens[b], told[b])
            if adaptive is not None and drafted > 0:
                row.block = adaptive.after(accepted[b])
        drafter.observe(live, told, accepted, hidden)
        # 5. Finished rows leave the batch.
        scorer.keep([len(row.tokens) for row in live])
        stay = [b for b, row in enumerate(live) if not row.finished]
        if len(stay) < len(live):
            live = [live[b] for b in stay]
            if live:
                scorer.reorder(stay)


def _agreement(draft: list[int], choices: list[int]) -> int:
    """Count the drafted tokens before the first that is not the verifier's choice."""
    count = 0
    for drafted, chosen in zip(draft, choices, strict=False):
        if drafted != chosen:
            break
        count += 1
    return count


def _rectangle(lists: list[list[int]], fill: int, device: torch.device) -> Tensor:
    """Make a B×K tensor of B lists, shorter ones filled up at their end."""
    width = max(map(len, lists))
    return torch.tensor(
        [tokens + [fill] * (width - len(tokens)) for tokens in lists],
        dtype=torch.long,
        device=device,
    )


def _emitted(draft: Tensor, choices: Tensor, num_accepted: Tensor) -> Tensor:
    """Return the tokens that a pass is to emit: the accepted drafts, then the verifier's, B×R."""
    drafted = choices.clone()
    drafted[:, : draft.size(1)] = draft
    index = torch.arange(choices.size(1), device=choices.device)
    return torch.where(index < num_accepted[:, None], drafted, choices)
