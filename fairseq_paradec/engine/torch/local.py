"""LocalScorer: ChunkScorer for decoders with local attention, whose cache holds the window only.

Local attention is that of Parmar et al. (2018), section 3.3: a position attends to the positions
before it in its own block, and to a fixed number before the block. An image has thousands of
tokens, and each attends to a few hundred; older keys and values are overwritten.
"""

from typing import Any

import numpy as np
from torch import Tensor

from ..chunk import ChunkScorer
from ..masks import Mask
from ..settings import Engine
from .cache import WindowCache
from .known import refuse_unknown
from .scoring import TorchPasses


class LocalPasses(TorchPasses):
    """Passes of a decoder whose attention is local.

    Attributes:
        window: its ``first`` returns the first position that a position attends to.
        reach: the largest distance to a position that is attended to.
    """

    def __init__(self, module: Any, engine: Engine) -> None:
        super().__init__(module, engine)
        self.window = module.decoder.attention_window
        most = self.window.block - 1 + self.window.memory
        self.reach: int = min(most, module.decoder.max_positions() - 1)

    def _empty(self, source: Tensor, padding: Tensor | None) -> WindowCache:
        """Make an empty cache; see WindowCache."""
        return WindowCache(source, padding, self.window, self.reach)


class LocalScorer(ChunkScorer):
    """The decoder of one image Transformer over chunks of K tokens against a WindowCache.

    Args:
        model: an ImageTransformer, with heads or without, in evaluation mode; its decoder's
            ``attention_window.first`` returns the first position that a position attends to.
        engine: see ChunkScorer.

    Raises:
        UsageError: this class does not support the model.
    """

    def _torch_passes(self) -> LocalPasses:
        """Return torch's passes of the model; see ChunkScorer."""
        return LocalPasses(self.given, self.engine)

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for layers or embeddings that are neither stock nor local ones."""
        decoder = model.decoder
        attention = type(next(decoder.layers.children()).self_attn)
        # A class's own mark does not hold for its subclasses.
        decoders = [type(decoder)] if _is_known(type(decoder)) else ()
        positions = type(decoder.embed_positions)
        refuse_unknown(
            model,
            decoders,
            [positions] if _is_known(positions) else (),
            attention if _is_known(attention) else None,
        )

    def step(self, tokens: np.ndarray, mask: Mask = "causal") -> Any:
        """Run the decoder over one chunk and cache it; the window is the mask."""
        assert mask == "causal", "local attention has no other mask"
        return super().step(tokens)


def _is_known(kind: type) -> bool:
    """Return whether the class itself, not a parent, is marked as known to LocalScorer."""
    return "known_to_local_scorer" in vars(kind)
