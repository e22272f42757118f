"""fairseq's own beam search as a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...decoding.row import Row
from ...decoding.token_rules import TokenRules
from ...decoding.trace import PassRecord


class StockBeam:
    """fairseq's own search, called as a candidate.

    Args:
        generator: fairseq's.
        models: what it decodes.
    """

    def __init__(self, generator: Any, models: Any) -> None:
        self.generator, self.models = generator, models

    def _prepare(self, rows: Sequence[Row], net_input: dict[str, Tensor], rules: TokenRules) -> Any:
        """Make nothing."""

    def _decode(
        self, net_input: dict[str, Tensor], rows: Sequence[Row], rules: TokenRules, prepared: Any
    ) -> list[list[dict[str, Any]]]:
        """Search; the rows get the best hypothesis, and a pass for each of its tokens."""
        prefix = None
        if rules.forced_len > 0:
            prefix = torch.tensor([row.prefix for row in rows], device=rules.device)
        found: list[list[dict[str, Any]]] = self.generator.generate(
            list(self.models), {"net_input": net_input}, prefix_tokens=prefix, bos_token=rules.start
        )
        for row, hypos in zip(rows, found, strict=True):
            row.tokens = hypos[0]["tokens"].tolist()
            row.scores = hypos[0]["positional_scores"].tolist()
            row.passes = [PassRecord(i, 0, 0, 1) for i in range(len(row.tokens))]
            row.finished = True
            for hypo in hypos:
                hypo |= {"steps": len(hypo["tokens"]), "history": []}
        return found
