"""Base of the beam searches over several words per step; a subclass extends the beams."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..batch import Numbers
from ..decoding.beam import BeamSearch, Extension
from ..decoding.beam_output import Results
from ..engine.scorers import Scorer, build_scorer
from ..engine.step import StepScorer
from ..errors import nan_error, option_error
from ..row import Row
from ..target_order import order_of
from ..token_rules import Best, TokenRules
from .base import Decoder


class BeamDecoder(Decoder):
    """Beam search by steps of z words."""

    def __init__(self, models: Sequence[Any], *args: Any) -> None:
        self.order = order_of(models[0])  # the task has checked that all models have this order
        super().__init__(models, *args)

    def make_scorer(self, models: Sequence[Any]) -> Scorer:
        """Return the scorer of the models."""
        return build_scorer(models, self.engine, StepScorer)

    @property
    @abc.abstractmethod
    def most_words(self) -> int:
        """The number of a slot's best words that ``extend`` needs."""

    @abc.abstractmethod
    def extend(self, best: Best, scores: np.ndarray) -> Extension:
        """Extend the beams by one step; see BeamSearch.extend."""

    def _decode(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Encode, search, and reorder the outputs to natural order."""
        if rules.forced_len > 0 and not self.order.keeps_prefix:
            raise option_error(
                "--prefix-size", rules.forced_len, "0 with a model that writes in another order"
            )
        results = Results(
            self.order,
            self.eos,
            not self.config.unnormalized,
            self.config.lenpen,
            self.config.deduplicate_ngrams,
            self.record_tokens,
            self.config.length_formula,
            self.config.beam_stop == "settled",
        )
        count = max(self.most_words, 2 if self.record_tokens else 1)  # a trace has runners-up
        search = BeamSearch(
            self.scorer,
            results,
            self.words.bos(),
            self.beam_size,
            min(count, len(self.words)),
            self.extend,
        )
        finished, passes = search.run(source, rows, rules)
        if not all(finished):
            raise nan_error("--path", self.models)
        return results.fill(rows, finished, passes, self.beam_size)
