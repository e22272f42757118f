"""The output projection: scores of the whole vocabulary, or of a shortlist, from hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import option_error
from ..token_rules import Best, Scored, TokenRules
from .native.passes import native_choose
from .native.stack import NativeMap
from .weights import Form, Map, make_map

if TYPE_CHECKING:
    from ..row import Row


class Projection(NamedTuple):
    """The output projection of a decoder.

    Attributes:
        linear: V×D; for an adaptive softmax the model's own module, or None.
        adaptive_softmax: fairseq's module, or None.
        first: a model's head of the next token, if it has prediction heads, or None.
        form: of the linear map, if it is torch's.
    """

    linear: Map | Any
    adaptive_softmax: Any
    first: Any
    form: Form

    def log_probs(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities of the next token, normalised as in fairseq.

        Args:
            hidden: ...×D.
            temperature: the divisor of the logits.

        Returns:
            ...×V, in fp32 (fp64 for an fp64 model); the caller may write to it.
        """
        return self._log_probs(self.read(hidden), temperature)

    def read(self, hidden: Tensor) -> Tensor:
        """Return what the projection reads: of a model with heads, that of the next token's."""
        return hidden if self.first is None else self.first(hidden)

    def _log_probs(self, hidden: Tensor, temperature: float) -> Tensor:
        """Return log-probabilities for what the projection reads; see ``log_probs``."""
        dtype = _score_dtype(hidden)
        if self.adaptive_softmax is not None:
            scores = self.adaptive_softmax.get_log_prob(hidden / temperature, target=None)
            return scores.to(dtype)
        logits = self.linear(hidden)
        if temperature != 1.0:
            logits = logits / temperature
        return F.log_softmax(logits, dim=-1, dtype=dtype)

    def choose(
        self,
        hidden: Tensor,
        rules: TokenRules,
        rows: Sequence[Row],
        draft: Tensor | None = None,
        starts: list[int] | None = None,
        depths: Tensor | None = None,
    ) -> Scored:
        """Choose the next token at every position; see ``TokenRules.choose``.

        Args:
            hidden: B×R×D.
            rules: which tokens are allowed.
            rows: B rows.
            draft: B×K drafted tokens, or None.
            starts: B, or None.
            depths: B×R, or None.
        """
        hidden = self.read(hidden)
        if isinstance(self.linear, NativeMap):
            return native_choose(self.linear, hidden, rules, rows, draft, starts, depths)
        scores = self._log_probs(hidden, rules.temperature)
        return rules.choose(scores, rows, draft, starts, depths)

    def best(
        self, hidden: Tensor, rules: TokenRules, rows: Sequence[Row], count: int, starts: list[int]
    ) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``TokenRules.best``."""
        hidden = self.read(hidden)
        if isinstance(self.linear, NativeMap):
            ends = torch.full(hidden.shape[:2], rules.eos)
            found = native_choose(self.linear, hidden, rules, rows, ends, starts, count=count)
            assert found.draft_scores is not None
            return Best(found.tokens, found.scores, found.draft_scores)
        return rules.best(self._log_probs(hidden, rules.temperature), rows, count, starts)

    def draft(
        self,
        hidden: Tensor,
        rules: TokenRules,
        rows: Sequence[Row],
        starts: list[int] | None = None,
        normalised: bool = False,
    ) -> Scored:
        """Choose the best token at every position.

        Args:
            hidden: B×K×D, what the projection reads.
            rules: which tokens are allowed.
            rows: B rows.
            starts: B; see ``TokenRules.choose``.
            normalised: whether scores are log-probabilities.
        """
        if isinstance(self.linear, NativeMap):
            return native_choose(
                self.linear, hidden, rules, rows, starts=starts, normalised=normalised
            )
        if normalised or self.adaptive_softmax is not None:
            scores = self._log_probs(hidden, rules.temperature)
        else:
            scores = self.linear(hidden) / rules.temperature
            scores = scores.to(_score_dtype(scores))
        return rules.choose(scores, rows, starts=starts)

    def candidates(
        self,
        hidden: Tensor,
        rules: TokenRules,
        rows: Sequence[Row],
        count: int,
        starts: list[int] | None = None,
        depths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the best tokens at every position; see ``TokenRules.candidates``.

        Args:
            hidden: B×K×D, what the projection reads.
            rules: which tokens are allowed.
            rows: B rows.
            count: N.
            starts: B, or None.
            depths: B×K, or None.

        Returns:
            B×K×N tokens and log-probabilities.
        """
        if isinstance(self.linear, NativeMap):
            return native_choose(
                self.linear, hidden, rules, rows, None, starts, depths, count=count
            )[:2]  # fmt: skip
        scores = self._log_probs(hidden, rules.temperature)
        return rules.candidates(scores, rows, count, starts, depths)


def gather_projection(model: Any, form: Form) -> Projection:
    """Gather a model's projection; see ``weights.join`` for the form."""
    decoder = model.decoder
    module = decoder.output_projection
    linear = module
    if type(module) is nn.Linear:
        bias = None if module.bias is None else module.bias.detach()
        linear = make_map(module.weight.detach(), bias, form)
    heads = getattr(model, "block_heads", None)
    first = None if heads is None else heads.first
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
            raise option_error(
                "--drafter-shortlist", size,
                "nothing with an adaptive softmax, which has its own parts",
            )  # fmt: skip
        if not words.nspecial < size <= len(words):
            raise option_error(
                "--drafter-shortlist", size,
                f"from {words.nspecial + 1} (one word besides the {words.nspecial} special "
                f"symbols) to {len(words)}, the whole dictionary",
            )  # fmt: skip

    def choose(
        self,
        projection: Projection,
        hidden: Tensor,
        rules: TokenRules,
        rows: Sequence[Row],
        normalised: bool = False,
    ) -> Scored:
        """Draft the best token at every position; see ``Projection.draft``.

        Args:
            projection: the model's projection, as its scorer last gathered it.
            hidden: B×K×D.
            rules: which tokens are allowed.
            rows: B rows.
            normalised: whether scores are log-probabilities, of the shortlist if there is one.
        """
        return self.part(projection, rules).draft(hidden, rules, rows, normalised=normalised)

    def candidates(
        self,
        projection: Projection,
        hidden: Tensor,
        rules: TokenRules,
        rows: Sequence[Row],
        count: int,
        starts: list[int] | None = None,
        depths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draft the best tokens at every position; see ``choose`` and ``Projection.candidates``."""
        part = self.part(projection, rules)
        return part.candidates(hidden, rules, rows, count, starts, depths)

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
            weight, whole = module.weight[: self.size].detach(), projection.linear
            linear: Any
            if isinstance(whole, NativeMap):
                linear = NativeMap(weight, bias, self.form or whole.form)
            else:
                linear = make_map(weight, bias, projection.form)
            self._whole, self._part = projection, projection._replace(linear=linear)
        part: Projection = self._part
        return part


def _score_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of scores: fp32, as in fairseq; fp64 for fp64 models (tests only)."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32
