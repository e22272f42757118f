"""Scorer, the interface of the decoding loop to models, and the choice of a model's scorer."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..token_rules import Best, Positions, Scored
from .chunk import PLAIN, ChunkScorer
from .masks import Mask
from .settings import Engine
from .torch.choices import best_of, choose
from .torch.local import LocalScorer


class Scorer(Protocol):
    """A model as the decoding loop calls it: a ChunkScorer, or an ensemble of them."""

    @property
    def native(self) -> bool:
        """Whether passes are native."""
        ...

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder and start an empty cache."""

    def step(self, tokens: np.ndarray, mask: Mask = "causal") -> Any:
        """Run the decoder over one chunk, B×K, and cache it."""

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Any:
        """Return torch's tensor of B×K×V log-probabilities for the output of ``step``."""
        ...

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see Projection.choose."""
        ...

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
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
        UsageError: the scorer does not support a model; the message names the model.
    """
    scorers = [(kind or _kind_of(model))(model, engine) for model in models]
    return scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers)


def _kind_of(model: Any) -> type[ChunkScorer]:
    """Return the class of scorer that fits a model."""
    is_local = hasattr(getattr(model, "decoder", None), "attention_window")
    return LocalScorer if is_local else ChunkScorer


class EnsembleScorer:
    """Several scorers whose probabilities are averaged, as in fairseq's ensembles."""

    def __init__(self, scorers: Sequence[ChunkScorer]) -> None:
        self.scorers = list(scorers)

    @property
    def native(self) -> bool:
        """Whether passes are native, for all models."""
        return all(scorer.native for scorer in self.scorers)

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run every encoder; see ChunkScorer.encode."""
        for scorer in self.scorers:
            scorer.encode(net_input)

    def step(self, tokens: np.ndarray, mask: Mask = "causal") -> list[Tensor]:
        """Run every decoder over one chunk; see ChunkScorer.step."""
        return [scorer.step(tokens, mask) for scorer in self.scorers]

    def log_probs(self, hidden: list[Tensor], temperature: float = 1.0) -> Tensor:
        """Return the log of the mean probability over the models, B×K×V."""
        pairs = zip(self.scorers, hidden, strict=True)
        each = torch.stack([scorer.log_probs(h, temperature) for scorer, h in pairs])
        return torch.logsumexp(each, dim=0) - math.log(len(self.scorers))

    def choose(
        self, hidden: list[Tensor], at: Positions, draft: np.ndarray | None = None
    ) -> Scored:
        """Choose the next token at every position; see ``choices.choose``."""
        return choose(self.log_probs(hidden, at.rules.temperature), at, draft)

    def best(self, hidden: list[Tensor], at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        return best_of(self.log_probs(hidden, at.rules.temperature), at, count)

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll every cache back; see Cache.keep."""
        for scorer in self.scorers:
            scorer.keep(lengths)

    def gather(self, starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep the same paths in every cache; see Cache.gather."""
        for scorer in self.scorers:
            scorer.gather(starts, paths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows of every cache; see Cache.reorder."""
        for scorer in self.scorers:
            scorer.reorder(index, same_source)
