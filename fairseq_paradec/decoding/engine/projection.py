"""From a decoder's states to scores of tokens: the whole vocabulary, or a shortlist of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import option_error
from .weights import Form, Map, make_map


class Projection(NamedTuple):
    """What makes scores of a decoder's states.

    Attributes:
        linear: V×D; with an adaptive softmax that module's own, or None.
        adaptive_softmax: fairseq's module, or None.
        first: the head of the next token, of a model with heads, or None.
        form: of the linear map.
    """

    linear: Map | Any
    adaptive_softmax: Any
    first: Any
    form: Form

    def log_probs(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the next token, as fairseq normalises them.

        Args:
            hidden: ...×D.
            temperature: what the logits are divided by.

        Returns:
            ...×V, in fp32 (fp64 for a fp64 model), free to be written to.
        """
        dtype = _score_dtype(hidden)
        if self.first is not None:
            hidden = self.first(hidden)
        if self.adaptive_softmax is not None:
            scores = self.adaptive_softmax.get_log_prob(hidden / temperature, target=None)
            return scores.to(dtype)
        logits = self.linear(hidden)
        if temperature != 1.0:
            logits = logits / temperature
        return F.log_softmax(logits, dim=-1, dtype=dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores that are not normalised: ...×D -> ...×V, in fp32 (fp64 for a fp64 model)."""
        logits: Tensor = self.linear(hidden)
        return logits.to(_score_dtype(logits))


def gather_projection(model: Any, form: Form) -> Projection:
    """Take a model's projection; see ``weights.join`` for the form."""
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
    """Scores of drafts: of all tokens, or of the dictionary's first, which fairseq sorts by use.

    Args:
        model: whose projection serves.
        size: N, how many tokens may be drafted; None: all.
        words: the target dictionary.

    Raises:
        UsageError: the shortlist holds no word or is no part of the dictionary, or there is no
            projection whose part could be taken.
    """

    def __init__(self, model: Any, size: int | None, words: Any) -> None:
        self.size = size
        self._decoder = model.decoder
        # Of which projection the part was taken last, and the part.
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

    def logits(self, projection: Projection, hidden: Tensor, whole: bool = False) -> Tensor:
        """Make scores of states that are not normalised, in fp32 or fp64.

        Args:
            projection: of the model, as its scorer has gathered it last.
            hidden: ...×D.
            whole: whether all tokens are wanted, shortlist or not.

        Returns:
            ...×V, or ...×N.
        """
        if self.size is None or whole:
            return projection.logits(hidden)
        if projection is not self._whole:
            module = self._decoder.output_projection
            bias = None if module.bias is None else module.bias[: self.size].detach()
            linear = make_map(module.weight[: self.size].detach(), bias, projection.form)
            self._whole, self._part = projection, projection._replace(linear=linear)
        return self._part.logits(hidden)


def _score_dtype(hidden: Tensor) -> torch.dtype:
    """Scores are fp32, as in fairseq, but for fp64 models (which only tests use)."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32
