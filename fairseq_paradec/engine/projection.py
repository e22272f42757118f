"""DraftProjection: the output projection for drafts, of all words or of a shortlist."""

from typing import Any

import numpy as np

from ..errors import excludes, option_error
from ..model.model import Model
from ..token_rules import Positions, Scored, TokenRules


def is_linear(model: Any) -> bool:
    """Return whether a model's output projection is a linear map, no adaptive softmax."""
    if isinstance(model, Model):
        return not model.architecture.cutoffs
    return type(model.decoder.output_projection).__name__ == "Linear"


class DraftProjection:
    """The projection for drafts: of all tokens, or of a shortlist.

    The shortlist is the start of the dictionary, which fairseq sorts by frequency.

    Args:
        model: the model that drafts.
        size: N, the number of tokens in the shortlist; None: all tokens.
        words: the target dictionary.
        form: of its native weights; None: that of the model's projection.

    Raises:
        UsageError: the shortlist has no word or exceeds the dictionary, or the model has an
            adaptive softmax.
    """

    def __init__(self, model: Any, size: int | None, words: Any, form: str | None = None) -> None:
        self.size, self.form = size, form
        # The projection that the shortlist's part was last taken from, and the part.
        self._whole: Any = None
        self._part: Any = None
        if size is None:
            return
        if not is_linear(model):
            raise excludes(
                "--drafter-shortlist", size, "an adaptive softmax, which has its own parts"
            )
        if not words.nspecial < size <= len(words):
            raise option_error(
                "--drafter-shortlist",
                size,
                f"from {words.nspecial + 1} (one word besides the {words.nspecial} special "
                f"symbols) to {len(words)}, the whole dictionary",
            )

    def choose(
        self, projection: Any, hidden: Any, at: Positions, normalised: bool = False
    ) -> Scored:
        """Draft the best token at every position; see ``Projection.draft``."""
        return self.part(projection, at.rules).draft(hidden, at, normalised)

    def candidates(
        self, projection: Any, hidden: Any, at: Positions, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft the best tokens at every position; see ``choose`` and ``Projection.candidates``."""
        return self.part(projection, at.rules).candidates(hidden, at, count)

    def part(self, projection: Any, rules: TokenRules) -> Any:
        """Return the projection to the shortlist.

        It is the whole one if a prefix is forced, for that may lie outside the shortlist.
        """
        own = self.form in (None, projection.form)
        if (self.size is None and own) or rules.forced_len > 0:
            return projection
        if projection is not self._whole:
            self._whole, self._part = projection, projection.part(self.size, self.form)
        return self._part
