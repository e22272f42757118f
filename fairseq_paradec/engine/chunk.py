"""ChunkScorer: a Transformer's decoder, run over chunks of tokens against a cache.

It scores, in one pass, K tokens per row whose predecessors are cached. The rows of a batch may have
different numbers of cached tokens, and each rolls back to its own length. Every method of this
package runs on it. Passes are the native library's, or torch's.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Numbers
from ..errors import UsageError, option_error
from ..extras import named
from ..model.model import PACKED_ALONE, Model
from ..token_rules import Best, Positions, Scored
from .masks import Mask
from .native.beam import NativeModel, Searched, Searching, native_search, native_search_drafts
from .native.library import NativeUnavailable
from .native.packing import Packed, packed, save_packed
from .native.passes import native_write
from .native.scoring import NativePasses
from .native.stack import FORMS
from .settings import Engine

log = logging.getLogger(__name__)

PLAIN = Engine()

# What the log has said: a model and why torch computes its passes.
_SAID: set[tuple[str, str]] = set()


class ChunkScorer:
    """The decoder of one Transformer over chunks of K tokens against a cache.

    Usage: ``encode`` once per batch; then ``step`` scores a chunk, ``keep`` sets the number of
    tokens of each row that stay cached, ``reorder`` picks rows. The weights of a model in training
    change between calls, so every ``encode`` gathers them again; those of a model prepared for
    inference are gathered once, and again when they have changed (see Watched). A scorer holds one
    batch's cache, so each thread needs its own scorer.

    Args:
        model: a Model, or a stock fairseq Transformer in evaluation mode.
        engine: what computes passes, and in which dtype; by default torch, in the model's.
        joins: it drafts natively on the cache of a scorer in int8, and needs no encoder.

    Raises:
        UsageError: this class does not support the model.

    Attributes:
        passes: what computes them: NativePasses or TorchPasses.
        cache: the batch's cache: a NativeCache, or torch's Cache.
        encoder_out: the batch's encoder output, in fairseq's layout.
        gathered: how often weights were gathered.
        joined: whether the cache is another scorer's.
    """

    gathered = 0
    joined = False
    cache: Any

    def __init__(self, model: Any, engine: Engine = PLAIN, joins: bool = False) -> None:
        self.engine = engine
        self._joins = joins
        self.given = model
        self._joined_at: int | None = None
        self._watched: Any = None  # a Model's weights stay
        if not isinstance(model, Model):
            from .torch.watch import Watched

            self._refuse_unknown(model)
            self._watched = Watched(model)
        self._settle()

    def _settle(self) -> None:
        """Let native passes, or torch's, compute this model as it is now."""
        self.passes: Any = self._native_passes() or self._torch_passes()

    def _native_passes(self) -> NativePasses | None:
        """Return the model's native passes; None: torch computes them.

        Raises:
            UsageError: ``--engine native`` does not know the model.
        """
        kind, dtype = self.engine.kind, self.engine.dtype or "fp32"
        if kind == "torch" or dtype not in FORMS:
            return None
        given, module = self.given, None
        if not isinstance(given, Model):
            from .torch.views import model_of

            module = given
            if not getattr(module, "_is_generation_fast", False):
                return None  # its weights change
            given = model_of(module)
        packed_or_reason: Packed | str
        level, name = logging.INFO, type(self.given).__name__
        try:
            form = "drafts" if self._joins else dtype
            packed_or_reason = given if isinstance(given, str) else packed(given, form)
        except NativeUnavailable as error:
            packed_or_reason, level = f"the native library is not there: {error}", logging.WARNING
        if isinstance(packed_or_reason, Packed):
            return NativePasses(given, packed_or_reason, module)
        if kind == "native":
            raise option_error("--engine", kind, f"torch with this {name}: {packed_or_reason}")
        if (name, packed_or_reason) not in _SAID:
            _SAID.add((name, packed_or_reason))
            log.log(level, "passes of this %s are torch's: %s", name, packed_or_reason)
        return None

    def _torch_passes(self) -> Any:
        """Return torch's passes of the model.

        Raises:
            UsageError: torch has no weights of it.
        """
        kind, dtype = self.engine.kind, self.engine.dtype or "fp32"
        if isinstance(self.given, Model):
            if not self.given.architecture.in_fairseq and not self.given.is_packed_only:
                with named(f"--engine {kind}"):
                    from .torch.record import RecordPasses
                return RecordPasses(self.given, self.engine)
            needed = "a model that fairseq has loaded; this model was read without torch"
            if self.given.is_packed_only:
                needed = PACKED_ALONE
            raise UsageError(f"--engine {kind} with --engine-dtype {dtype} needs {needed}")
        from .torch.scoring import TorchPasses

        return TorchPasses(self.given, self.engine)

    def save_packed(self, path: Path) -> None:
        """Write the native weights of the engine's dtype to a file; see ``packing.offer``.

        Raises:
            ValueError: its passes are torch's.
        """
        if not self.native:
            raise ValueError("its passes are torch's; the log says why")
        save_packed(self.passes.model, self.engine.dtype or "fp32", path)

    @staticmethod
    def _refuse_unknown(model: Any) -> None:
        """Raise a UsageError for a module that this class would decode wrongly."""
        from .torch.known import refuse_unknown

        if hasattr(model, "block_heads"):  # a stock decoder with prediction heads
            refuse_unknown(model, [type(model.decoder)])
        else:
            refuse_unknown(model)

    @property
    def native(self) -> bool:
        """Whether passes are native."""
        native: bool = self.passes.native
        return native

    @property
    def weights(self) -> Any:
        """The decoder's weights, as passes read them, since the last ``encode`` or ``start``."""
        return self.passes.weights

    @property
    def projection(self) -> Any:
        """The output projection at the same time."""
        return self.passes.projection

    @property
    def model(self) -> Any:
        """The model in the dtype of passes, if they are torch's; else as it was given."""
        return self.given if self.native else self.passes.model

    @property
    def max_positions(self) -> int:
        """How many tokens the decoder has positions for."""
        most: int = self.passes.max_positions
        return most

    # ---- one batch -----------------------------------------------------------------------------

    def _gather_weights(self) -> None:
        """Gather the weights in the form that a pass reads, unless they are up to date."""
        current, settles = self.gathered > 0, False
        if self._watched is not None:
            current, settles = self._watched.look()
        if current:
            return
        if settles:
            self._settle()
        self.gathered += 1
        self.passes.gather()

    def encode(self, source: Numbers) -> None:
        """Run the encoder and start an empty cache."""
        self._gather_weights()
        for of_last_batch in ("cache", "encoder_out"):  # never two of them
            self.__dict__.pop(of_last_batch, None)
        self._start(self.passes.encode(source))

    def add(self, source: Numbers) -> dict[str, Any]:
        """Run the encoder for further sentences, whose rows go behind those of the batch.

        ``writes`` says whether it can. At least so many rows must have left. ``encoder_out`` stays
        that of the batch's beginning; that of the sentences is returned.
        """
        encoder_out: dict[str, Any] = self.passes.encode(source)
        self.add_encoded(encoder_out)
        return encoder_out

    def add_encoded(self, encoder_out: dict[str, Any]) -> None:
        """Take an encoder's output for further sentences; see ``add``."""
        self.cache.add(*self.passes.states(encoder_out))

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
        self.cache = self.passes.new_cache(encoder_out)

    def step(self, tokens: np.ndarray, mask: Mask = "causal") -> Any:
        """Run the decoder over one chunk and cache it.

        Args:
            tokens: B×K decoder inputs; see ``decoder_pass``.
            mask: the attention mask; see ``masks``.

        Returns:
            B×K×D hidden states, an array or a tensor, ready for ``choose``.
        """
        return self.passes.step(self.cache, tokens, mask)

    def log_probs(self, hidden: Any, temperature: float = 1.0) -> Any:
        """Return torch's tensor of log-probabilities of the next token, B×K×D -> B×K×V."""
        return self.projection.log_probs(hidden, temperature)

    def choose(self, hidden: Any, at: Positions, draft: np.ndarray | None = None) -> Scored:
        """Choose the next token at every position; see Projection.choose."""
        scored: Scored = self.projection.choose(hidden, at, draft)
        return scored

    def choose_traced(
        self, hidden: Any, at: Positions, draft: np.ndarray | None
    ) -> tuple[Scored, Best]:
        """Choose, and return the best two tokens at every position; see Projection."""
        both: tuple[Scored, Best] = self.projection.choose_traced(hidden, at, draft)
        return both

    def best(self, hidden: Any, at: Positions, count: int) -> Best:
        """Return the best tokens at every position, and ``</s>``; see ``choices.best_of``."""
        best: Best = self.projection.best(hidden, at, count)
        return best

    def writes(self, projection: Any) -> bool:
        """Return whether ``write`` knows this model and projection."""
        return self.native and bool(projection.writes)

    def write(
        self,
        new: Sequence[Sequence[int]],
        counts: Sequence[int],
        projection: Any,
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
        projection: Any,
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
        return self.passes.embed(tokens)

    def heads(self, given: Any, dtype: str | None = None) -> Any:
        """Return prediction heads for the outputs of ``step``.

        Args:
            given: BlockHeads or HeadWeights: the model's own, or those of another checkpoint.
            dtype: of their weights; None: that of the passes, the only one of torch's.

        Raises:
            UsageError: torch's passes have another dtype.
        """
        return self.passes.heads(given, dtype)

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


def pick(states: Any, where: np.ndarray) -> Any:
    """Pick positions of each row: B×R×... and B×K -> B×K×...; of an ensemble's states, of each."""
    if isinstance(states, list):
        return [pick(each, where) for each in states]
    return states[np.arange(len(where))[:, None], where]
