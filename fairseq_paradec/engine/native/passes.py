"""Native passes over a cache, native encoders, and native choices: tensors to C structures."""

import ctypes
from collections.abc import Sequence
from ctypes import addressof

import numpy as np
import torch
from torch import Tensor

from ...token_rules import Limits, Positions, Scored, TokenRules
from ..cache import check_memory
from ..masks import Mask, Tree
from .cache import NativeCache, NativeWeights, array_of, spans, store
from .library import Choices, Chunk, Limit, Rules, Store, Writing, library
from .stack import NativeMap, NativeStack, address_of, check

#: About as many tokens are encoded at once: their states stay in the CPU's cache.
_ENCODED = 256


def native_pass(
    weights: NativeWeights, cache: NativeCache, tokens: np.ndarray, mask: Mask = "causal"
) -> Tensor:
    """Run the decoder over one chunk per row; see ``decoder_pass``."""
    batch, width = tokens.shape
    cache.make_room(width)
    tokens = np.ascontiguousarray(tokens, np.int64)
    # Arrays live until the library has read what the chunk points to.
    starts, own, source = array_of(cache.lengths), array_of(cache.rows), array_of(cache.source_rows)
    chunk = Chunk(
        rows=batch,
        width=width,
        tokens=tokens.ctypes.data,
        starts=addressof(starts),
        own_rows=addressof(own),
        source_rows=addressof(source),
    )
    if isinstance(mask, str) and mask == "all":
        mask = np.full((1, width), width, np.int32)
    if isinstance(mask, np.ndarray):
        mask = np.ascontiguousarray(mask)
        if mask.dtype == bool:
            chunk.mask, chunk.slots = mask.ctypes.data, mask.shape[1]
        else:
            chunk.seen, chunk.seen_rows = mask.ctypes.data, len(mask)
    if isinstance(mask, Tree):
        reach = max(n - base for n, base in zip(cache.lengths, mask.bases, strict=True))
        assert reach + width <= mask.sees.shape[2], "the chunk ends behind the tree's mask"
        assert mask.depths.dtype == np.int32
        bases = array_of(mask.bases)
        sees, depths = np.ascontiguousarray(mask.sees), np.ascontiguousarray(mask.depths)
        chunk.bases, chunk.depths = addressof(bases), depths.ctypes.data
        chunk.sees, chunk.tree = sees.ctypes.data, sees.shape[2]
    stack = weights.stack
    return _run(stack, chunk, cache.store, cache.source_store)


def native_encode(stack: NativeStack, tokens: Tensor, padding: Tensor) -> Tensor:
    """Run an encoder's layers: B×S tokens -> B×S×D, zero at padding.

    Args:
        stack: of the encoder.
        tokens: B×S.
        padding: B×S, True at padding.
    """
    batch, length = tokens.shape
    rows = max(1, _ENCODED // max(1, length))
    if batch > rows:
        parts = zip(tokens.split(rows), padding.split(rows), strict=True)
        return torch.cat([native_encode(stack, *part) for part in parts])
    # A layer's keys and values are not needed after it: all layers use the same.
    check_memory(8 * batch * stack.heads * length * stack.head_size, batch)
    shape = 1, batch, stack.heads, length, stack.head_size
    keys, values = torch.empty(shape), torch.empty(shape)
    order, begins, counts = spans(padding)
    tokens = tokens.to(torch.long)
    if order is not None:
        tokens = tokens.gather(1, order)
    seen = torch.full((1, length), length, dtype=torch.int32)
    if counts is not None:
        seen = counts[:, None].expand(batch, length)
    tokens, seen = tokens.contiguous(), seen.contiguous()
    chunk = Chunk(
        rows=batch,
        width=length,
        tokens=tokens.data_ptr(),
        begins=address_of(begins),
        counts=address_of(counts),
        seen=seen.data_ptr(),
        seen_rows=seen.size(0),
    )
    states = _run(stack, chunk, store(keys, values), None)
    if order is None:
        return states
    return torch.zeros_like(states).scatter_(1, order[:, :, None].expand_as(states), states)


def _run(stack: NativeStack, chunk: Chunk, own: Store, source: Store | None) -> Tensor:
    """Call the library: -> B×K×D."""
    states = torch.empty(chunk.rows, chunk.width, stack.stride)
    status = library().paradec_pass(
        stack.address,
        ctypes.byref(chunk),
        ctypes.byref(own),
        None if source is None else ctypes.byref(source),
        states.data_ptr(),
        torch.get_num_threads(),
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
    hidden: Tensor,
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
    hidden = hidden.contiguous()
    shape = (batch, width) if count is None else (batch, width, count)
    tokens, scores = np.empty(shape, np.int64), np.empty(shape, np.float32)
    to = Choices(best=tokens.ctypes.data, score=scores.ctypes.data, normalised=normalised)
    to.count = count or 1
    bits, forced = bits_of(limits), limits.forced
    to.limits, to.forced = start_of(bits), start_of(forced)
    drafted = drafted_scores = ranks = None
    if draft is not None:
        drafted = np.full((batch, width), at.rules.pad)
        drafted[:, : draft.shape[1]] = draft
        drafted_scores = np.empty((batch, width), np.float32)
        to.drafted, to.drafted_score = drafted.ctypes.data, drafted_scores.ctypes.data
        if count is None:
            ranks = np.empty_like(drafted)
            to.drafted_rank = ranks.ctypes.data
    own = rules_of(at.rules)
    check(
        library().paradec_choose(
            linear.address,
            ctypes.byref(own),
            ctypes.byref(to),
            hidden.data_ptr(),
            dim,
            batch * width,
            torch.get_num_threads(),
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
    bits, forced = bits_of(limits), limits.forced
    # Arrays and tensors live until the library has read and written what the structures point to.
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
        limits=start_of(bits),
        forced=start_of(forced),
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
            torch.get_num_threads(),
        )
    )
    cache.keep([n + len(fed) + max(0, w - 1) for n, fed, w in zip(cache.lengths, new, written)])
    spans = [slice(b * most, b * most + w) for b, w in enumerate(written)]
    return [tokens[span] for span in spans], [scores[span] for span in spans]


def rules_of(rules: TokenRules) -> Rules:
    """Return rules as the library reads them, while ``rules`` lives."""
    return Rules(
        pad=rules.pad,
        unknown=rules.unk,
        end=rules.eos,
        unknown_penalty=rules.unk_penalty,
        temperature=rules.temperature,
        suppressed=rules.suppressed_tokens.ctypes.data,
        num_suppressed=len(rules.suppressed),
    )


def bits_of(limits: Limits) -> np.ndarray | None:
    """Return the limits of each position as csrc/choose.h reads them, B×R; None: there are none."""
    bits = None
    for bit, where in zip(Limit, (limits.early, limits.last, limits.free), strict=True):
        if where is not None:
            flags = where.astype(np.uint8) * np.uint8(bit)
            bits = flags if bits is None else bits | flags
    return bits


def start_of(array: np.ndarray | None) -> int | None:
    """Return where an array's numbers lie; None: there is no array."""
    return None if array is None else array.ctypes.data
