"""What a trace shows of a pass, from the arrays of the pass."""

import math

from ..records import PassTokens
from ..token_rules import Best, Scored


class PassDetails:
    """One pass of a batch, for a trace.

    Args:
        best: the verifier's best two tokens at every position.
        scored: its choices, and its scores of the draft.
        confidences: B lists of the drafter's probabilities of the draft; None if not known.
    """

    def __init__(
        self, best: Best, scored: Scored, confidences: list[list[float]] | None = None
    ) -> None:
        assert scored.draft_scores is not None and scored.draft_ranks is not None
        self.scores = scored.scores.tolist()
        self.top = best.tokens.tolist()  # B×R×2
        self.top_scores = best.scores.tolist()
        self.draft_scores = scored.draft_scores.tolist()
        self.draft_ranks = scored.draft_ranks.tolist()
        self.confidences = confidences

    def of_row(self, b: int, draft: list[int], verifier: list[int]) -> PassTokens:
        """Return the tokens of row b, without padding."""
        runner_up: list[int | None] = []
        runner_up_log_probs: list[float | None] = []
        for choice, top, scores in zip(verifier, self.top[b], self.top_scores[b], strict=False):
            other = 1 if top[0] == choice else 0
            possible = math.isfinite(scores[other])
            runner_up.append(top[other] if possible else None)
            runner_up_log_probs.append(scores[other] if possible else None)
        return PassTokens(
            draft,
            verifier,
            self.scores[b][: len(verifier)],
            runner_up,
            runner_up_log_probs,
            self.draft_scores[b][: len(draft)],
            self.draft_ranks[b][: len(draft)],
            None if self.confidences is None else self.confidences[b],
        )
