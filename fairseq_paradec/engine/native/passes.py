"""Native passes over a cache, native encoders, and native choices: arrays to C structures."""

import ctypes
from collections.abc import Sequence
from ctypes import addressof

import numpy as np

from ...threads import num_threads
from ...token_rules import Limits, Positions, Scored, TokenRules
from ..masks import Mask, Tree
from ..slots import check_memory
from .cache import NativeCache, NativeWeights, array_of, spans, store
from .library import Before, Choices, Chunk, Limit, Rules, Store, Writing, library
from .stack import NativeMap, NativeStack, address_of, check

#: About as many tokens are encoded at once: their states stay in the CPU's cache.
_ENCODED = 256


def native_pass(
    weights: NativeWeights, cache: NativeCache, tokens: np.ndarray, mask: Mask = "causal"
) -> np.ndarray:
    """Run the decoder over one chunk per row; see ``decoder_pass``."""
    batch, width = tokens.shape
    cache.make_room(width)
    tokens = np.ascontiguousarray(tokens, np.int64)
    # Arrays live until the library has read what the chunk points to.
    starts, own, source = array_of(cache.lengths), array_of(cache.rows), array_of(cache.source_rows)
    chunk = Chunk(
        rows=batch,
        width=width,
        tokens=address_of(tokens),
        starts=addressof(starts),
        own_rows=addressof(own),
        source_rows=addressof(source),
    )
    if isinstance(mask, Tree):
        reach = max(n - base for n, base in zip(cache.lengths, mask.bases, strict=True))
        bases, sees = array_of(mask.bases), np.ascontiguousarray(mask.sees, np.bool_)
        assert reach + width <= sees.shape[2], "the chunk ends behind the tree's mask"
        depths = np.ascontiguousarray(mask.depths, np.int32)
        chunk.bases, chunk.depths = addressof(bases), address_of(depths)
        chunk.sees, chunk.tree = address_of(sees), sees.shape[2]
    elif not isinstance(mask, str) or mask == "all":
        all_seen = np.full((1, width), width, np.int32)
        seen = all_seen if isinstance(mask, str) else np.ascontiguousarray(mask)
        if seen.dtype == np.bool_:
            chunk.mask, chunk.slots = address_of(seen), seen.shape[1]
        else:
            chunk.seen, chunk.seen_rows = address_of(seen), len(seen)
    stack = weights.stack
    return _run(stack, chunk, cache.store, cache.source_store)


def native_attention(
    weights: NativeWeights, cache: NativeCache, tokens: np.ndarray, layer: int, heads: int
) -> np.ndarray:
    """Return where tokens look in the source, B×K×S: the mean of a layer's first heads.

    S has each row's source without padding, then zeros. Nothing is cached.

    Args:
        weights: of the decoder.
        cache: it has the source.
        tokens: the decoder's first input and what follows it, B×K.
        layer: its number, from 0 up.
        heads: how many.
    """
    batch, width = tokens.shape
    cache.keep([0] * batch)
    cache.make_room(width)
    tokens = np.ascontiguousarray(tokens, np.int64)
    own, source = array_of(cache.rows), array_of(cache.source_rows)
    chunk = Chunk(
        rows=batch,
        width=width,
        tokens=address_of(tokens),
        own_rows=addressof(own),
        source_rows=addressof(source),
    )
    looks = np.zeros((batch, width, cache.source[0].shape[3]), np.float32)
    status = library().paradec_attention(
        weights.stack.address,
        ctypes.byref(chunk),
        ctypes.byref(cache.store),
        ctypes.byref(cache.source_store),
        layer,
        heads,
        address_of(looks),
        num_threads(),
    )
    check_pass(status)
    return looks


