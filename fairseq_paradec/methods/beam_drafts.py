"""Beam search with drafts: ``--decoding self_draft --beam N`` and ``assisted --beam N``.

The output is that of fairseq's ``--beam N``: n-best lists, order and scores. See
``decoding/beam_drafts.py`` for the algorithm, and docs/beam-drafts.md for its proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..decoding.beam import Extension, hypotheses_of
from ..decoding.beam_drafts import DraftedBeamSearch, Reader, Round
from ..decoding.written import Results, Written
from ..engine.chunk import ChunkScorer
from ..errors import nan_error
from ..records import PassRecord, PassTokens
from ..row import Row
from ..target_order import TargetOrder
from ..token_rules import Best, Positions, TokenRules
from .assisted import AssistedDecoder
from .multiword_beam import extend
from .self_draft import SelfDraftDecoder


class BeamAssistedDecoder(AssistedDecoder):
    """``--decoding assisted --beam N``, for N above 1."""

    def _prepare(self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules) -> Any:
        """Move the drafter to the model's device."""
        self.block_sizes(rows)

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Encode and search."""
        self._encode(net_input)
        order, config = TargetOrder(), self.config
        results = Results(
            order, self.eos, not config.unnormalized, config.lenpen, None, self.record_tokens
        )
        finished, rounds = self._search(rows, rules, results)
        if not all(finished):
            raise nan_error("--path", self.models)
        hypos = []
        for row in rows:
            passes = rounds[row.index]
            some = finished[row.index]
            hypos.append(results.fill(row, some, len(passes), rules.device))
            best = max(some, key=results.rank)
            row.passes = _records(passes, best, self.eos, self.record_tokens)
        return hypos

    def _search(
        self, rows: Sequence[Row], rules: TokenRules, results: Results
    ) -> tuple[list[list[Written]], list[list[Round]]]:
        """Search: natively in one call, where nothing is traced. See DraftedBeamSearch.run."""
        count = min(self.beam_size + 1, len(self.words))
        part = self.projection.part(self.draft_scorer.projection, rules)
        scorer, drafter, depth = self.scorer, self.draft_scorer, self.config.block_size
        if (
            isinstance(scorer, ChunkScorer)
            and scorer.writes(scorer.projection)
            and drafter.writes(part)
            and not self.record_tokens
        ):
            found, rounds = scorer.search_drafts(
                drafter, part, rules.at(rows), rules.start, self.beam_size, count, depth
            )
            return list(map(hypotheses_of, found)), [
                [Round(a, b, c, d) for a, b, c, d in each] for each in rounds
            ]

        def best(hidden: Any, at: Positions) -> Best:
            return self.scorer.best(hidden, at, count)

        def guesses(hidden: Any, at: Positions) -> Best:
            return part.best(part.read(hidden), at, count)

        def step(best: Best, scores: Tensor) -> Extension:
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
