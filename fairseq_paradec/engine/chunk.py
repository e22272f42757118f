"""ChunkScorer: a fairseq Transformer's decoder, run over chunks of tokens against a cache.

It reads the weights of a stock fairseq Transformer and scores, in one pass, K tokens per row whose
predecessors are cached. The rows of a batch may have different numbers of cached tokens, and each
rolls back to its own length. Every method of this package runs on it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UsageError, option_error
from ..token_rules import Best, Positions, Scored
from .masks import Mask
from .native.beam import NativeModel, Searched, Searching, native_search, native_search_drafts
from .native.cache import NativeCache
from .native.library import NativeUnavailable
from .native.packing import Packed, packed, save_packed
from .native.passes import native_pass, native_write
from .native.stack import FORMS
from .projection import Projection, gather_projection
from .settings import Engine
from .torch.cache import Cache
from .torch.choices import on_device
from .torch.decoder_pass import DecoderWeights, decoder_pass, source_keys
from .torch.encoder import lean_encoder
from .torch.gather import gather_decoder
from .torch.known import refuse_unknown
from .torch.views import model_of, pack_heads, packed_only
from .torch.watch import Watch, keeps_weights
from .torch.weights import Form

log = logging.getLogger(__name__)

PLAIN = Engine()

# What the log has said: a model and why torch computes its passes.
_SAID: set[tuple[str, str]] = set()


class ChunkScorer:
    """The decoder of one fairseq Transformer over chunks of K tokens against a cache.

    Usage: ``encode`` once per batch; then ``step`` scores a chunk, ``keep`` sets the number of
    tokens of each row that stay cached, ``reorder`` picks rows. The weights of a model in training
    change between calls, so every ``encode`` gathers them again; those of a model prepared for
    inference are gathered once, and again when they have changed (see Watch). A scorer holds one
    batch's cache, so each thread needs its own scorer.

    Args:
        model: a stock fairseq Transformer in evaluation mode.
        engine: what computes passes, and in which dtype; by default torch, in the model's.

    Raises:
        UsageError: this class does not support the model.

    Attributes:
        model: the model in the engine's dtype.
        weights: the decoder's weights at the last ``encode`` or ``start``.
        projection: the output projection at the same time.
        cache: the batch's cache.
        encoder_out: the batch's encoder output, in fairseq's layout.
        gathered: how often weights were gathered.
        joined: whether the cache is another scorer's.
    """

    gathered = 0
    joined = False
    weights: Any  # DecoderWeights, or NativeWeights
    cache: Any  # Cache, or NativeCache

    def __init__(self, model: Any, engine: Engine = PLAIN) -> None:
        self._refuse_unknown(model)
        self.engine = engine
        self.given = model
        self._gathered_from: tuple[torch.dtype, torch.device, bool] | None = None
        self._joined_at: int | None = None
        self._watch = Watch(model)
        self._settle()

    def _settle(self) -> None:
        """Let native passes, or torch's, compute this model as it is now."""
        self.model = self.given
        self.decoder = self.model.decoder
        self.packed = self._packed()
        if self.packed is not None:
            self._encoder: Any = None
            return
        if packed_only(self.given):
            kind, dtype = self.engine.kind, self.engine.dtype or "fp32"
            raise UsageError(
                f"--engine {kind} with --engine-dtype {dtype} needs torch's weights; this model "
                "folder holds them packed alone"
            )
        self.model = self.engine.model(self.given)
        self.decoder = self.model.decoder
        self._encoder = lean_encoder(self.model)

    def _packed(self) -> Packed | None:
        """Return the model's native weights; None: torch computes its passes.

        Raises:
            UsageError: ``--engine native`` does not know the model.
        """
        kind, dtype = self.engine.kind, self.engine.dtype or "fp32"
        if kind == "torch" or dtype not in FORMS:
            return None
        if not getattr(self.given, "_is_generation_fast", False):
            return None  # its weights change
        packed_or_reason: Packed | str
        level, name = logging.INFO, type(self.given).__name__
        try:
            model = model_of(self.given)
            packed_or_reason = model if isinstance(model, str) else packed(model, dtype)
        except NativeUnavailable as error:
            packed_or_reason, level = f"the native library is not there: {error}", logging.WARNING
        if isinstance(packed_or_reason, Packed):
            return packed_or_reason
        if kind == "native":
            raise option_error("--engine", kind, f"torch with this {name}: {packed_or_reason}")
        if (name, packed_or_reason) not in _SAID:
            _SAID.add((name, packed_or_reason))
            log.log(level, "passes of this %s are torch's: %s", name, packed_or_reason)
        return None

    def save_packed(self, path: Path) -> None:
        """Write the native weights of the engine's dtype to a file; see ``views.offer``.

        Raises:
            ValueError: its passes are torch's.
        """
        if self.packed is None:
            raise ValueError("its passes are torch's; the log says why")
        model = model_of(self.given)
        assert not isinstance(model, str)
        save_packed(model, self.engine.dtype or "fp32", path)

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for a model that this class would decode wrongly."""
        if hasattr(model, "block_heads"):  # a stock decoder with prediction heads
            refuse_unknown(model, [type(model.decoder)])
        else:
            refuse_unknown(model)

    @property
    def native(self) -> bool:
        """Whether passes are native."""
        return self.packed is not None

    # ---- weights -------------------------------------------------------------------------------

    def _gather_weights(self) -> None:
        """Gather the weights in the form that a pass reads, unless they are up to date."""
        weight = self.given.decoder.embed_tokens.weight
        lasting = getattr(self.given, "_is_generation_fast", False)
        kind = (weight.dtype, weight.device, lasting)
        changed = lasting and not keeps_weights(self.given) and self._watch.changed()
        if self._gathered_from == kind and lasting and not changed:
            return
        if changed or self._gathered_from not in (None, kind):
            self._settle()
        self._gathered_from = kind
        self.gathered += 1
        if self.packed is not None:
            self.weights = self.packed.decoder
            self.projection = gather_projection(self.model, "plain", self.weights.projection)
            return
        if self.model is not self.given:
            # fairseq's own load_state_dict upgrades checkpoints and needs their options.
            nn.Module.load_state_dict(self.model.to(weight.device), self.given.state_dict())
        weight = self.decoder.embed_tokens.weight
        read = sum(p.numel() for p in self.decoder.parameters())
        form = self.engine.form(weight.dtype, weight.device, lasting, read)
        if self._encoder is not None:
            self._encoder.gather(form)
        self.weights = self._gather(form)
        self.projection = gather_projection(self.model, form)

    def _gather(self, form: Form) -> DecoderWeights:
        """Gather the decoder's weights."""
        return gather_decoder(self.decoder, form)

    # ---- one batch -----------------------------------------------------------------------------

    def encode(self, net_input: dict[str, Tensor]) -> None:
        """Run the encoder and start an empty cache."""
        self._gather_weights()
        for of_last_batch in ("cache", "encoder_out"):  # never two of them
            self.__dict__.pop(of_last_batch, None)
        self._start(self._encode(net_input))

    def _encode(self, net_input: dict[str, Any]) -> dict[str, Any]:
        """Run the encoder; its output has fairseq's layout, with arrays if passes are native."""
        if self.packed is not None and self.packed.encoder is not None:
            return self.packed.encoder(np.asarray(net_input["src_tokens"]))
        device = self.decoder.embed_tokens.weight.device
        tensors = {name: torch.as_tensor(part).to(device) for name, part in net_input.items()}
        encoder = self._encoder or self.model.encoder.forward_torchscript
        out: dict[str, Any] = encoder(tensors)
        return out

    def add(self, net_input: dict[str, Tensor]) -> dict[str, Any]:
        """Run the encoder for further sentences, whose rows go behind those of the batch.

        ``writes`` says whether it can. At least so many rows must have left. ``encoder_out`` stays
        that of the batch's beginning; that of the sentences is returned.
        """
        encoder_out = self._encode(net_input)
        self.add_encoded(encoder_out)
        return encoder_out

    def add_encoded(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output for further sentences; see ``add``."""
        self.cache.add(*self._states(encoder_out))

    def start(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output, in fairseq's layout, and start an empty cache."""
        self._gather_weights()
        self._start(encoder_out)

    def join(self, other: "ChunkScorer") -> None:
        """Take the cache of another scorer of this model, which has encoded and picks its rows.

        Native caches are fp32, whatever the weights are. If a scorer is torch's, this one gets a
        cache of its own on the other's encoder output.
        """
        if self._joined_at != other.gathered:
            self._gather_weights()
            self._joined_at = other.gathered
        self.joined = self.native and other.native
        if self.joined:
            self.cache = other.cache
        else:
            self._start(other.encoder_out)

    def _start(self, encoder_out: dict[str, Any]) -> None:
        """Make keys and values of the source, and an empty cache."""
        self.encoder_out = encoder_out
        states, blank = self._states(encoder_out)
        if self.packed is not None:
            self.cache = NativeCache(self.weights, states, blank)
            return
        self.cache = self._new_cache(source_keys(self.weights, states), blank)

    def _states(self, encoder_out: dict[str, Any]) -> tuple[Any, Any]:
        """Return the states of an encoder's output, B×S×C, and where padding is, B×S, or None.

        They may be another scorer's, tensors where this one has arrays, or of another dtype.
        """
        states = encoder_out["encoder_out"][0].swapaxes(0, 1)
        padding = [*encoder_out["encoder_padding_mask"], None][0]
        if self.packed is not None:
            if isinstance(states, Tensor):
                states = states.detach().float().numpy(force=True)
            return states, None if padding is None else np.asarray(padding)
        weight = self.decoder.embed_tokens.weight
        states = torch.as_tensor(states).to(weight)
        return states, None if padding is None else torch.as_tensor(padding).to(weight.device)

    def _new_cache(self, source: Tensor, padding: Tensor | None) -> Cache:
        """Make an empty cache; see Cache."""
        return Cache(source, padding)

    def step(self, tokens: np.ndarray, mask: Mask = "causal") -> Any:
        """Run the decoder over one chunk and cache it.

        Args:
            tokens: B×K decoder inputs; see ``decoder_pass``.
            mask: the attention mask; see ``masks``.

        Returns:
            B×K×D hidden states, an array or a tensor, ready for ``choose``.
        """
        if self.packed is not None:
            return native_pass(self.weights, self.cache, tokens, mask)
        return decoder_pass(self.weights, self.cache, on_device(tokens, self.cache.keys), mask)

    def log_probs(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities of the next token, B×K×D -> B×K×V; see Projection.log_probs."""
        return self.projection.log_probs(hidden, temperature)

    def choose(self, hidden: Tensor, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see Projection.choose."""
        return self.projection.choose(hidden, at, draft)

    def best(self, hidden: Tensor, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        return self.projection.best(hidden, at, count)

    def writes(self, projection: Projection) -> bool:
        """Return whether ``write`` knows this model and projection."""
        return self.native and projection.writes

    def write(
        self,
        new: Sequence[Sequence[int]],
        counts: Sequence[int],
        projection: Projection,
        at: Positions,
        least: float,
        normalised: bool,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Read tokens and write the best ones behind them, in one call of the native library.

        Returns B lists of tokens and of their scores. The arguments are those of
        ``writing.write``, and ``new``: of each row the tokens that it reads, at least one.
        """
        return native_write(
            self.weights, self.cache, projection.linear, at, new, counts, least, normalised
        )

    def search(self, at: Positions, how: Searching) -> list[Searched]:
        """Search the batch by beams in one call of the native library.

        ``writes`` says whether it can. It needs no cache but the source's. All inputs of a step see
        each other, and those of all steps before.
        """
        return native_search(self.weights, self.cache, self.projection.linear, at, how)

    def search_drafts(
        self,
        drafter: "ChunkScorer",
        projection: Projection,
        at: Positions,
        how: Searching,
        depth: int,
    ) -> tuple[list[Searched], list[list[list[int]]]]:
        """Search as ``search`` does, with drafts by another scorer, in one call.

        ``writes`` of both says whether they can.

        Args:
            drafter: its encoder has run, or it has joined this scorer.
            projection: the drafter's, of all tokens or of a shortlist.
            at: as for ``search``.
            how: see there; a word a step.
            depth: steps of a draft, at most.

        Returns:
            See ``native_search_drafts``.
        """
        own = NativeModel(self.weights, self.cache, self.projection.linear)
        other = NativeModel(drafter.weights, drafter.cache, projection.linear)
        return native_search_drafts(own, other, at, how, depth)

    def embed(self, tokens: np.ndarray) -> Any:
        """Return the scaled embeddings of tokens, ... -> ...×E, without positions."""
        table = self.decoder.embed_tokens
        vectors = self.decoder.embed_scale * table(on_device(tokens, table.weight))
        return vectors if self.packed is None else vectors.numpy(force=True)

    def heads(self, given: Any, dtype: str | None = None) -> Any:
        """Return prediction heads for the outputs of ``step``.

        Args:
            given: BlockHeads: the model's own, or those of another checkpoint.
            dtype: of their weights; None: that of the passes, the only one of torch's.

        Raises:
            UsageError: torch's passes have another dtype.
        """
        if self.packed is not None:
            packed_heads = pack_heads(given, dtype or self.packed.decoder.stack.form)
            return _ArrayHeads(given) if packed_heads is given else packed_heads
        if dtype not in (None, self.engine.dtype_of(self.given)):
            allowed = "that of --engine-dtype with heads whose passes are torch's"
            raise option_error("--drafter-dtype", dtype, allowed)
        own = getattr(self.model, "block_heads", None)
        if own is None:
            own = self.engine.model(given).to(self.decoder.embed_tokens.weight.device)
        return own

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.cache.keep(lengths)

    def gather(self, starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path of each row's tree; see Cache.gather."""
        self.cache.gather(starts, paths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows; see Cache.reorder."""
        if not self.joined:
            self.cache.reorder(index, same_source)


class _ArrayHeads:
    """Heads that the native library does not know, on arrays."""

    def __init__(self, heads: Any) -> None:
        self.heads, self.seen = heads, heads.seen

    def __call__(self, states: np.ndarray, numbers: Any, following: Any = None) -> np.ndarray:
        """Run the heads; see BlockHeads."""
        given = [None if part is None else torch.from_numpy(part) for part in (states, following)]
        outputs: np.ndarray = self.heads(given[0], numbers, given[1]).numpy(force=True)
        return outputs


def pick(states: Any, where: np.ndarray) -> Any:
    """Pick positions of each row: B×R×... and B×K -> B×K×...; of an ensemble's states, of each."""
    if isinstance(states, list):
        return [pick(each, where) for each in states]
    return states[np.arange(len(where))[:, None], where]
