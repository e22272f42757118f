"""NativePasses: a model's passes by the native library, as ChunkScorer calls them."""

from typing import Any

import numpy as np

from ...batch import Numbers
from ...model.model import HeadWeights, Model
from ..masks import Mask
from .cache import NativeCache
from .packing import Packed, packed_heads
from .passes import native_attention, native_pass
from .projection import NativeProjection
from .stack import ACTIVATIONS


class NativePasses:
    """A packed model; arrays in, arrays out.

    Args:
        model: the model.
        packed: it, as native passes read it.
        module: fairseq's, of which the model is a view; it runs an encoder, heads or an adaptive
            softmax that the library does not know. None: it was read from a file.
    """

    native = True

    def __init__(self, model: Model, packed: Packed, module: Any = None) -> None:
        self.model, self.module = model, module
        self.weights, self._encoder = packed.decoder, packed.encoder
        first = None
        if model.architecture.heads is not None and model.architecture.heads.first:
            first = self.heads(model.block_heads if module is None else module.block_heads, "fp32")
        self.projection: Any
        if self.weights.projection is None:  # an adaptive softmax
            from ..torch.projection import gather_projection

            self.projection = gather_projection(module, "plain")
        else:
            self.projection = NativeProjection(self.weights.projection, first, model)

    @property
    def max_positions(self) -> int:
        """How many tokens the decoder has positions for."""
        return self.model.max_decoder_positions()

    def gather(self) -> None:
        """Do nothing: the weights are packed."""

    def encode(self, source: Numbers) -> dict[str, Any]:
        """Run the encoder; its output has fairseq's layout."""
        if self._encoder is not None:
            return self._encoder(source)
        from ..torch.encoder import encode_by

        return encode_by(self.module.encoder, source)

    def states(self, encoder_out: dict[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the states of an encoder's output, B×S×C, and where padding is, B×S, or None.

        They may be another scorer's, tensors of any dtype.
        """
        states = encoder_out["encoder_out"][0].swapaxes(0, 1)
        padding = [*encoder_out["encoder_padding_mask"], None][0]
        if not isinstance(states, np.ndarray):
            states = states.detach().float().numpy(force=True)
        return states, None if padding is None else np.asarray(padding)

    def new_cache(self, encoder_out: dict[str, Any]) -> NativeCache:
        """Make keys and values of the source, and an empty cache."""
        return NativeCache(self.weights, *self.states(encoder_out))

    def step(self, cache: NativeCache, tokens: np.ndarray, mask: Mask) -> np.ndarray:
        """Run the decoder over one chunk and cache it; see ChunkScorer."""
        return native_pass(self.weights, cache, np.asarray(tokens), mask)

    def attention(
        self, cache: NativeCache, tokens: np.ndarray, layer: int, heads: int
    ) -> np.ndarray:
        """Return where tokens look in the source; see ``native_attention``."""
        return native_attention(self.weights, cache, tokens, layer, heads)

    def embed(self, tokens: np.ndarray) -> np.ndarray:
        """Return the scaled embeddings of tokens, ... -> ...×E, without positions."""
        scale = np.float32(self.model.layers("decoder").scale)
        vectors: np.ndarray = scale * self.model.weight("decoder.embed_tokens.weight")[tokens]
        return vectors

    def heads(self, given: Any, dtype: str | None = None) -> Any:
        """Return prediction heads for the outputs of ``step``; see ChunkScorer."""
        form = dtype or self.weights.stack.form
        if isinstance(given, HeadWeights):
            if given.record.activation in ACTIVATIONS:
                return packed_heads(given, form)
            raise KeyError(given.record.activation)
        from ..torch.views import pack_heads

        return pack_heads(given, form)
