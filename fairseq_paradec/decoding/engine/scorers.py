"""What the decoding loop needs of a model, and the scorer that a model has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .chunk import PLAIN, ChunkScorer
from .local import LocalScorer
from .masks import Mask
from .settings import Engine


class Scorer(Protocol):
    """What the decoding loop needs of a model: ChunkScorer, or several of them as an ensemble."""

    @property
    def compiled(self) -> bool:
        """Whether a pass of this batch ran as torch.compile made it."""
        ...

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder and forget what was cached."""

    def step(self, tokens: Tensor, mask: Mask = "causal") -> Any:
        """Run the decoder over one chunk, B×K, and cache it."""

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Tensor:
        """Return B×K×V log-probabilities of what ``step`` returned."""
        ...

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll each row back to its own length."""

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows."""


def build_scorer(
    models: Sequence[Any], engine: Engine = PLAIN, kind: type[ChunkScorer] | None = None
) -> Scorer:
    """Make the scorer of one model, or of an ensemble.

    Args:
        models: one, or several that share the target dictionary.
        engine: how to compute.
        kind: of scorer; None: a model's own.

    Raises:
        UsageError: a model is not one that its scorer knows; it is named.
    """
    scorers = [(kind or _kind_of(model))(model, engine) for model in models]
    return scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers)


def _kind_of(model: Any) -> type[ChunkScorer]:
    """Return the scorer that a model has."""
    is_local = hasattr(getattr(model, "decoder", None), "attention_window")
    return LocalScorer if is_local else ChunkScorer


class EnsembleScorer:
    """Several scorers whose probabilities are averaged, as fairseq averages an ensemble's.

    Args:
        scorers: one per model; the models share the target dictionary.
    """

    def __init__(self, scorers: Sequence[ChunkScorer]) -> None:
        self.scorers = list(scorers)

    @property
    def compiled(self) -> bool:
        """Whether a pass of this batch, of any model, ran as torch.compile made it."""
        return any(scorer.compiled for scorer in self.scorers)

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run every encoder; see ChunkScorer.encode."""
        for scorer in self.scorers:
            scorer.encode(net_input)

    def step(self, tokens: Tensor, mask: Mask = "causal") -> list[Tensor]:
        """Run every decoder over one chunk; see ChunkScorer.step."""
        return [scorer.step(tokens, mask) for scorer in self.scorers]

    def log_probs(self, hidden: list[Tensor], temperature: float = 1.0) -> Tensor:
        """Log of the mean probability over the models, B×K×V."""
        pairs = zip(self.scorers, hidden, strict=True)
        each = torch.stack([scorer.log_probs(h, temperature) for scorer, h in pairs])
        return torch.logsumexp(each, dim=0) - math.log(len(self.scorers))

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll every cache back; see Cache.keep."""
        for scorer in self.scorers:
            scorer.keep(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows of every cache; see Cache.reorder."""
        for scorer in self.scorers:
            scorer.reorder(index, same_source)
