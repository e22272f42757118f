"""Greedy search, one token a pass: the yardstick of every other method, on the same scorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..decoding.loop import Proposal
from ..decoding.row import Row
from ..decoding.token_rules import TokenRules
from .base import ParallelGenerator


class GreedyDrafter:
    """Drafts nothing, so that each pass commits the verifier's own next token."""

    def propose(self, rows: Sequence[Row]) -> Proposal:
        """Propose no tokens, and one row of the chunk for each sentence."""
        return Proposal([[] for _ in rows], [1] * len(rows))

    def observe(
        self, rows: Sequence[Row], choices: list[list[int]], num_accepted: list[int], hidden: Any
    ) -> None:
        """Learn nothing."""


class GreedyGenerator(ParallelGenerator):
    """``--decoding greedy``: what fairseq's ``--beam 1`` does, on the lean scorer."""

    def make_drafter(
        self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules
    ) -> GreedyDrafter:
        """Return a drafter that drafts nothing."""
        return GreedyDrafter()
