"""StepScorer: ChunkScorer for models that write several tokens a step, in an order of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...target_order import TargetOrder
from .chunk import ChunkScorer
from .weights import refuse_unknown


def order_of(model: Any) -> TargetOrder:
    """Return the order in which a model writes; that of a plain Transformer is left to right."""
    order: TargetOrder = getattr(model, "target_order", TargetOrder())
    return order


class StepScorer(ChunkScorer):
    """The decoder of a reordered or a plain Transformer, a step at a time.

    Args:
        model: a ReorderedTransformer or a stock fairseq Transformer, in evaluation mode.
    """

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are not stock ones."""
        if hasattr(model, "target_order"):
            positions = type(model.decoder.embed_positions)
            refuse_unknown(model, [type(model.decoder)], [positions])
        else:
            ChunkScorer._refuse_unknown(model)

    def _position_table(self, size: int) -> Tensor | None:
        """Vectors of the slots' inputs: at least ``size`` of them, or all that exist."""
        module = self.decoder.embed_positions
        if not hasattr(module, "table"):
            return super()._position_table(size)
        table: Tensor = module.table(size).detach()
        return table.to(self.decoder.embed_tokens.weight)