def native_encode(stack: NativeStack, tokens: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """Run an encoder's layers: B×S tokens -> B×S×D, zero at padding.

    Args:
        stack: of the encoder.
        tokens: B×S.
        padding: B×S, True at padding.
    """
    batch, length = tokens.shape
    rows = max(1, _ENCODED // max(1, length))
    if batch > rows:
        starts = range(0, batch, rows)
        parts = [native_encode(stack, tokens[n : n + rows], padding[n : n + rows]) for n in starts]
        return np.concatenate(parts)
    # A layer's keys and values are not needed after it: all layers use the same.
    check_memory(8 * batch * stack.heads * length * stack.head_size, batch)
    shape = 1, batch, stack.heads, length, stack.head_size
    keys, values = np.empty(shape, np.float32), np.empty(shape, np.float32)
    order, begins, counts = spans(padding)
    if order is not None:
        tokens = np.take_along_axis(tokens, order, axis=1)
    seen = np.full((1, length), length, np.int32)
    if counts is not None:
        seen = counts[:, None].repeat(length, axis=1)
    tokens = np.ascontiguousarray(tokens, np.int64)
    chunk = Chunk(
        rows=batch,
        width=length,
        tokens=address_of(tokens),
        begins=address_of(begins),
        counts=address_of(counts),
        seen=address_of(seen),
        seen_rows=len(seen),
    )
    states = _run(stack, chunk, store(keys, values), None)
    if order is None:
        return states
    placed = np.empty_like(states)
    np.put_along_axis(placed, order[:, :, None], states, axis=1)
    return placed


def _run(stack: NativeStack, chunk: Chunk, own: Store, source: Store | None) -> np.ndarray:
    """Call the library: -> B×K×D."""
    states = np.empty((chunk.rows, chunk.width, stack.stride), np.float32)
    status = library().paradec_pass(
        stack.address,
        ctypes.byref(chunk),
        ctypes.byref(own),
        None if source is None else ctypes.byref(source),
        address_of(states),
        num_threads(),
    )
    check_pass(status)
    return states if stack.dim == stack.stride else states[..., : stack.dim]


def check_pass(status: int) -> None:
    """Raise the error of a pass that failed."""
    if status == 2:
        raise IndexError("a token is not in the model's vocabulary, or has no slot in the cache")
    check(status)


def native_choose(
    linear: NativeMap,
    hidden: np.ndarray,
    at: Positions,
    draft: np.ndarray | None = None,
    normalised: bool = True,
    count: int | None = None,
) -> Scored:
    """Project hidden states and choose at every position; see ``choices.choose``.

    Args:
        linear: the projection, to the vocabulary or to its first tokens.
        hidden: B×R×D.
        at: the positions.
        draft: B×K drafted tokens, or None.
        normalised: return log-probabilities; else the scores as they are.
        count: return so many of the best tokens, B×R×N, and no ranks; see
            ``choices.candidates``.
    """
    batch, width, dim = hidden.shape
    limits = at.limits(width)
    hidden = np.ascontiguousarray(hidden, np.float32)
    shape = (batch, width) if count is None else (batch, width, count)
    tokens, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
    to = Choices(best=address_of(tokens), score=address_of(scores), normalised=normalised)
    to.count = count or 1
    bits, forced = bits_of(limits), forced_of(limits)
    to.limits, to.forced = address_of(bits), address_of(forced)
    texts = texts_of(at, width)
    to.before = None if texts is None else texts.address
    drafted = drafted_scores = ranks = None
    if draft is not None:
        drafted = np.full((batch, width), at.rules.pad, np.int64)
        drafted[:, : draft.shape[1]] = draft
        drafted_scores = np.empty((batch, width), np.float32)
        to.drafted, to.drafted_score = address_of(drafted), address_of(drafted_scores)
        if count is None:
            ranks = np.empty_like(drafted)
            to.drafted_rank = address_of(ranks)
    own = rules_of(at.rules)
    check(
        library().paradec_choose(
            linear.address,
            ctypes.byref(own),
            ctypes.byref(to),
            address_of(hidden),
            dim,
            batch * width,
            num_threads(),
        )
    )
    if draft is None or drafted_scores is None:
        return Scored(tokens, scores)
    last = draft.shape[1]
    ranked = None if ranks is None else ranks[:, :last]
    return Scored(tokens, scores, drafted_scores[:, :last], ranked)


def native_write(
    weights: NativeWeights,
    cache: NativeCache,
    linear: NativeMap,
    at: Positions,
    new: Sequence[Sequence[int]],
    counts: Sequence[int],
    least: float,
    normalised: bool,
) -> tuple[list[list[int]], list[list[float]]]:
    """Read tokens and write the best ones behind them; see ``ChunkScorer.write``."""
    batch, width, most = len(new), max(map(len, new)), max(counts)
    cache.make_room(width + max(most - 1, 0))  # the last written token is not read
    limits = at.limits(most)
    bits, forced, texts = bits_of(limits), forced_of(limits), texts_of(at, 1)
    # Arrays live until the library has read and written what the structures point to.
    chunk_tokens = (ctypes.c_int64 * (batch * width))()
    for b, fed in enumerate(new):
        chunk_tokens[b * width : b * width + len(fed)] = list(fed)
    lengths, own, source = (
        array_of(cache.lengths),
        array_of(cache.rows),
        array_of(cache.source_rows),
    )
    read, wanted, written = array_of(list(map(len, new))), array_of(counts), array_of([0] * batch)
    tokens = (ctypes.c_int64 * (batch * most))()
    scores = (ctypes.c_float * (batch * most))()
    chunk = Chunk(
        rows=batch,
        width=width,
        tokens=addressof(chunk_tokens),
        counts=addressof(read),
        starts=addressof(lengths),
        own_rows=addressof(own),
        source_rows=addressof(source),
    )
    to = Writing(
        counts=addressof(wanted),
        most=most,
        least=least,
        normalised=normalised,
        limits=address_of(bits),
        forced=address_of(forced),
        before=None if texts is None else texts.address,
        tokens=addressof(tokens),
        scores=addressof(scores),
        written=addressof(written),
    )
    check_pass(
        library().paradec_write(
            weights.stack.address,
            linear.address,
            ctypes.byref(rules_of(at.rules)),
            ctypes.byref(to),
            ctypes.byref(chunk),
            ctypes.byref(cache.store),
            ctypes.byref(cache.source_store),
            num_threads(),
        )
    )
    cache.keep([n + len(fed) + max(0, w - 1) for n, fed, w in zip(cache.lengths, new, written)])
    spans = [slice(b * most, b * most + w) for b, w in enumerate(written)]
    return [tokens[span] for span in spans], [scores[span] for span in spans]


def rules_of(rules: TokenRules) -> Rules:
    """Return rules as the library reads them, while ``rules`` lives."""
    made = Rules(
        pad=rules.pad,
        unknown=rules.unk,
        end=rules.eos,
        first=rules.first or 0,
        unknown_penalty=rules.unk_penalty,
        temperature=rules.temperature,
        penalty=rules.penalty,
        of_logits=rules.of_logits,
        ngram=rules.ngram,
        has_first=rules.first is not None,
        renormalised=rules.renormalised,
    )
    if rules.suppressed:
        made.suppressed = address_of(rules.suppressed_tokens)
        made.num_suppressed = len(rules.suppressed)
    if rules.sequences:
        made.sequences = address_of(rules.sequence_tokens)
        made.sequence_sizes = address_of(rules.sequence_sizes)
        made.num_sequences = len(rules.sequences)
    return made


class Texts:
    """What is before N positions, as csrc reads it while this lives.

    Args:
        texts: of each, its tokens; none where they are not known.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._tokens = [np.array(text, np.int64) for text in texts]
        self._each = (Before * len(texts))(
            *(Before(text=address_of(t), length=len(t)) for t in self._tokens)
        )
        self.address = addressof(self._each)


def texts_of(at: Positions, width: int) -> Texts | None:
    """Return what is before each position of chunks of ``width``; None: no rule reads it."""
    if not at.rules.read_texts:
        return None
    return Texts([text for texts in at.texts(width) for text in texts])


def bits_of(limits: Limits) -> np.ndarray | None:
    """Return the limits of each position as csrc/choose.h reads them, B×R; None: there are none."""
    bits = None
    for bit, where in zip(Limit, (limits.early, limits.last, limits.free), strict=True):
        if where is not None:
            flags = where * np.uint8(bit)
            bits = flags if bits is None else bits | flags
    return bits


def forced_of(limits: Limits) -> np.ndarray | None:
    """Return the forced token of each position, B×R; None: there are none."""
    return None if limits.forced is None else np.ascontiguousarray(limits.forced, np.int64)
