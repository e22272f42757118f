"""The output projection: scores of the whole vocabulary, or of a shortlist, from hidden states."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import excludes, option_error
from ..token_rules import Best, Positions, Scored, TokenRules
from .native.passes import native_choose
from .native.stack import NativeMap
from .torch.choices import best_of, candidates, choose
from .torch.weights import Form, make_map


class Projection(NamedTuple):
    """The output projection of a decoder.

    Attributes:
        linear: V×D; for an adaptive softmax the model's own module, or None.
        adaptive_softmax: fairseq's module, or None.
        first: a model's head of the next token, if it has prediction heads, or None.
        form: of the linear map, if it is torch's.
    """

    linear: Any  # a Map
    adaptive_softmax: Any
    first: Any
    form: Form

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
        return hidden if self.first is None else self.first(hidden)

    def _log_probs(self, hidden: Any, temperature: float) -> Tensor:
        """Return log-probabilities for what the projection reads; see ``log_probs``."""
        if self.adaptive_softmax is not None:
            states = torch.as_tensor(hidden)
            scores = self.adaptive_softmax.get_log_prob(states / temperature, target=None)
            return scores.to(_score_dtype(states))
        logits = self._logits(hidden)
        dtype = _score_dtype(logits)
        if temperature != 1.0:
            logits = logits / temperature
        return F.log_softmax(logits, dim=-1, dtype=dtype)

    def _logits(self, hidden: Any) -> Tensor:
        """Return scores of all words, before they are normalised."""
        logits: Tensor = self.linear(hidden)
        return logits

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see ``choices.choose``."""
        return choose(self._log_probs(self.read(hidden), at.rules.temperature), at, draft)

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        return best_of(self._log_probs(self.read(hidden), at.rules.temperature), at, count)

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
        scores = self._logits(hidden) / temperature
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

    def of(self, weight: Tensor, bias: Tensor | None, form: str | None) -> "Projection":
        """Return the projection to other words; ``form``: of native weights, None: as these."""
        return self._replace(linear=make_map(weight, bias, self.form))


class NativeProjection(Projection):
    """A projection whose linear map is a NativeMap: choices without the scores of all words."""

    def _logits(self, hidden: Any) -> Tensor:
        """Return scores of all words; see Projection."""
        return torch.from_numpy(self.linear(hidden))

    def read(self, hidden: np.ndarray) -> np.ndarray:
        """Return what the projection reads; see Projection."""
        if self.first is None:
            return hidden
        states: np.ndarray = self.first(torch.from_numpy(hidden)).numpy()
        return states

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see Projection."""
        return native_choose(self.linear, self.read(hidden), at, draft)

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see Projection."""
        ends = np.full(hidden.shape[:2], at.rules.eos)
        chosen = native_choose(self.linear, self.read(hidden), at, ends, count=count)
        assert chosen.draft_scores is not None
        return Best(chosen.tokens, chosen.scores, chosen.draft_scores)

    def draft(self, hidden: Any, at: Positions, normalised: bool = False) -> Scored:
        """Choose the best token at every position; see Projection."""
        return native_choose(self.linear, hidden, at, normalised=normalised)

    def candidates(self, hidden: Any, at: Positions, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best tokens at every position; see Projection."""
        return native_choose(self.linear, hidden, at, count=count)[:2]

    @property
    def writes(self) -> bool:
        """Whether the native library writes several tokens in one call with this projection."""
        return self.first is None

    def of(self, weight: Tensor, bias: Tensor | None, form: str | None) -> Projection:
        """Return the projection to other words; see Projection."""
        given = weight.numpy(), None if bias is None else bias.numpy()
        return self._replace(linear=NativeMap(*given, form or self.linear.form))


def gather_projection(model: Any, form: Form, native: NativeMap | None = None) -> Projection:
    """Gather a model's projection; torch projects without a packed map."""
    decoder = model.decoder
    module = decoder.output_projection
    heads = getattr(model, "block_heads", None)
    first = None if heads is None else heads.first
    if native is not None:
        return NativeProjection(native, decoder.adaptive_softmax, first, form)
    linear = module
    if type(module) is nn.Linear:
        bias = None if module.bias is None else module.bias.detach()
        linear = make_map(module.weight.detach(), bias, form)
    return Projection(linear, decoder.adaptive_softmax, first, form)


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
        self._decoder = model.decoder
        # The projection that the shortlist's part was last taken from, and the part.
        self._whole: Projection | None = None
        self._part: Any = None
        if size is None:
            return
        if type(model.decoder.output_projection) is not nn.Linear:
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
        self, projection: Projection, hidden: Any, at: Positions, normalised: bool = False
    ) -> Scored:
        """Draft the best token at every position; see ``Projection.draft``."""
        return self.part(projection, at.rules).draft(hidden, at, normalised)

    def candidates(
        self, projection: Projection, hidden: Any, at: Positions, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft the best tokens at every position; see ``choose`` and ``Projection.candidates``."""
        return self.part(projection, at.rules).candidates(hidden, at, count)

    def part(self, projection: Projection, rules: TokenRules) -> Projection:
        """Return the projection to the shortlist.

        It is the whole one if a prefix is forced, for that may lie outside the shortlist.
        """
        own = self.form in (None, getattr(projection.linear, "form", None))
        if (self.size is None and own) or rules.forced_len > 0:
            return projection
        if projection is not self._whole:
            module = self._decoder.output_projection
            bias = None if module.bias is None else module.bias[: self.size].detach()
            weight = module.weight[: self.size].detach()
            self._whole, self._part = projection, projection.of(weight, bias, self.form)
        part: Projection = self._part
        return part


def _score_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of scores: fp32, as in fairseq; fp64 for fp64 models (tests only)."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32
