"""Scorer, the interface of the decoding loop to models, and the choice of a model's scorer."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..batch import Numbers
from ..extras import named
from ..token_rules import Best, Positions, Scored
from .chunk import PLAIN, ChunkScorer
from .masks import Mask
from .sampling import Drawing
from .settings import Engine


class Scorer(Protocol):
    """A model as the decoding loop calls it: a ChunkScorer, or an ensemble of them."""

    @property
    def native(self) -> bool:
        """Whether passes are native."""
        ...

    def encode(self, source: Numbers) -> None:
        """Run the encoder and start an empty cache."""

    def step(self, tokens: np.ndarray, mask: Mask = "causal") -> Any:
        """Run the decoder over one chunk, B×K, and cache it."""

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Any:
        """Return torch's tensor of B×K×V log-probabilities for the output of ``step``."""
        ...

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see Projection.choose."""
        ...

    def choose_traced(
        self, hidden: Any, at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position, for a trace."""
        ...

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        ...

    def draw(self, hidden: Any, at: Positions, drawing: Drawing) -> Scored:
        """Draw the next token at every position; see ``sampling.choose_by_draws``."""
        ...

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll each row back to its own length."""

    def gather(self, starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path of each row's tree; see Cache.gather."""

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows."""


def build_scorer(
    models: Sequence[Any], engine: Engine = PLAIN, kind: type[ChunkScorer] | None = None
) -> Scorer:
    """Make the scorer of one model, or of an ensemble.

    Raises:
        UsageError: the scorer does not support a model; the message names the model. Or torch is
            not installed, which adds an ensemble's probabilities up.
    """
    scorers = [(kind or _kind_of(model))(model, engine) for model in models]
    if len(scorers) == 1:
        return scorers[0]
    with named("an ensemble"):
        from .torch.ensemble import EnsembleScorer
    return EnsembleScorer(scorers)


def _kind_of(model: Any) -> type[ChunkScorer]:
    """Return the class of scorer that fits a model."""
    if not hasattr(getattr(model, "decoder", None), "attention_window"):
        return ChunkScorer
    from .torch.local import LocalScorer

    return LocalScorer
