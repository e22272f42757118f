"""What a trace shows of a pass, from the tensors of the pass."""

import math
from typing import TYPE_CHECKING

from ..records import PassTokens

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import Tensor

    from ..token_rules import Scored


class PassDetails:
    """One pass of a batch, for a trace.

    Args:
        log_probs: B×R×V the verifier's log-probabilities, with forbidden tokens at -inf.
        scored: its choices, and its scores of the draft.
        confidences: B lists of the drafter's probabilities of the draft; None if not known.
    """

    def __init__(
        self, log_probs: "Tensor", scored: "Scored", confidences: list[list[float]] | None = None
    ) -> None:
        assert scored.draft_scores is not None and scored.draft_ranks is not None
        top = log_probs.topk(2)
        self.scores = scored.scores.tolist()
        self.top = top.indices.tolist()  # B×R×2
        self.top_scores = top.values.tolist()
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
