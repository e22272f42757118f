"""Finished hypotheses of a beam search, in the formats of fairseq and of the reports."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..records import PassRecord, PassTokens
from ..row import Row
from ..target_order import TargetOrder
from .hypotheses import without_repetitions


@dataclass
class Written:
    """A finished hypothesis, in the order of writing."""

    score: float  # the sum of its words' log-probabilities, with that of ``</s>``
    words: list[int]  # n words, without ``</s>``
    word_scores: list[float]  # n + 1 log-probabilities; the last is that of ``</s>``
    # n + 1 pairs: the second best word of the slot, and its log-probability
    runners_up: list[tuple[int, float]]
    # n + 1, of each word how many score higher; empty: not known
    ranks: list[int] = field(default_factory=list)


@functools.lru_cache(maxsize=1024)
def _places(order: TargetOrder, count: int) -> list[int]:
    """Return the natural position of each of n words; callers must not change the list."""
    return order.sources(np.array([count]), count)[0].tolist()


@functools.lru_cache(maxsize=1024)
def _slots(order: TargetOrder, count: int) -> list[int]:
    """Return the slot of each natural position; callers must not change the list."""
    places = _places(order, count)
    return sorted(range(count), key=places.__getitem__)


@dataclass(frozen=True)
class Results:
    """Ranks finished hypotheses, and converts them to fairseq's and to passes, in natural order."""

    order: TargetOrder  # the models' target order
    eos: int  # ``</s>``
    normalise: bool  # divide a score by length**len_penalty, as fairseq does by default
    len_penalty: float  # fairseq's --lenpen
    # the longest n-grams whose immediate repetitions are dropped; None: none are
    longest: int | None
    record_tokens: bool  # keep each pass's tokens, for a trace
    formula: str = "fairseq"  # ``fairseq``, or ``google``: the length is (5 + length) / 6
    # search on until no live hypothesis can rank among the finished ones; or until enough are
    settled: bool = False

    def rank(self, hypo: Written) -> float:
        """Return a hypothesis' score, normalised by its length with ``</s>``."""
        return hypo.score / self.divisor(len(hypo.words) + 1)

    def divisor(self, length: int) -> float:
        """Return what the score of an output of this length, with ``</s>``, is divided by."""
        if not self.normalise:
            return 1.0
        counted = (5 + length) / 6 if self.formula == "google" else length
        return counted**self.len_penalty

    def add(self, finished: list[Written], new: Sequence[Written], beam_size: int) -> None:
        """Add a step's hypotheses to a sentence's, of which it keeps ``beam_size``."""
        finished += sorted(new, key=self.rank, reverse=True)
        if self.settled:
            finished.sort(key=self.rank, reverse=True)
        del finished[beam_size:]

    def goes_on(
        self, finished: Sequence[Written], beam_size: int, best: float, lengths: tuple[int, int]
    ) -> bool:
        """Return whether a sentence is searched on; a finished one of equal rank comes first.

        Args:
            finished: its hypotheses so far; see ``add``.
            beam_size: how many it is to have.
            best: the score of its best live hypothesis, to which no word adds anything.
            lengths: the least and the greatest that a live hypothesis can get, with ``</s>``.
        """
        if len(finished) < beam_size:
            return True
        if not self.settled:
            return False
        bound = max(best / self.divisor(length) for length in lengths)
        return bound > self.rank(finished[-1])

    def fill(
        self,
        rows: Sequence[Row],
        finished: Sequence[list[Written]],
        passes: Sequence[int],
        beam_size: int,
    ) -> list[list[dict[str, Any]]]:
        """Return the hypotheses of a batch, a sentence's best first, and fill in its rows.

        The passes are those of each sentence; some may extend other hypotheses than the best. Of
        one that ends by a forced ``</s>`` fairseq returns as many copies as its beam has.
        """
        ranked = []
        for row, hypos in zip(rows, finished, strict=True):
            best = sorted(hypos, key=self.rank, reverse=True)
            if self.order.tokens_per_step == len(best) == 1 and row.ends_in_prefix(self.eos):
                best *= beam_size  # as in fairseq, whose hypotheses all end there
            ranked.append(best)
        filled = []
        for row, hypos, count in zip(rows, ranked, passes, strict=True):
            filled.append([self._hypothesis(hypo, count) for hypo in hypos])
            first = filled[-1][0]
            row.tokens, row.scores = first["tokens"].tolist(), first["positional_scores"].tolist()
            row.passes = self._passes(hypos[0], count)
            row.finished = True
        return filled

    def _ordered(self, hypo: Written) -> tuple[list[int], list[float]]:
        """Return a hypothesis' tokens in natural order, with ``</s>``, and their scores."""
        kept = _slots(self.order, len(hypo.words))
        if self.longest is not None:
            left = without_repetitions([hypo.words[t] for t in kept], self.longest)
            kept = [kept[i] for i in left]
        tokens = [*(hypo.words[t] for t in kept), self.eos]
        scores = [*(hypo.word_scores[t] for t in kept), hypo.word_scores[-1]]
        return tokens, scores

    def _hypothesis(self, hypo: Written, passes: int) -> dict[str, Any]:
        """Return a finished hypothesis as fairseq's; see ``hypothesis``."""
        tokens, scores = self._ordered(hypo)
        history = []
        if self.record_tokens:
            z, order = self.order.tokens_per_step, _slots(self.order, len(hypo.words))
            ends = range(z, len(hypo.words) + 1, z)  # the ends of all steps but the last
            history = [[hypo.words[t] for t in order if t < end] for end in ends]
            history.append(tokens)
        return {
            "tokens": np.array(tokens, np.int64),
            "score": np.float32(self.rank(hypo)),
            "positional_scores": np.array(scores, np.float32),
            "steps": passes,
            "history": [{"tokens": np.array(state, np.int64)} for state in history],
        }

    def _passes(self, hypo: Written, count: int) -> list[PassRecord]:
        """Return the passes that wrote a hypothesis, and empty ones for later passes."""
        z, slots = self.order.tokens_per_step, [*hypo.words, self.eos]
        places = [*_places(self.order, len(hypo.words)), len(hypo.words)]
        names: list[str] = []
        if self.record_tokens:
            numbers = self.order.directions_of(len(slots)).tolist()
            names = [self.order.direction_name(number) for number in numbers]
        passes = []
        for start in range(0, count * z, z):
            part = slice(start, start + z)
            begin = min(start, len(slots))
            record = PassRecord(begin, 0, 0, len(slots[part]), positions=places[part])
            if self.record_tokens:
                record.directions = names[part]
                others = [
                    None if value == -math.inf else (w, value) for w, value in hypo.runners_up[part]
                ]
                record.tokens = PassTokens(
                    [],
                    slots[part],
                    hypo.word_scores[part],
                    [None if o is None else o[0] for o in others],
                    [None if o is None else o[1] for o in others],
                    [],
                    [],
                )
            passes.append(record)
        return passes
