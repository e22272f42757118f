"""ChunkScorer: a fairseq Transformer's decoder, run over chunks of tokens against a cache.

It takes the weights of a stock fairseq Transformer and scores, in one pass, K tokens per row whose
predecessors are cached. Rows of a batch may have cached different numbers of tokens, and each rolls
back to its own length. Every method of this package runs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .cache import Cache
from .compiled import warn_plain
from .compiled_pass import CompiledPass
from .decoder_pass import DecoderWeights, decoder_pass, source_keys
from .encoder import lean_encoder
from .gather import gather_decoder
from .known import refuse_unknown
from .masks import Mask
from .projection import gather_projection
from .settings import Engine
from .weights import Form, compiles

PLAIN = Engine()


class ChunkScorer:
    """The decoder of one fairseq Transformer over chunks of K tokens against a cache.

    Usage: ``encode`` once per batch; then ``step`` scores a chunk, ``keep`` says how many tokens of
    each row stay cached, ``reorder`` picks rows. While a model is still being trained its weights
    change between calls, so they are gathered anew by every ``encode``; a model prepared for
    inference is gathered once, and must not be changed after that. A scorer holds one batch's
    cache: threads need one each.

    Args:
        model: a stock fairseq Transformer in evaluation mode.
        engine: how to compute; by default in the model's dtype, not compiled.

    Raises:
        UsageError: the model is not one that this class knows.

    Attributes:
        model: in the engine's dtype.
        weights: the decoder's, as of the last ``encode`` or ``start``.
        projection: the same of its projection.
        cache: of the batch.
        encoder_out: of the batch, laid out as fairseq's.
    """

    weights: DecoderWeights
    cache: Cache

    def __init__(self, model: Any, engine: Engine = PLAIN) -> None:
        self._refuse_unknown(model)
        self.engine = engine
        self.given = model
        self.model = engine.model(model)
        self.decoder = self.model.decoder
        self._gathered_from: tuple[torch.dtype, torch.device, bool] | None = None
        self._encoder = lean_encoder(self.model)
        self._pass = decoder_pass
        if engine.compile:
            self._pass = CompiledPass(type(self.decoder).__name__, engine.compiling)

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for a model that this class would decode wrongly."""
        if hasattr(model, "block_heads"):  # a stock decoder with heads on its output
            refuse_unknown(model, [type(model.decoder)])
        else:
            refuse_unknown(model)

    @property
    def compiled(self) -> bool:
        """Whether a pass of this batch ran as torch.compile made it."""
        return hasattr(self, "cache") and self.cache.compiled

    # ---- weights -------------------------------------------------------------------------------

    def _gather_weights(self) -> None:
        """Put the weights into the form that a pass wants, where that is not done yet."""
        weight = self.given.decoder.embed_tokens.weight
        lasting = getattr(self.given, "_is_generation_fast", False)
        kind = (weight.dtype, weight.device, lasting)
        if self._gathered_from == kind and lasting:
            return
        self._gathered_from = kind
        if self.model is not self.given:
            # Not by fairseq's own method, which upgrades checkpoints and asks for their options.
            nn.Module.load_state_dict(self.model.to(weight.device), self.given.state_dict())
        weight = self.decoder.embed_tokens.weight
        read = sum(p.numel() for p in self.decoder.parameters())
        form = self.engine.form(weight.dtype, weight.device, lasting, read)
        if self.engine.compile and not compiles(form, weight.dtype, 2):
            few = compiles(form, weight.dtype, 1)
            warn_plain(form, "passes over more than one token" if few else "passes")
        if self._encoder is not None:
            self._encoder.gather(form)
        self.weights = self._gather(form)
        self.projection = gather_projection(self.model, form)

    def _gather(self, form: Form) -> DecoderWeights:
        """Take the decoder's weights."""
        return gather_decoder(self.decoder, form)

    # ---- one batch -----------------------------------------------------------------------------

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder and forget what was cached.

        Args:
            net_input: fairseq's, with ``src_tokens`` B×S and ``src_lengths`` B.
        """
        self._gather_weights()
        self._start(self._encode(net_input))

    def _encode(self, net_input: dict[str, Tensor]) -> dict[str, Any]:
        """Run the encoder; its output is laid out as fairseq's."""
        if self._encoder is None:
            out: dict[str, Any] = self.model.encoder.forward_torchscript(net_input)
            return out
        return self._encoder(net_input)

    def start(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output, as fairseq's encoders give it, and forget what was cached."""
        self._gather_weights()
        self._start(encoder_out)

    def _start(self, encoder_out: dict[str, Any]) -> None:
        """Make keys and values of the source, and an empty cache."""
        self.encoder_out = encoder_out
        states = encoder_out["encoder_out"][0].transpose(0, 1)  # B×S×C
        padding = encoder_out["encoder_padding_mask"]
        keys = source_keys(self.weights, states)
        self.cache = self._new_cache(keys, padding[0] if len(padding) > 0 else None)

    def _new_cache(self, source: Tensor, padding: Tensor | None) -> Cache:
        """Make an empty cache; see Cache."""
        return Cache(source, padding)

    def step(self, tokens: Tensor, mask: Mask = "causal") -> Tensor:
        """Run the decoder over one chunk and cache it.

        Args:
            tokens: B×K decoder inputs; see ``decoder_pass``.
            mask: who sees whom; see ``masks``.

        Returns:
            B×K×D hidden states, ready for ``log_probs``.
        """
        return self._pass(self.weights, self.cache, tokens, mask)

    def log_probs(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the next token, B×K×D -> B×K×V; see Projection.log_probs."""
        return self.projection.log_probs(hidden, temperature)

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.cache.keep(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows; see Cache.reorder."""
        self.cache.reorder(index, same_source)
