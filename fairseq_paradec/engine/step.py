"""StepScorer: ChunkScorer for models that write several tokens per step in another order."""

from typing import Any

from .chunk import ChunkScorer


class StepScorer(ChunkScorer):
    """The decoder of a reordered or a stock Transformer, one step per pass."""

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are not stock ones."""
        from .torch.known import refuse_unknown

        if hasattr(model, "target_order"):
            positions = type(model.decoder.embed_positions)
            refuse_unknown(model, [type(model.decoder)], [positions])
        else:
            ChunkScorer._refuse_unknown(model)
