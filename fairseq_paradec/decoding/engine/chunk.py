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

from .compiled import Compiled, chunk_bucket, source_bucket, warn_plain
from .encoder import lean_encoder
from .settings import Engine
from .weights import Layer, compiles, gather_layer, gather_norm, join, make_map, refuse_unknown

# The first cache holds this many tokens; it doubles whenever a chunk does not fit.
INITIAL_CAPACITY = 32


class Scorer(Protocol):
    """What the decoding loop needs of a model: ChunkScorer, or several of them as an ensemble."""

    @property
    def compiled(self) -> bool:
        """Whether a pass of this batch ran as torch.compile made it."""
        ...

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


PLAIN = Engine()


def build_scorer(models: Sequence[Any], engine: Engine = PLAIN) -> Scorer:
    """Make the scorer of one model, or of an ensemble.

    Raises:
        UsageError: a model is not one that ChunkScorer or LocalScorer knows; it is named.
    """
    from .local import LocalScorer  # it is a ChunkScorer

    scorers: list[ChunkScorer] = []
    for model in models:
        is_local = hasattr(getattr(model, "decoder", None), "attention_window")
        scorers.append((LocalScorer if is_local else ChunkScorer)(model, engine))
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
        engine: how to compute; by default in the model's dtype, not compiled.

    Raises:
        UsageError: the model is not one that this class knows.
    """

    def __init__(self, model: Any, engine: Engine = PLAIN) -> None:
        self._refuse_unknown(model)
        self.engine = engine
        self.given = model
        self.model = engine.model(model)
        self.decoder = self.model.decoder
        self.block_heads = getattr(self.model, "block_heads", None)
        # Drafts may be of the dictionary's first tokens only; set before anything is encoded.
        self.shortlist: int | None = None
        self.lengths: list[int] = []
        self.compiled = False
        self.initial_capacity = INITIAL_CAPACITY
        self._gathered_from: tuple[torch.dtype, torch.device, bool] | None = None
        self._encoder = lean_encoder(self.model)
        self._run: Compiled | None = None
        if engine.compile:
            self._run = Compiled(type(self.decoder).__name__, self._pass)

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for a model that this class would decode wrongly."""
        if hasattr(model, "block_heads"):  # a stock decoder with heads on its output
            refuse_unknown(model, [type(model.decoder)])
        else:
            refuse_unknown(model)

    # ---- weights -------------------------------------------------------------------------------

    def _gather_weights(self) -> None:
        """Put the weights into the form that a pass wants."""
        weight = self.given.decoder.embed_tokens.weight
        lasting = getattr(self.given, "_is_generation_fast", False)
        kind = (weight.dtype, weight.device, lasting)
        if self._gathered_from == kind and lasting:
            return
        self._gathered_from = kind
        if self.model is not self.given:
            # Not by fairseq's own method, which upgrades checkpoints and asks for their options.
            nn.Module.load_state_dict(self.model.to(weight.device), self.given.state_dict())
        self._gather(lasting)

    def _gather(self, lasting: bool) -> None:
        """Gather them, in the model's dtype and on its device; for good if they are lasting."""
        decoder = self.decoder
        weight = decoder.embed_tokens.weight
        read = sum(p.numel() for p in decoder.parameters())
        form = self.form = self.engine.form(weight.dtype, weight.device, lasting, read)
        if self._run is not None and not compiles(form, weight.dtype, 2):
            few = compiles(form, weight.dtype, 1)
            warn_plain(form, "passes over more than one token" if few else "passes")
        if self._encoder is not None:
            self._encoder.gather(form)
        # children(): a list with layer drop draws random numbers whenever it is iterated over.
        stack: list[Any] = list(decoder.layers.children())
        self.layers = [gather_layer(layer, form) for layer in stack]
        self.heads = self.layers[0].heads
        self.head_dim = decoder.embed_dim // self.heads
        # All layers' cross-attention keys and values come from one product.
        attentions = [layer.encoder_attn for layer in stack]
        self.cross_kv = join([p for a in attentions for p in (a.k_proj, a.v_proj)], form)  # L·2·D×C
        projection = decoder.output_projection  # D -> V; None with an adaptive softmax
        self.projection = projection
        if type(projection) is nn.Linear:
            self.projection = join([projection], form)
        self.draft_projection = self.projection
        if self.shortlist is not None:
            bias = None if projection.bias is None else projection.bias[: self.shortlist].detach()
            short = projection.weight[: self.shortlist].detach()
            self.draft_projection = make_map(short, bias, form)
        self.final_norm = None if decoder.layer_norm is None else gather_norm(decoder.layer_norm)
        self.positions = self._position_table(0)
        self.future = weight.new_empty(0, 0).detach()

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
        self.compiled = False
        self.cache = self._empty_cache(batch, self.initial_capacity, states)

    def _fill_up_source(self) -> None:
        """Let the source be as long as compiled passes take it; nobody sees what is added."""
        batch, source = self.cross.size(2), self.cross.size(4)
        if self.source_bias is None:
            self.source_bias = self.cross.new_zeros(batch, 1, 1, source)
        blank = source_bucket(source) - source
        if blank:
            self.cross = F.pad(self.cross, (0, 0, 0, blank))
            self.source_bias = F.pad(self.source_bias, (0, blank), value=-math.inf)

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
        closed = torch.is_autocast_enabled(tokens.device.type)
        if self._run is not None and batch == 1 and not closed:
            filled = chunk_bucket(width)
            if filled is not None and compiles(self.form, self.cache.dtype, filled):
                return self._step_compiled(self._run, tokens, positions, mask, filled)
        return self._step_plain(tokens, positions, mask)

    def _step_plain(self, tokens: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        """Run the decoder over a chunk as Python calls it; see ``step``."""
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
        where: Any = (slice(None), slice(starts[0], end))
        if slots is not None:
            where = (torch.arange(batch, device=tokens.device)[:, None], slots)
        for cache, cross, layer in zip(self.cache, self.cross, self.layers, strict=True):
            x = self._layer(layer, x, cache, where, end, bias, cross, self.source_bias)
        return self._finish(x)

    def _step_compiled(
        self,
        run: Compiled,
        tokens: Tensor,
        positions: Tensor | None,
        mask: Tensor | None,
        filled: int,
    ) -> Tensor:
        """Run the decoder over one row's chunk, filled up to a length that is compiled for."""
        width, start = tokens.size(1), self.lengths[0]
        self._make_room(start + filled)
        self._fill_up_source()
        blank = filled - width
        bias = None
        if mask is not None:
            # What fills the chunk up sees all, and nobody sees it.
            bias = tokens.new_zeros((filled, self.cache.size(2)), dtype=self.cache.dtype)
            seen = self._self_bias([start], None, width, start + width, mask)
            if seen is not None:
                bias[:width, : start + width] = seen.view(width, start + width)
            bias[:, start + width :] = -math.inf
        if blank:
            tokens = F.pad(tokens, (0, blank))
            positions = None if positions is None else F.pad(positions, (0, blank))
        key = (
            filled, *self.cache.shape, self.cross.size(4), bias is None, positions is None,
            0 if self.positions is None else self.positions.size(0),
            self.form, self.cache.dtype, self.cache.device.type,
        )  # fmt: skip
        first = torch.tensor([start], device=tokens.device)
        x: Tensor = run(
            key, tokens.contiguous(), first, positions, bias, self.cache, self.cross,
            self.source_bias,
        )  # fmt: skip
        self.compiled |= run.works
        return x[:, :width]

    def _pass(
        self,
        tokens: Tensor,
        first: Tensor,
        positions: Tensor | None,
        bias: Tensor | None,
        cache: Tensor,
        cross: Tensor,
        source_bias: Tensor | None,
    ) -> Tensor:
        """Run the decoder over a chunk as a function of tensors, for torch.compile.

        Args:
            tokens: B×K.
            first: B, where each row's chunk begins in its cache.
            positions: B×K; None: as the slots.
            bias: K×T, for self-attention; None: causal.
            cache: L×B×T×2×H×Dh, written to.
            cross: L×2×B×H×S×Dh.
            source_bias: B×1×1×S, or None.

        Returns:
            B×K×D.
        """
        batch, width = tokens.shape
        places = first[:, None] + torch.arange(width, device=tokens.device)  # B×K, in the output
        capacity = cache.size(2)
        if bias is None:
            hidden = self._hidden(places, capacity)
            blank = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device)
            bias = blank.masked_fill(hidden, -math.inf).unsqueeze(1)  # B×1×K×T
        rows = torch.arange(batch, device=tokens.device)[:, None]
        where = (rows, self._slots(places, capacity))
        x = self._embed(tokens, positions, 0, places)
        for index, layer in enumerate(self.layers):
            part = cache[index]
            x = self._layer(layer, x, part, where, part.size(1), bias, cross[index], source_bias)
        return self._finish(x)

    def _slots(self, places: Tensor, capacity: int) -> Tensor:
        """Return where in a cache of so many slots these positions of the output are kept."""
        return places

    def _hidden(self, places: Tensor, capacity: int) -> Tensor:
        """Say which slots a chunk at these positions, B×K, does not see: B×K×T."""
        return torch.arange(capacity, device=places.device) > places[:, :, None]

    def _finish(self, x: Tensor) -> Tensor:
        """Normalise and project what the last layer returned, as fairseq's decoder does."""
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
        layer: Layer,
        x: Tensor,
        cache: Tensor,
        where: tuple[Any, Any],
        end: int,
        bias: Tensor | None,
        cross: Tensor,
        source_bias: Tensor | None,
    ) -> Tensor:
        """Run one decoder layer over a chunk, B×K×D -> B×K×D.

        Args:
            layer: its weights.
            x: B×K×D.
            cache: B×T×2×H×Dh, of this layer; written to.
            where: rows and slots of the chunk in it.
            end: how many of its slots are in use.
            bias: for self-attention; see _self_bias.
            cross: 2×B×H×S×Dh, the source's keys and values.
            source_bias: B×1×1×S, or None.
        """
        batch, width, dim = x.shape
        # 1. Self-attention over the cache and the chunk.
        residual = x
        if layer.pre_norm:
            x = layer.self_norm(x)
        qkv = layer.qkv(x).view(batch, width, 3, self.heads, self.head_dim)
        cache[where] = qkv[:, :, 1:]
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
        x = F.scaled_dot_product_attention(query, cross[0], cross[1], attn_mask=source_bias)
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
        if len(index) > self.cache.size(1) or self._run is not None:  # contiguous, for the latter
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

    @property
    def compiled(self) -> bool:
        """Whether a pass of this batch ran as torch.compile made it."""
        return any(scorer.compiled for scorer in self.scorers)

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
