"""Beam search with drafts: ``--decoding self_draft --beam N`` and ``assisted --beam N``.

The output is that of fairseq's ``--beam N``: n-best lists, order and scores. See
``decoding/beam_drafts.py`` for the algorithm, and docs/beam-drafts.md for its proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..decoding.beam import Extension
from ..decoding.beam_drafts import DraftedBeamSearch, Reader, Round
from ..decoding.row import Row
from ..decoding.token_rules import Best, Positions, TokenRules
from ..decoding.written import Results
from ..errors import nan_error
from ..records import PassRecord
from ..target_order import TargetOrder
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
        search = self._search(rows, rules, results)
        finished, rounds = search.run(rows)
        if not all(finished):
            raise nan_error("--path", self.models)
        hypos = []
        for row in rows:
            passes = rounds[row.index]
            hypos.append(results.fill(row, finished[row.index], len(passes), rules.device))
            row.passes = _records(passes, len(row.tokens))
        return hypos

    def _search(
        self, rows: Sequence[Row], rules: TokenRules, results: Results
    ) -> DraftedBeamSearch:
        """Return the search for one batch."""
        count = min(self.beam_size + 1, len(self.words))
        part = self.projection.part(self.draft_scorer.projection, rules)

        def best(hidden: Any, at: Positions) -> Best:
            return self.scorer.best(hidden, at, count)

        def guesses(hidden: Any, at: Positions) -> Best:
            return part.best(part.read(hidden), at, count)

        def step(best: Best, scores: Tensor) -> Extension:
            return extend(best, scores, self.eos, self.beam_size, self.scorer.native)

        return DraftedBeamSearch(
            Reader(self.scorer, best, rules, len(rows)),
            Reader(self.draft_scorer, guesses, rules, len(rows)),
            self.draft_scorer.joined,
            self.config.block_size,
            self.beam_size,
            step,
            results.rank,
            rules,
        )


class BeamSelfDraftDecoder(BeamAssistedDecoder, SelfDraftDecoder):
    """``--decoding self_draft --beam N``, for N above 1."""


def _records(rounds: Sequence[Round], length: int) -> list[PassRecord]:
    """Return the passes of a sentence as its best hypothesis has them, of this length."""
    records = []
    for start, depth, steps, nodes in rounds:
        begin, end = min(start, length), min(start + steps, length)
        records.append(
            PassRecord(begin, depth, max(0, end - begin - 1), end - begin, num_nodes=nodes)
        )
    return records
