"""LocalScorer: ChunkScorer for decoders with local attention, whose cache holds the window only.

Local attention is that of Parmar et al. (2018), section 3.3: a position sees those before it in its
own block, and so many before the block. An image has thousands of tokens and each sees a few
hundred: what nobody will see again is overwritten.
"""

from __future__ import annotations

from typing import Any

from fairseq.modules import MultiheadAttention
from torch import Tensor

from .cache import WindowCache
from .chunk import PLAIN, ChunkScorer
from .known import refuse_unknown
from .masks import Mask
from .settings import Engine


class LocalScorer(ChunkScorer):
    """The decoder of one image Transformer over chunks of K tokens against a WindowCache.

    Args:
        model: an ImageTransformer, with heads or without, in evaluation mode; its decoder says by
            ``attention_window.first`` from where on a position sees.
        engine: see ChunkScorer.

    Raises:
        UsageError: the model is not one that this class knows.
    """

    def __init__(self, model: Any, engine: Engine = PLAIN) -> None:
        super().__init__(model, engine)
        self.window = model.decoder.attention_window
        most = self.window.block - 1 + self.window.memory
        # How many positions before its own one sees at most.
        self.reach: int = min(most, model.decoder.max_positions() - 1)

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are neither stock nor known as local."""
        decoder = model.decoder
        attention = type(next(decoder.layers.children()).self_attn)
        # What a class says of itself does not hold for its subclasses.
        decoders = [type(decoder)] if _is_known(type(decoder)) else ()
        positions = type(decoder.embed_positions)
        refuse_unknown(
            model, decoders, [positions] if _is_known(positions) else (),
            attention if _is_known(attention) else MultiheadAttention,
        )  # fmt: skip

    def _new_cache(self, source: Tensor, padding: Tensor | None) -> WindowCache:
        """Make an empty cache; see WindowCache."""
        return WindowCache(source, padding, self.window, self.reach)

    def step(self, tokens: Tensor, mask: Mask = "causal") -> Tensor:
        """Run the decoder over one chunk and cache it; its mask is the window's."""
        assert mask == "causal"
        return super().step(tokens)


def _is_known(kind: type) -> bool:
    """Say whether a class itself, and no parent of it, says that LocalScorer knows it."""
    return "known_to_local_scorer" in vars(kind)
