"""ChunkScorer: a fairseq Transformer's decoder, run over chunks of tokens against a cache.

It takes the weights of a stock fairseq Transformer and scores, in one pass, K tokens per row whose
predecessors are cached. Rows of a batch may have cached different numbers of tokens, and each rolls
back to its own length. Every method of this package runs on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from .weights import Layer, best_form, gather_layer, gather_norm, join, refuse_unknown

# The first cache holds this many tokens; it doubles whenever a chunk does not fit.
INITIAL_CAPACITY = 32


class Scorer(Protocol):
    """What the decoding loop needs of a model: ChunkScorer, or several of them as an ensemble."""

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder and forget what was cached."""

    def step(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Any:
        """Run the decoder over one chunk, B×K, and cache it."""

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Tensor:
        """Return B×K×V log-probabilities of what ``step`` returned."""
        ...

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll each row back to its own length."""

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows."""


def build_scorer(models: Sequence[Any]) -> Scorer:
    """Make the scorer of one model, or of an ensemble.

    Raises:
        UsageError: a model is not a Transformer that ChunkScorer knows; it is named.
    """
    scorers = [ChunkScorer(model) for model in models]
    return scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers)


class ChunkScorer:
    """The decoder of one fairseq Transformer over chunks of K tokens against a cache.

    Usage: ``encode`` once per batch; then ``step`` scores a chunk, ``keep`` says how many tokens of
    each row stay cached, ``reorder`` picks rows. Slots of the cache are written in place at each
    row's own offset; rolling back is by length alone and moves nothing. While a model is still
    being trained its weights change between calls, so they are gathered anew by every ``encode``;
    a model prepared for inference is gathered once, and must not be changed after that. A scorer
    holds one batch's cache: threads need one each.

    Args:
        model: a stock fairseq Transformer in evaluation mode.

    Raises:
        UsageError: the model is not one that this class knows.
    """

    def __init__(self, model: Any) -> None:
        self._refuse_unknown(model)
        self.model = model
        self.decoder = model.decoder
        self.block_heads = getattr(model, "block_heads", None)
        self.lengths: list[int] = []
        self._gathered_from: tuple[torch.dtype, torch.device] | None = None

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for a model that this class would decode wrongly."""
        if hasattr(model, "block_heads"):  # a stock decoder with heads on its output
            refuse_unknown(model, [type(model.decoder)])
        else:
            refuse_unknown(model)

    # ---- weights -------------------------------------------------------------------------------

    def _gather_weights(self) -> None:
        """Put the decoder's weights into the form that a pass wants."""
        decoder = self.decoder
        weight = decoder.embed_tokens.weight
        kind = (weight.dtype, weight.device)
        if self._gathered_from == kind and getattr(self.model, "_is_generation_fast", False):
            return
        self._gathered_from = kind
        self._gather(kind)

    def _gather(self, kind: tuple[torch.dtype, torch.device]) -> None:
        """Gather them, in the model's dtype and on its device."""
        decoder = self.decoder
        lasting = getattr(self.model, "_is_generation_fast", False)
        form = best_form(*kind, lasting)
        self.layers = [gather_layer(layer, form) for layer in decoder.layers]
        self.heads = self.layers[0].heads
        self.head_dim = decoder.embed_dim // self.heads
        # All layers' cross-attention keys and values come from one product.
        attentions = [layer.encoder_attn for layer in decoder.layers]
        self.cross_kv = join([p for a in attentions for p in (a.k_proj, a.v_proj)])  # L·2·D×C
        projection = decoder.output_projection
        if type(projection) is nn.Linear:
            projection = join([projection], form)
        self.projection = projection  # D -> V; None with an adaptive softmax
        self.final_norm = None if decoder.layer_norm is None else gather_norm(decoder.layer_norm)
        self.positions = self._position_table(0)
        self.future = torch.empty(0, 0, dtype=kind[0], device=kind[1])

    def _position_table(self, size: int) -> Tensor | None:
        """Position vectors from position 0 on: at least ``size`` of them, or all that exist."""
        module = self.decoder.embed_positions
        if module is None:
            return None
        first, like = module.padding_idx + 1, self.decoder.embed_tokens.weight
        if not isinstance(module, SinusoidalPositionalEmbedding):
            return module.weight[first:].detach()
        if module.weights.size(0) < first + size:
            table = module.get_embedding(first + size, module.embedding_dim, module.padding_idx)
            return table.to(like)[first:]
        return module.weights[first:].to(like)

    # ---- one batch -----------------------------------------------------------------------------

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder and forget what was cached.

        Args:
            net_input: fairseq's, with ``src_tokens`` B×S and ``src_lengths`` B.
        """
        self.start(self.model.encoder.forward_torchscript(net_input))

    def start(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output, as fairseq's encoders give it, and forget what was cached."""
        self._gather_weights()
        self.encoder_out = encoder_out
        states = encoder_out["encoder_out"][0].transpose(0, 1)  # B×S×C
        batch, source = states.shape[:2]
        projected = self.cross_kv(states)  # B×S×(L·2·D)
        shape = (batch, source, len(self.layers), 2, self.heads, self.head_dim)
        self.cross = projected.view(shape).permute(2, 3, 0, 4, 1, 5).contiguous()  # L×2×B×H×S×Dh
        padding = encoder_out["encoder_padding_mask"]
        self.source_bias: Tensor | None = None
        if len(padding) > 0 and bool(padding[0].any()):
            blank = torch.zeros(batch, 1, 1, source, dtype=states.dtype, device=states.device)
            self.source_bias = blank.masked_fill_(padding[0][:, None, None], -math.inf)
        self.lengths = [0] * batch
        self.cache = self._empty_cache(batch, INITIAL_CAPACITY, states)

    def _empty_cache(self, batch: int, capacity: int, like: Tensor) -> Tensor:
        """Return a blank cache, L×B×T×2×H×Dh; zeros, for 0·NaN in a masked slot would be NaN."""
        shape = (len(self.layers), batch, capacity, 2, self.heads, self.head_dim)
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _make_room(self, end: int) -> None:
        """Make cache, causal mask and position table long enough for ``end`` tokens."""
        capacity = self.cache.size(2)
        if end > capacity:
            while capacity < end:
                capacity *= 2
            larger = self._empty_cache(self.cache.size(1), capacity, self.cache)
            larger[:, :, : self.cache.size(2)] = self.cache
            self.cache = larger
        if self.future.size(0) < capacity:
            full = self.future.new_full((capacity, capacity), -math.inf)
            self.future = torch.triu(full, 1)  # row i may see columns up to i
        if self.positions is not None and self.positions.size(0) < capacity:
            self.positions = self._position_table(capacity)

    def step(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Run the decoder over one chunk and cache it.

        Args:
            tokens: B×K decoder inputs. ``<pad>`` here is a token like any other: it is embedded
                (fairseq's is a zero vector), takes a position and is seen by later tokens.
            positions: B×K, 0-based; by default each row goes on from its cached length.
            mask: K×K or B×K×K, True where chunk row i may see chunk column j; by default causal.
                What is cached is seen by all. Where all rows have cached equally many tokens, it
                may be K×T, over cache and chunk, or K×1: all of both.

        Returns:
            B×K×D hidden states, ready for ``log_probs``.
        """
        batch, width = tokens.shape
        starts = self.lengths
        end = max(starts) + width
        self._make_room(end)
        ragged = min(starts) + width != end
        slots = None  # B×K: where each token goes in its row's cache
        if ragged:
            first = torch.tensor(starts, device=tokens.device)
            slots = first[:, None] + torch.arange(width, device=tokens.device)
        x = self._embed(tokens, positions, starts[0], slots)
        bias = self._self_bias(starts, slots, width, end, mask)
        rows = torch.arange(batch, device=tokens.device)[:, None] if ragged else None
        for index, layer in enumerate(self.layers):
            x = self._layer(index, layer, x, starts[0], end, rows, slots, bias)
        if self.final_norm is not None:
            x = self.final_norm(x)
        if self.decoder.project_out_dim is not None:
            x = self.decoder.project_out_dim(x)
        return x

    def _embed(
        self, tokens: Tensor, positions: Tensor | None, start: int, slots: Tensor | None
    ) -> Tensor:
        """Embed a chunk as fairseq's decoder does: scale, project, add positions, normalise."""
        decoder = self.decoder
        x = self._token_vectors(tokens)  # B×K×D
        if decoder.quant_noise is not None:
            x = decoder.quant_noise(x)
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        table = self.positions
        if table is not None:
            where = slots if positions is None else positions
            end = start + tokens.size(1)
            if where is None and end > table.size(0):
                where = torch.arange(start, end, device=tokens.device)
            if where is None:
                x = x + table[start:end]
            else:
                # A row near its limit may ride along in a wider chunk, and a block of masks may
                # reach further; what is computed past the last position is never used.
                x = x + table[where.clamp(max=table.size(0) - 1)]
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        return x

    def _token_vectors(self, tokens: Tensor) -> Tensor:
        """Look up a chunk's scaled embeddings: B×K -> B×K×D."""
        return self.decoder.embed_scale * F.embedding(tokens, self.decoder.embed_tokens.weight)

    def _self_bias(
        self, starts: list[int], slots: Tensor | None, width: int, end: int, mask: Tensor | None
    ) -> Tensor | None:
        """What is added to self-attention's scores: 0 where a slot is seen, -inf where not.

        Returns:
            K×T, or B×1×K×T where rows have cached different lengths; None if all is seen.
        """
        if mask is not None:
            if slots is None and mask.dim() == 2:
                if mask.size(1) == 1:
                    return None
                if mask.size(1) == end:
                    return self.future.new_zeros(width, end).masked_fill_(~mask, -math.inf)
            bias = self.future.new_zeros(len(starts), 1, width, end)
            if slots is None:
                bias[:, 0, :, starts[0] :].masked_fill_(~mask, -math.inf)
                return bias
            first = torch.tensor(starts, device=mask.device)
            column = torch.arange(end, device=mask.device) - first[:, None]  # B×T, in the chunk
            where = column.clamp(0, width - 1)[:, None].expand(-1, width, -1)
            seen = mask.expand(len(starts), -1, -1).gather(2, where)  # B×K×T
            seen = (seen & (column < width)[:, None]) | (column < 0)[:, None]
            return bias.masked_fill_(~seen[:, None], -math.inf)
        if slots is not None:
            return self.future[slots, :end].unsqueeze(1)
        if width == 1:
            return None
        return self.future[starts[0] : end, :end]

    def _layer(
        self,
        index: int,
        layer: Layer,
        x: Tensor,
        start: int,
        end: int,
        rows: Tensor | None,
        slots: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """One decoder layer over a chunk, B×K×D -> B×K×D."""
        batch, width, dim = x.shape
        # 1. Self-attention over the cache and the chunk.
        residual = x
        if layer.pre_norm:
            x = layer.self_norm(x)
        qkv = layer.qkv(x).view(batch, width, 3, self.heads, self.head_dim)
        cache = self.cache[index]  # B×T×2×H×Dh
        if slots is None:
            cache[:, start:end] = qkv[:, :, 1:]
        else:
            cache[rows, slots] = qkv[:, :, 1:]
        past = cache[:, :end].permute(2, 0, 3, 1, 4)  # 2×B×H×T×Dh
        query = qkv[:, :, 0].transpose(1, 2)  # B×H×K×Dh
        x = F.scaled_dot_product_attention(query, past[0], past[1], attn_mask=bias)
        x = residual + layer.self_out(x.transpose(1, 2).reshape(batch, width, dim))
        if not layer.pre_norm:
            x = layer.self_norm(x)
        # 2. Attention to the source.
        residual = x
        if layer.pre_norm:
            x = layer.cross_norm(x)
        query = layer.cross_query(x).view(batch, width, self.heads, self.head_dim).transpose(1, 2)
        key, value = self.cross[index]
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=self.source_bias)
        x = residual + layer.cross_out(x.transpose(1, 2).reshape(batch, width, dim))
        if not layer.pre_norm:
            x = layer.cross_norm(x)
        # 3. Feed-forward.
        residual = x
        if layer.pre_norm:
            x = layer.ffn_norm(x)
        x = residual + layer.fc2(layer.activation(layer.fc1(x)))
        return x if layer.pre_norm else layer.ffn_norm(x)

    def log_probs(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the next token, as fairseq normalises them.

        Args:
            hidden: B×K×D from ``step``.
            temperature: what the logits are divided by.

        Returns:
            B×K×V, in fp32 (fp64 for a fp64 model), free to be written to.
        """
        decoder = self.decoder
        if self.block_heads is not None:
            hidden = self.block_heads.first(hidden)
        if decoder.adaptive_softmax is not None:
            return decoder.adaptive_softmax.get_log_prob(hidden / temperature, target=None).to(
                _score_dtype(hidden)
            )
        logits = self.projection(hidden)
        if temperature != 1.0:
            logits = logits / temperature
        return F.log_softmax(logits, dim=-1, dtype=_score_dtype(hidden))

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.lengths = list(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Make row ``index[b]`` the new row b, for all b; rows may be dropped or repeated.

        Args:
            index: the rows.
            same_source: each has the source of the row in whose place it comes, as among the
                hypotheses of one sentence.
        """
        picked = torch.tensor(index, device=self.cache.device)
        self.lengths = [self.lengths[i] for i in index]
        used, capacity = max(self.lengths), self.cache.size(2)
        chosen = self.cache[:, :, :used].index_select(1, picked)
        if len(index) > self.cache.size(1):
            self.cache = self._empty_cache(len(index), capacity, chosen)
        self.cache = self.cache[:, : len(index)]
        self.cache[:, :, :used] = chosen
        if same_source:
            return
        self.cross = self.cross.index_select(2, picked)
        if self.source_bias is not None:
            self.source_bias = self.source_bias.index_select(0, picked)


class EnsembleScorer:
    """Several scorers whose probabilities are averaged, as fairseq averages an ensemble's.

    Args:
        scorers: one per model; the models share the target dictionary.
    """

    def __init__(self, scorers: Sequence[ChunkScorer]) -> None:
        self.scorers = list(scorers)

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run every encoder; see ChunkScorer.encode."""
        for scorer in self.scorers:
            scorer.encode(net_input)

    def step(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> list[Tensor]:
        """Run every decoder over one chunk; see ChunkScorer.step."""
        return [scorer.step(tokens, positions, mask) for scorer in self.scorers]

    def log_probs(self, hidden: list[Tensor], temperature: float = 1.0) -> Tensor:
        """Log of the mean probability over the models, B×K×V."""
        pairs = zip(self.scorers, hidden, strict=True)
        each = torch.stack([scorer.log_probs(h, temperature) for scorer, h in pairs])
        return torch.logsumexp(each, dim=0) - math.log(len(self.scorers))

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll every cache back; see ChunkScorer.keep."""
        for scorer in self.scorers:
            scorer.keep(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows of every cache; see ChunkScorer.reorder."""
        for scorer in self.scorers:
            scorer.reorder(index, same_source)


def _score_dtype(hidden: Tensor) -> torch.dtype:
    """Scores are fp32, as in fairseq, but for fp64 models (which only tests use)."""
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32
