"""THE loop: propose a chunk of tokens, score it in one pass, accept a start of it, keep that much.

Every method of this package is this loop with its own drafter and acceptance rule. All rows of a
batch go on independently; a finished row leaves the batch.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .acceptance import ExactMatch
from .row import Row
from .token_rules import TokenRules
from .trace import PassDetails, PassRecord


class Proposal(NamedTuple):
    """What a drafter proposes for every row of the batch.

    Attributes:
        tokens: B lists of drafted tokens; a row may draft fewer than others, or none.
        num_scored: B, at how many positions each row is scored. The first predicts the next token;
            with n drafted tokens there may be n, or n+1 if the prediction after the last drafted
            token (the bonus token) is wanted too; and at least 1.
    """

    tokens: list[list[int]]
    num_scored: list[int]


class Verdict(NamedTuple):
    """What the verifier says of a proposal.

    Attributes:
        choices: B lists of the verifier's own tokens, one per scored position.
        num_accepted: B, how many drafted tokens were accepted.
        num_committed: B, how many tokens became final (some fewer where ``</s>`` is among them).
        hidden: what the scorer's ``step`` returned, B×R×D of one model.
    """

    choices: list[list[int]]
    num_accepted: list[int]
    num_committed: list[int]
    hidden: Any


class Drafter(abc.ABC):
    """A method's own part: what to guess, and what to learn from the verifier's answer."""

    @abc.abstractmethod
    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Guess the tokens that follow each row's committed ones."""

    def observe(self, verdict: Verdict) -> None:  # noqa: B027
        """See what became of the proposal; by default nothing is learned."""

    def drop(self, stay: Sequence[int]) -> None:  # noqa: B027
        """Forget finished rows; by default nothing is kept by row.

        Args:
            stay: which rows of the last proposal are left, in order.
        """


class Verifier(Protocol):
    """What the loop needs of a scorer; see ChunkScorer."""

    def step(self, tokens: Tensor) -> Any:
        """Run a pass over one chunk, B×R."""

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Tensor:
        """Return B×R×V log-probabilities of what ``step`` returned."""
        ...

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll each row back to its own length."""

    def reorder(self, index: Sequence[int]) -> None:
        """Pick rows."""


def no_draft(num_rows: int) -> Proposal:
    """Propose no tokens, so that a pass predicts the next token of each row."""
    return Proposal([[] for _ in range(num_rows)], [1] * num_rows)


@torch.inference_mode()
def draft_and_verify(
    scorer: Verifier,
    rows: Sequence[Row],
    drafter: Drafter,
    acceptance: ExactMatch,
    rules: TokenRules,
    record_tokens: bool = False,
) -> None:
    """Decode all rows to their end; fills in their tokens, scores and pass records.

    Args:
        scorer: the verifier; ``encode`` has been called for these rows, in this order.
        rows: the sentences, nothing committed yet.
        drafter: proposes.
        acceptance: says how much of a proposal holds.
        rules: what may be chosen at a position (limits, forced tokens), and the first input.
        record_tokens: keep each pass's tokens and probabilities, for a trace.
    """
    live = list(rows)
    while live:
        # 1. Propose: B lists of tokens to follow the committed ones.
        drafts, num_scored = proposal = drafter.propose(live)
        # 2. Score: the chunk is the last committed token and the draft, B×R.
        hidden = scorer.step(_chunk(live, proposal, rules))  # B×R×D
        log_probs = scorer.log_probs(hidden, rules.temperature)  # B×R×V
        choice_scores, chosen = rules.choose(log_probs, live)  # B×R each
        # 3. Accept.
        choices = [c[:n] for c, n in zip(chosen.tolist(), num_scored, strict=True)]
        details = None
        if record_tokens or not acceptance.exact:
            draft = _rectangle(drafts, rules.pad, rules.device)  # B×K
        if record_tokens:
            details = PassDetails(log_probs, choice_scores, draft)
        if acceptance.exact:  # what is emitted are the verifier's choices, and they are here
            accepted = list(map(_agreement, drafts, choices))
            final, scores = choices, choice_scores.tolist()
        else:
            num_accepted = acceptance.accept(draft, chosen, log_probs)  # B
            emitted = _emitted(draft, chosen, num_accepted)  # B×R
            accepted, final = num_accepted.tolist(), emitted.tolist()
            scores = log_probs.gather(2, emitted[:, :, None]).squeeze(2).tolist()
        # 4. Commit what is final, and keep that much of the cache.
        committed = list(map(acceptance.commit, accepted, map(len, drafts), num_scored))
        for b, row in enumerate(live):
            record = PassRecord(len(row.tokens), len(drafts[b]), accepted[b], committed[b])
            row.commit(final[b][: committed[b]], scores[b], rules.eos)
            row.passes.append(record)
            if details is not None:
                record.tokens = details.of_row(b, drafts[b], choices[b])
        drafter.observe(Verdict(choices, accepted, committed, hidden))
        scorer.keep([len(row.tokens) for row in live])
        # 5. Finished rows leave the batch.
        stay = [b for b, row in enumerate(live) if not row.finished]
        if len(stay) < len(live):
            live = [live[b] for b in stay]
            if live:
                scorer.reorder(stay)
                drafter.drop(stay)


def _chunk(rows: Sequence[Row], proposal: Proposal, rules: TokenRules) -> Tensor:
    """Return the inputs of a pass, B×R: each row's last committed token and its draft."""
    width = max(proposal.num_scored)
    last = [row.tokens[-1] if row.tokens else rules.start for row in rows]
    inputs = [[t, *draft][:width] for t, draft in zip(last, proposal.tokens, strict=True)]
    return _rectangle(inputs, rules.pad, rules.device)


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
