"""fairseq's own beam search as a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...decoding.row import Row
from ...decoding.token_rules import TokenRules
from ...records import PassRecord


class StockBeam:
    """fairseq's own search with the interface of a candidate.

    Args:
        generator: fairseq's SequenceGenerator.
        models: its models.
    """

    def __init__(self, generator: Any, models: Any) -> None:
        self.generator, self.models = generator, models

    def _prepare(self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules) -> Any:
        """Return None; the search needs no preparation."""

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Search; each row gets the best hypothesis, and one pass per token."""
        prefix = None
        if rules.forced_len > 0:
            prefix = torch.tensor([row.prefix for row in rows], device=rules.device)
        batch_hypos: list[list[dict[str, Any]]] = self.generator.generate(
            list(self.models), {"net_input": net_input}, prefix_tokens=prefix, bos_token=rules.start
        )
        for row, hypos in zip(rows, batch_hypos, strict=True):
            row.tokens = hypos[0]["tokens"].tolist()
            row.scores = hypos[0]["positional_scores"].tolist()
            row.passes = [PassRecord(i, 0, 0, 1) for i in range(len(row.tokens))]
            row.finished = True
            for hypo in hypos:
                hypo |= {"steps": len(hypo["tokens"]), "history": []}
        return batch_hypos
