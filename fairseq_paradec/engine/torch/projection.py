"""Torch's output projection: scores of the whole vocabulary, or of its first words."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...token_rules import Best, Positions, Sampling, Scored
from ..sampling import Drawing
from .choices import best_of, candidates, choose, choose_traced
from .sampling import choose_by_draws, draw_draft
from .weights import Form, make_map


class Projection(NamedTuple):
    """The output projection of a decoder.

    Attributes:
        linear: V×D; for an adaptive softmax the model's own module, or None.
        adaptive_softmax: fairseq's module, or None.
        first: a model's head of the next token, if it has prediction heads, or None.
        form: of the linear map.
        module: whose weights the linear map has.
    """

    linear: Any  # a Map
    adaptive_softmax: Any
    first: Any
    form: Form
    module: Any

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities of the next token, normalised as in fairseq.

        Args:
            hidden: ...×D.
            temperature: the divisor of the logits.

        Returns:
            ...×V, in fp32 (fp64 for an fp64 model); the caller may write to it.
        """
        return self._log_probs(self.read(hidden), temperature)

    def read(self, hidden: Any) -> Any:
        """Return what the projection reads: of a model with heads, that of the next token's."""
        states = torch.as_tensor(hidden)  # before an adaptive softmax they are native passes'
        return states if self.first is None else self.first(states)

    def _log_probs(self, hidden: Any, temperature: float) -> Tensor:
        """Return log-probabilities for what the projection reads; see ``log_probs``."""
        if self.adaptive_softmax is not None:
            states = torch.as_tensor(hidden)
            scores = self.adaptive_softmax.get_log_prob(states / temperature, target=None)
            return scores.to(_score_dtype(states))
        logits = self.linear(hidden)
        dtype = _score_dtype(logits)
        if temperature != 1.0:
            logits = logits / temperature
        return F.log_softmax(logits, dim=-1, dtype=dtype)

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see ``choices.choose``."""
        return choose(self._log_probs(self.read(hidden), at.rules.temperature), at, draft)

    def choose_traced(
        self, hidden: Any, at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position; see ``choices``."""
        scores = self._log_probs(self.read(hidden), at.rules.temperature)
        return choose_traced(scores, at, draft)

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        return best_of(self._log_probs(self.read(hidden), at.rules.temperature), at, count)

    def draw(self, hidden: Any, at: Positions, drawing: Drawing) -> Scored:
        """Draw the next token at every position; see ``sampling.choose_by_draws``."""
        log_probs = self.log_probs(hidden, at.rules.temperature)
        return choose_by_draws(log_probs, at, drawing)

    def draw_draft(
        self, hidden: Any, at: Positions, sampling: Sampling, chance: np.ndarray
    ) -> tuple[Scored, Tensor]:
        """Draw the next token for each row; see ``sampling.draw_draft``."""
        return draw_draft(self.log_probs(hidden, at.rules.temperature), at, sampling, chance)

    def draft(self, hidden: Any, at: Positions, normalised: bool = False) -> Scored:
        """Choose the best token at every position.

        Args:
            hidden: B×K×D, what the projection reads.
            at: the positions.
            normalised: whether scores are log-probabilities.
        """
        temperature = at.rules.temperature
        if normalised or self.adaptive_softmax is not None:
            return choose(self._log_probs(hidden, temperature), at)
        scores = self.linear(hidden) / temperature
        return choose(scores.to(_score_dtype(scores)), at)

    def candidates(self, hidden: Any, at: Positions, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best tokens at every position; see ``choices.candidates``.

        Returns:
            B×K×N tokens and log-probabilities.
        """
        return candidates(self._log_probs(hidden, at.rules.temperature), at, count)

    @property
    def writes(self) -> bool:
        """Whether the native library writes several tokens in one call with this projection."""
        return False

    def part(self, size: int | None, form: str | None) -> "Projection":
        """Return the projection to the first words, or to all.

        Args:
            size: how many; None: all.
            form: of native weights; not read.
        """
        bias = None if self.module.bias is None else self.module.bias[:size].detach()
        linear = make_map(self.module.weight[:size].detach(), bias, self.form)
        return self._replace(linear=linear)


def gather_projection(model: Any, form: Form) -> Projection:
    """Gather a model's projection."""
    decoder = model.decoder
    module = decoder.output_projection
    heads = getattr(model, "block_heads", None)
    first = None if heads is None else heads.first
    linear = module
    if type(module) is nn.Linear:
        bias = None if module.bias is None else module.bias.detach()
        linear = make_map(module.weight.detach(), bias, form)
    return Projection(linear, decoder.adaptive_softmax, first, form, module)


def _score_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of scores: fp32, as in fairseq; fp64 for fp64 models (tests only)."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32
