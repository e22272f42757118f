"""EnsembleScorer: several models as one."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...batch import Numbers
from ...token_rules import Best, Positions, Scored
from ..chunk import ChunkScorer
from ..masks import Mask
from ..sampling import Drawing
from .choices import best_of, choose, choose_traced
from .sampling import choose_by_draws


class EnsembleScorer:
    """Several scorers whose probabilities are averaged, as in fairseq's ensembles."""

    def __init__(self, scorers: Sequence[ChunkScorer]) -> None:
        self.scorers = list(scorers)

    @property
    def native(self) -> bool:
        """Whether passes are native, for all models."""
        return all(scorer.native for scorer in self.scorers)

    def encode(self, source: Numbers) -> None:
        """Run every encoder; see ChunkScorer.encode."""
        for scorer in self.scorers:
            scorer.encode(source)

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

    def choose_traced(
        self, hidden: list[Tensor], at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position; see ``choices``."""
        return choose_traced(self.log_probs(hidden, at.rules.temperature), at, draft)

    def best(self, hidden: list[Tensor], at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        return best_of(self.log_probs(hidden, at.rules.temperature), at, count)

    def draw(self, hidden: list[Tensor], at: Positions, drawing: Drawing) -> Scored:
        """Draw the next token at every position; see ``sampling.choose_by_draws``."""
        log_probs = self.log_probs(hidden, at.rules.temperature)
        return choose_by_draws(log_probs, at, drawing)

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
