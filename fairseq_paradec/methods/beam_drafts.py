"""Beam search with drafts: ``--decoding self_draft --beam N`` and ``assisted --beam N``.

The output is that of fairseq's ``--beam N``: n-best lists, order and scores. See
``decoding/beam_drafts.py`` for the algorithm, and docs/beam-drafts.md for its proof.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..batch import Numbers
from ..config import DecodingConfig
from ..decoding.beam import Extension, hypotheses_of, refuse_other_rules
from ..decoding.beam_drafts import DraftedBeamSearch, Reader, Round
from ..decoding.beam_output import Results, Written
from ..decoding.depth import Costs, Depths
from ..engine.chunk import ChunkScorer
from ..engine.native.beam import Searching
from ..errors import excludes, nan_error, option_error
from ..model_checks import attends_locally
from ..records import PassRecord, PassTokens
from ..row import Row
from ..target_order import TargetOrder
from ..token_rules import Best, Positions, TokenRules
from .assisted import AssistedDecoder
from .base import Context
from .multiword_beam import extend
from .self_draft import SelfDraftDecoder

#: Depths of the drafts whose searches are timed, and how often each is.
FEW, MANY, TIMES = 2, 10, 2


class BeamAssistedDecoder(AssistedDecoder):
    """``--decoding assisted --beam N``, for N above 1; a given ``block_size`` is the drafts' depth.

    Attributes:
        depths: choose the depth of native searches; None: it is given.

    Raises:
        UsageError: the model's attention is local, or the shortlist has too few words for the beam.
    """

    def __init__(self, models: Sequence[Any], config: DecodingConfig, context: Context) -> None:
        super().__init__(models, config, context)
        if attends_locally(models[0]):
            raise excludes("--beam", config.beam, "a model whose attention is local")
        size = config.drafter_shortlist
        if size is not None and size <= self.beam_size:
            raise option_error("--drafter-shortlist", size, f"more than --beam ({self.beam_size})")
        name = f"{config.decoding} --beam {self.beam_size}"
        given = config.is_given("block_size")
        self.depths = None if given else Depths(name)

    def _prepare(self, rows: Sequence[Row], source: Numbers, rules: TokenRules) -> Any:
        """Move the drafter to the model's device."""
        self.block_sizes(rows)

    def _decode(
        self, source: Numbers, rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Encode and search."""
        refuse_other_rules(rules)
        depth = self._encode_for(source, rows, rules)
        order, config = TargetOrder(), self.config
        results = Results(
            order, self.eos, not config.unnormalized, config.lenpen, None, self.record_tokens
        )
        finished, rounds = self._search(rows, rules, results, depth)
        if not all(finished):
            raise nan_error("--path", self.models)
        passes = [*map(len, rounds)]
        hypos = results.fill(rows, finished, passes, self.beam_size)
        for row, some, of_row in zip(rows, finished, rounds, strict=True):
            best = max(some, key=results.rank)
            row.passes = _records(of_row, best, self.eos, self.record_tokens)
        return hypos

    def _encode_for(self, source: Numbers, rows: Sequence[Row], rules: TokenRules) -> int:
        """Encode, and return the depth of the drafts; 0: the plain search is to run, natively.

        The depth is chosen by cost where the search is native.
        """
        depths, count = self.depths, len(rows)
        if depths is not None and depths.knows(count) and not self.record_tokens:
            depth = depths.choose(count)
            if depth == 0:  # a drafter with an encoder of its own has nothing to encode
                self.scorer.encode(source)
                if self._is_native():
                    return 0
        self._encode(source)
        if depths is None or not self._is_native(rules):
            return self.config.block_size
        if not depths.knows(count):
            depths.learn(count, self._measure(rows, rules))
        return depths.choose(count)

    def _is_native(self, rules: TokenRules | None = None) -> bool:
        """Return whether a search is one native call; with rules, a search with drafts."""
        scorer, drafter = self.scorer, self.draft_scorer
        if not isinstance(scorer, ChunkScorer) or self.record_tokens:
            return False
        drafts = rules is None or drafter.writes(self.projection.part(drafter.projection, rules))
        return drafts and scorer.writes(scorer.projection)

    def _measure(self, rows: Sequence[Row], rules: TokenRules) -> Costs:
        """Time searches of this batch, whose encoders have run; count what their drafts keep.

        By this thread's CPU time: on a machine that others use too, a longer call is interrupted
        where a short one is not.
        """
        seconds: dict[int, float] = {}
        passes: dict[int, list[Round]] = {}
        for _ in range(TIMES):
            for depth in (0, FEW, MANY):
                begin = time.thread_time()
                _, rounds = self._search_at_once(rows, rules, depth)
                taken = time.thread_time() - begin
                seconds[depth] = min(taken, seconds.get(depth, taken))
                longest = max(rounds, key=len)  # a batch takes as many passes as this sentence
                passes[depth] = longest
        few, many = (
            (
                sum(round_.depth for round_ in passes[d]) / len(passes[d]),
                seconds[d] / len(passes[d]),
            )
            for d in (FEW, MANY)
        )
        return Costs(seconds[0] / len(passes[0]), few, many)

    def _search_at_once(
        self, rows: Sequence[Row], rules: TokenRules, depth: int
    ) -> tuple[list[list[Written]], list[list[Round]]]:
        """Search in one native call; depth 0: without drafts."""
        scorer, drafter = self.scorer, self.draft_scorer
        assert isinstance(scorer, ChunkScorer)
        how = Searching([rules.start], self.beam_size, min(self.beam_size + 1, len(self.words)))
        if depth == 0:
            plain = scorer.search(rules.at(rows), how)
            return list(map(hypotheses_of, plain)), [
                [Round(i, 0, 1, self.beam_size if i else 1) for i in range(sentence.passes)]
                for sentence in plain
            ]
        part = self.projection.part(drafter.projection, rules)
        searched, facts = scorer.search_drafts(drafter, part, rules.at(rows), how, depth)
        rounds = [[Round(a, b, c, d) for a, b, c, d in each] for each in facts]
        if self.depths is not None:
            self.depths.observe((round_.depth, round_.steps) for each in rounds for round_ in each)
        return list(map(hypotheses_of, searched)), rounds

    def _search(
        self, rows: Sequence[Row], rules: TokenRules, results: Results, depth: int
    ) -> tuple[list[list[Written]], list[list[Round]]]:
        """Search: natively in one call, where nothing is traced. See DraftedBeamSearch.run."""
        if depth == 0 or self._is_native(rules):
            begin = time.thread_time()
            hypotheses, rounds = self._search_at_once(rows, rules, depth)
            if self.depths is not None:
                taken = time.thread_time() - begin
                steps = max(sum(round_.steps for round_ in each) for each in rounds)
                self.depths.took(len(rows), depth, taken, steps)
            return hypotheses, rounds
        part = self.projection.part(self.draft_scorer.projection, rules)
        count = min(self.beam_size + 1, len(self.words))

        def best(hidden: Any, at: Positions) -> Best:
            return self.scorer.best(hidden, at, count)

        def guesses(hidden: Any, at: Positions) -> Best:
            return part.best(part.read(hidden), at, count)

        def step(best: Best, scores: np.ndarray) -> Extension:
            return extend(best, scores, self.eos, self.beam_size, self.scorer.native)

        search = DraftedBeamSearch(
            Reader(self.scorer, best, rules, len(rows)),
            Reader(self.draft_scorer, guesses, rules, len(rows)),
            self.draft_scorer.joined,
            depth,
            self.beam_size,
            step,
            results.rank,
            rules,
        )
        return search.run(rows)


class BeamSelfDraftDecoder(BeamAssistedDecoder, SelfDraftDecoder):
    """``--decoding self_draft --beam N``, for N above 1."""


def _records(rounds: Sequence[Round], best: Written, eos: int, traced: bool) -> list[PassRecord]:
    """Return the passes of a sentence as its best hypothesis has them.

    Args:
        rounds: of the sentence.
        best: the hypothesis.
        eos: ``</s>``.
        traced: keep each pass's tokens. Those that were drafted are the hypothesis' own; others of
            the tree are not among them.
    """
    words, records = [*best.words, eos], []
    for start, depth, steps, nodes, tree in rounds:
        begin, end = min(start, len(words)), min(start + steps, len(words))
        kept = max(0, end - begin - 1)
        record = PassRecord(begin, depth, kept, end - begin, num_nodes=nodes)
        records.append(record)
        if traced:
            record.tree = tree
            here, drafted = slice(begin, end), slice(begin, begin + kept)
            scores, others = best.word_scores, best.runners_up[here]
            possible = [math.isfinite(score) for _, score in others]
            record.tokens = PassTokens(
                words[drafted],
                words[here],
                scores[here],
                [o if ok else None for (o, _), ok in zip(others, possible, strict=True)],
                [s if ok else None for (_, s), ok in zip(others, possible, strict=True)],
                scores[drafted],
                best.ranks[drafted],
            )
    return records
