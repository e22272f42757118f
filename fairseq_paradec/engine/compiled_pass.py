"""The decoder's pass, compiled by torch.compile, for batches of one sentence."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import Cache
from .compiled import Compiled, Compiling, chunk_bucket, source_bucket
from .decoder_pass import DecoderWeights, decoder_pass, embed, finish, run_layer
from .layers import Written
from .masks import Mask, Tree, attention_bias, bias_over_slots
from .weights import compiles


class CompiledPass:
    """``decoder_pass``, compiled for one row and some chunk lengths; others run uncompiled.

    Args:
        name: the model's name in the log.
        compiling: records the time of compilation.
    """

    def __init__(self, name: str, compiling: Compiling) -> None:
        self.run = Compiled(name, self._pass, compiling)

    def __call__(
        self, weights: DecoderWeights, cache: Cache, tokens: Tensor, mask: Mask = "causal"
    ) -> Tensor:
        """Run the decoder over one chunk per row; see ``decoder_pass``."""
        filled = chunk_bucket(tokens.size(1))
        if (
            filled is None
            or tokens.size(0) > 1
            or isinstance(mask, Tree)
            or not compiles(weights.form, cache.keys.dtype, filled)
            or weights.copy_sharpness is not None  # embeddings depend on the source's length
            or torch.is_autocast_enabled(tokens.device.type)
        ):
            return decoder_pass(weights, cache, tokens, mask)
        # The compiled code reads these besides its arguments.
        self.weights, self.cache = weights, cache
        return self._filled_up(weights, cache, tokens, mask, filled)

    def _filled_up(
        self, weights: DecoderWeights, cache: Cache, tokens: Tensor, mask: Mask, filled: int
    ) -> Tensor:
        """Run the decoder over one row's chunk, padded to the bucket's length."""
        width, start = tokens.size(1), cache.lengths[0]
        cache.make_room(filled)
        cache.keys = cache.keys.contiguous()
        cache.pad_source(source_bucket(cache.source.size(4)))
        bias = None
        if isinstance(mask, Tensor) or mask != "causal":
            # The chunk's padding attends to everything, and no token attends to it.
            bias = cache.keys.new_zeros(filled, cache.capacity)
            seen = attention_bias(cache, cache.place(width), mask)
            if seen is not None:
                bias[:width, : start + width] = seen.view(width, start + width)
            bias[:, start + width :] = -math.inf
        key = (
            filled,
            *cache.keys.shape,
            cache.source.size(4),
            bias is None,
            weights.form,
            cache.keys.dtype,
            cache.keys.device.type,
        )
        first = torch.tensor([start], device=tokens.device)
        tokens = F.pad(tokens, (0, filled - width)).contiguous()
        x: Tensor = self.run(key, tokens, first, bias, cache.keys, cache.source, cache.source_bias)
        cache.compiled |= self.run.works
        return x[:, :width]

    def _pass(
        self,
        tokens: Tensor,
        first: Tensor,
        bias: Tensor | None,
        keys: Tensor,
        source: Tensor,
        source_bias: Tensor | None,
    ) -> Tensor:
        """Run the decoder over a chunk as a function of tensors, for torch.compile.

        Args:
            tokens: B×K.
            first: B, the first position of each row's chunk.
            bias: K×T, for self-attention; None: causal.
            keys: L×B×T×2×H×Dh, written to.
            source: L×2×B×H×S×Dh.
            source_bias: B×1×1×S, or None.

        Returns:
            B×K×D.
        """
        weights, cache = self.weights, self.cache
        positions = first[:, None] + torch.arange(tokens.size(1), device=tokens.device)  # B×K
        if bias is None:
            bias = bias_over_slots(cache, positions, keys)
        rows = torch.arange(tokens.size(0), device=tokens.device)[:, None]
        where = (rows, cache.slots(positions, keys.size(2)))
        x = embed(weights, tokens, positions)
        for index, layer in enumerate(weights.layers):
            written = Written(keys[index], where, keys.size(2))
            x = run_layer(layer, x, written, bias, source[index], source_bias)
        return finish(weights, x)
