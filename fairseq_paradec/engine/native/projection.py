"""NativeProjection: choices without the scores of all words."""

from typing import Any, NamedTuple

import numpy as np

from ...model.model import Model
from ...token_rules import Best, Positions, Scored
from ..sampling import choose_by_draws
from .passes import native_choose
from .stack import NativeHeads, NativeMap


class NativeProjection(NamedTuple):
    """A projection whose linear map is a NativeMap; see torch's Projection.

    Attributes:
        linear: the map, to all words or to the first ones.
        first: a model's head of the next token, if that is learned, or None.
        model: whose weights the map has.
    """

    linear: NativeMap
    first: NativeHeads | None
    model: Model

    @property
    def form(self) -> str:
        """Of the weights."""
        return self.linear.form

    @property
    def writes(self) -> bool:
        """Whether the native library writes several tokens in one call with this projection."""
        return self.first is None

    def read(self, hidden: np.ndarray) -> np.ndarray:
        """Return what the projection reads: of a model with heads, that of the next token's."""
        if self.first is None:
            return hidden
        states = self.first(hidden.reshape(-1, hidden.shape[-1]), [0])
        return states.reshape(hidden.shape)

    def log_probs(self, hidden: np.ndarray, temperature: float = 1.0) -> Any:
        """Return torch's tensor of log-probabilities of all words; see Projection."""
        import torch

        return torch.from_numpy(self._log_probs(hidden, temperature))

    def _log_probs(
        self, hidden: np.ndarray, temperature: float, at: Positions | None = None
    ) -> np.ndarray:
        """Return log-probabilities of all words, of logits under a penalty: B×R×D -> B×R×V."""
        scores = self.linear(self.read(hidden))
        if temperature != 1.0:
            scores /= temperature
        if at is not None and at.rules.of_logits:
            at.penalise(scores)
        scores -= scores.max(-1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
        return scores

    def choose(self, hidden: np.ndarray, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see Projection."""
        if (sampling := at.rules.sampling) is not None:
            log_probs = self._log_probs(hidden, at.rules.temperature, at)
            return choose_by_draws(log_probs, at, sampling, draft)
        return native_choose(self.linear, self.read(hidden), at, draft)

    def choose_traced(
        self, hidden: np.ndarray, at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position; see Projection."""
        return self.choose(hidden, at, draft), self.best(hidden, at, 2)

    def best(self, hidden: np.ndarray, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see Projection."""
        ends = np.full(hidden.shape[:2], at.rules.eos)
        chosen = native_choose(self.linear, self.read(hidden), at, ends, count=count)
        assert chosen.draft_scores is not None
        return Best(chosen.tokens, chosen.scores, chosen.draft_scores)

    def draft(self, hidden: np.ndarray, at: Positions, normalised: bool = False) -> Scored:
        """Choose a token at every position; see Projection."""
        if at.rules.sampling is not None:
            return self._replace(first=None).choose(hidden, at)
        return native_choose(self.linear, hidden, at, normalised=normalised)

    def candidates(
        self, hidden: np.ndarray, at: Positions, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best tokens at every position; see Projection."""
        return native_choose(self.linear, hidden, at, count=count)[:2]

    def part(self, size: int | None, form: str | None) -> "NativeProjection":
        """Return the projection to the first words, or to all.

        Args:
            size: how many; None: all.
            form: of the weights; None: as these.
        """
        name = "decoder.output_projection"
        weight = self.model.weight(f"{name}.weight")[:size]
        bias = None
        if self.model.architecture.output_bias:
            bias = self.model.weight(f"{name}.bias")[:size]
        return self._replace(linear=NativeMap(weight, bias, form or self.form))
