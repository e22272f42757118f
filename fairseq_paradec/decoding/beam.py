"""Beam search by steps of z words, vectorised over sentences and their hypotheses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..batch import Numbers
from ..engine.chunk import ChunkScorer
from ..engine.masks import Mask
from ..engine.native.beam import Searched, Searching
from ..engine.scorers import Scorer
from ..errors import option_error
from ..row import Row
from ..token_rules import Best, TokenRules
from .beam_output import Results, Written


class Candidates(NamedTuple):
    """Hypotheses extended by one step; S sentences, C candidates each, z words per step."""

    scores: np.ndarray  # S×C, scores of whole hypotheses; -inf for no candidate
    parents: np.ndarray  # S×C, the hypothesis of the beam that each candidate extends
    words: np.ndarray  # S×C×z; words after a ``</s>`` are ignored
    word_scores: np.ndarray  # S×C×z, the words' log-probabilities


class Extension(NamedTuple):
    """The result of one step."""

    ended: Candidates  # candidates with a ``</s>``; those outside the best have the score -inf
    alive: Candidates  # the next beam


class Step(NamedTuple):
    """Hypotheses after a step; S sentences, W hypotheses, z words a step."""

    words: np.ndarray  # S×W×z
    scores: np.ndarray  # S×W×z, their log-probabilities
    # S×W×z×2, for a trace: of each word the best other one and its log-probability
    others: np.ndarray
    totals: np.ndarray  # S×W, the scores of whole hypotheses; not finite: there is none
    parents: np.ndarray  # S×W, of each hypothesis the one of the step before
    # S, of each sentence its place in the step before, which may have had more of them
    places: np.ndarray


@dataclass(frozen=True)
class BeamSearch:
    """A search over the hypotheses of a batch.

    fairseq's ends with a sentence's B-th finished hypothesis. ``results.settled`` is the bound of
    IBDecoder's authors: B are finished, and the best live one, divided by the largest length, ranks
    below them. Then the B are the best of all that the search would finish before its limit.
    """

    scorer: Scorer  # of the models, with a StepScorer for each
    # the models' target order; the value by which finished hypotheses are compared; and whether to
    # keep the runner-up of each word, for a trace
    results: Results
    bos: int  # the first of the start symbols of an order that has two
    beam_size: int  # the number of hypotheses that a sentence finishes
    count: int  # N, the number of words of a slot that ``extend`` needs
    # extends the beams by one step. It takes each slot's best words, S×W×z×N; and the hypotheses'
    # scores so far, S×W, -inf for no hypothesis.
    extend: Callable[[Best, np.ndarray], Extension]

    def run(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules
    ) -> tuple[list[list[Written]], list[int]]:
        """Encode, and extend the beams step by step until each sentence has its hypotheses.

        Returns:
            B lists of hypotheses, in the order in which they finish, and each sentence's number of
            passes.
        """
        order, beam = self.results.order, self.beam_size
        z = order.tokens_per_step
        self.scorer.encode(source)
        if self._at_once:
            return self._search(rows, rules)
        refuse_other_rules(rules)
        finished: list[list[Written]] = [[] for _ in rows]
        passes = [0] * len(rows)
        live = list(rows)  # S sentences
        # 1. One hypothesis per sentence: z start symbols, score 0.
        start = order.start(self.bos, rules.start)
        inputs = np.array([start] * len(live))  # (S·W)×z
        scores = np.zeros((len(live), 1))  # S×W
        steps: list[Step] = []
        texts: list[list[int]] = [[] for _ in live]  # S·W
        written = 0  # t
        while live:
            # 2. One pass predicts the words of all z slots, independently of each other.
            width = scores.shape[1]
            hidden = self.scorer.step(inputs, mask=self._mask(written))
            repeated = [row for row in live for _ in range(width)]
            at = rules.at(repeated, [written] * len(repeated), behind=[[text] for text in texts])
            choices = self.scorer.best(hidden, at, self.count)  # (S·W)×z×N
            best = Best(*(part.reshape(len(live), width, *part.shape[1:]) for part in choices))
            step = self.extend(best, scores.astype(best.scores.dtype))
            written += z
            # 3. Ended hypotheses leave the beam.
            ended, alive = self._with_runners_up(step, best)
            most = np.where(np.isfinite(alive.totals), alive.totals, -np.inf).max(axis=1)
            for row in live:
                passes[row.index] += 1
            for s, hypos in _ended(ended, steps, rules.eos).items():
                self.results.add(finished[live[s].index], hypos, beam)
            # 4. The others are the next beam; finished sentences leave the batch.
            stay = [
                s
                for s, row in enumerate(live)
                if written <= row.limit
                and most[s] > -np.inf
                and self.results.goes_on(
                    finished[row.index], beam, float(most[s]), (written + 1, row.limit + 1)
                )
            ]
            if not stay:
                break
            steps.append(Step(*(part[stay] for part in alive)))
            index = (steps[-1].parents + width * steps[-1].places[:, None]).ravel().tolist()
            scores, inputs = steps[-1].totals, steps[-1].words.reshape(-1, z)
            texts = [[*texts[i], *words] for i, words in zip(index, inputs.tolist(), strict=True)]
            self.scorer.keep([written] * (len(live) * width))
            if index != list(range(len(live) * width)):
                same = len(stay) == len(live) and scores.shape[1] == width
                self.scorer.reorder(index, same_source=same)
            live = [live[s] for s in stay]
        return finished, passes

    @property
    def _at_once(self) -> bool:
        """Whether the native library does all steps in one call."""
        scorer, order = self.scorer, self.results.order
        writes = isinstance(scorer, ChunkScorer) and scorer.writes(scorer.projection)
        alike = not (order.vanilla_mask or order.independent_directions)
        return writes and alike and not (self.results.record_tokens or self.results.settled)

    def _search(
        self, rows: Sequence[Row], rules: TokenRules
    ) -> tuple[list[list[Written]], list[int]]:
        """Search in one call; see ``run``."""
        assert isinstance(self.scorer, ChunkScorer)
        order = self.results.order
        starts = order.start(self.bos, rules.start)
        how = Searching(
            starts, self.beam_size, self.count, self.results.divisor, pairs=order.double_token
        )
        if (asked := rules.as_ctranslate2) is not None:
            early = asked.hypotheses if self.results.len_penalty == 0 else 0
            how = how._replace(early=early, enough=asked.enough)
        searched = self.scorer.search(rules.at(rows), how)
        return list(map(hypotheses_of, searched)), [sentence.passes for sentence in searched]

    def _mask(self, written: int) -> Mask:
        """Return the mask of the step that begins at slot ``written``, for StepScorer.step."""
        order = self.results.order
        if not order.vanilla_mask and not order.independent_directions:
            return "all"
        return order.step_mask(written + order.tokens_per_step)[written:]

    def _with_runners_up(self, step: Extension, best: Best) -> list[Step]:
        """Return candidates as steps; ``others`` only for a trace."""
        from_best: list[np.ndarray] = []
        if self.results.record_tokens:
            from_best = [part[..., :2] for part in best[:2]]
        steps = []
        for totals, parents, words, scores in step:
            others = np.zeros((*words.shape, 2 if from_best else 0))
            if from_best:
                (first, second), values = (
                    np.moveaxis(np.take_along_axis(part, parents[:, :, None, None], axis=1), -1, 0)
                    for part in from_best
                )
                others[..., 0] = np.where(first == words, second, first)
                others[..., 1] = np.where(first == words, values[1], values[0])
            steps.append(Step(words, scores, others, totals, parents, np.arange(len(words))))
        return steps


def refuse_other_rules(rules: TokenRules) -> None:
    """Refuse CTranslate2's rules where a beam knows fairseq's alone.

    Raises:
        UsageError: they are asked for.
    """
    if rules.as_ctranslate2 is not None:
        allowed = "None, or --decoding multiword_beam by native passes, without a trace"
        raise option_error("Batch: as_ctranslate2", rules.as_ctranslate2, allowed)


def hypotheses_of(searched: Searched) -> list[Written]:
    """Return what the native library has found for a sentence."""
    each = zip(searched.totals, searched.words, searched.scores, strict=True)
    return [Written(total, words[:-1], scores, []) for total, words, scores in each]


def _ended(ended: Step, before: Sequence[Step], eos: int) -> dict[int, list[Written]]:
    """Return the ended hypotheses of each sentence; what follows the first ``</s>`` is dropped."""
    place, parent = where = np.nonzero(np.isfinite(ended.totals))
    hypotheses: dict[int, list[Written]] = {}
    if not len(place):
        return hypotheses
    texts: list[list[np.ndarray]] = [[], [], []]  # words, scores, others, from the last step on
    sentences = place.tolist()
    for step in (ended, *reversed(before)):
        for text, part in zip(texts, step[:3], strict=True):
            text.append(part[place, parent])
        place, parent = step.places[place], step.parents[place, parent]
    words, scores, others = (np.concatenate(text[::-1], axis=1).tolist() for text in texts)
    last = len(words[0]) - ended.words.shape[2]
    for h, (s, total) in enumerate(zip(sentences, ended.totals[where].tolist(), strict=True)):
        n = words[h].index(eos, last)
        pairs = [(int(pair[0]), pair[1]) for pair in others[h][: n + 1] if pair]
        hypotheses.setdefault(s, []).append(Written(total, words[h][:n], scores[h][: n + 1], pairs))
    return hypotheses
