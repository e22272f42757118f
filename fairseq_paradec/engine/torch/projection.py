"""Torch's output projection: scores of the whole vocabulary, or of its first words."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...token_rules import Best, Positions, Scored
from .choices import best_of, candidates, choose, choose_traced
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

    def _log_probs_at(self, hidden: Any, at: Positions) -> Tensor:
        """Return log-probabilities, of logits under the rules' penalty if it is of logits."""
        if not at.rules.of_logits:
            return self._log_probs(hidden, at.rules.temperature)
        return F.log_softmax(self._penalised(hidden, at), dim=-1)

    def _penalised(self, hidden: Any, at: Positions) -> Tensor:
        """Return logits under the rules' penalty."""
        logits = self.linear(hidden) / at.rules.temperature
        logits = logits.to(_score_dtype(logits))
        at.penalise(logits)
        return logits

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
        return choose(self._log_probs_at(self.read(hidden), at), at, draft)

    def choose_traced(
        self, hidden: Any, at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position; see ``choices``."""
        scores = self._log_probs_at(self.read(hidden), at)
        return choose_traced(scores, at, draft)

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        return best_of(self._log_probs_at(self.read(hidden), at), at, count)

    def draft(self, hidden: Any, at: Positions, normalised: bool = False) -> Scored:
        """Choose a token at every position; see ``choose``.

        Args:
            hidden: B×K×D, what the projection reads.
            at: the positions.
            normalised: whether scores are log-probabilities.
        """
        rules = at.rules
        sums = rules.sampling is not None or (rules.penalty != 1 and not rules.of_logits)
        if normalised or sums or self.adaptive_softmax is not None:
            return choose(self._log_probs_at(hidden, at), at)
        if rules.of_logits:
            return choose(self._penalised(hidden, at), at)
        scores = self.linear(hidden) / rules.temperature
        return choose(scores.to(_score_dtype(scores)), at)

    def candidates(self, hidden: Any, at: Positions, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best tokens at every position; see ``choices.candidates``.

        Returns:
            B×K×N tokens and log-probabilities.
        """
        return candidates(self._log_probs_at(hidden, at), at, count)

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
