"""Native passes over a cache, native encoders, and native choices."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from ctypes import addressof
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...token_rules import Limits, Positions, Scored, TokenRules
from ..cache import check_memory, moves
from ..masks import Mask, Tree
from .library import Choices, Chunk, Limit, Rules, Store, Writing, library
from .stack import NativeMap, NativeStack, address_of, check

INITIAL_CAPACITY = 64
#: Bytes from which memory is mapped page by page.
_LARGE = 4 << 20
#: About as many tokens are encoded at once: their states stay in the CPU's cache.
_ENCODED = 256


class NativeWeights(NamedTuple):
    """All that a native pass reads of a decoder."""

    stack: NativeStack  # its layers
    source_keys: NativeMap  # all layers' keys and values of the source in one map, (L·2·H·Dp)×C
    projection: NativeMap | None  # to the vocabulary; None: it is no linear map


class NativeCache:
    """Keys and values of a batch's source and tokens, each row with a length of its own.

    Rows are numbers of places: a row that leaves the batch, or that moves, is not copied.

    Args:
        weights: of the decoder.
        states: B×S×C, the encoder's.
        padding: B×S, True at padding, on either side; None: there is none.
        capacity: how many tokens it holds at first.

    Attributes:
        keys: L×P×H×T×Dp, of the tokens; P places.
        values: the same.
        source: the same two of the source, S places.
        source_lengths: of each place, without padding.
        rows: of each row, its place.
        source_rows: of each row, its source's place.
        lengths: of each row, how many tokens are cached.
    """

    def __init__(
        self,
        weights: NativeWeights,
        states: Tensor,
        padding: Tensor | None,
        capacity: int = INITIAL_CAPACITY,
    ) -> None:
        stack = self._stack = weights.stack
        batch, length = states.shape[:2]
        order, begins, counts = spans(padding)
        if order is not None:
            states = states.gather(1, order[:, :, None].expand_as(states))
        self.source = self._empty(batch, length)
        self.source_lengths = (
            torch.full((batch,), length, dtype=torch.int32) if counts is None else counts
        )
        self.rows = self.source_rows = list(range(batch))
        self.lengths = [0] * batch
        self.keys, self.values = self._empty(batch, capacity)
        self._point()
        states = states.contiguous()
        check(
            library().paradec_source(
                stack.address,
                weights.source_keys.address,
                states.data_ptr(),
                states.size(2),
                length,
                address_of(begins),
                ctypes.byref(self.source_store),
                torch.get_num_threads(),
            )
        )

    @property
    def capacity(self) -> int:
        """How many slots a row has, T."""
        return self.keys.size(3)

    def _empty(self, batch: int, capacity: int) -> tuple[Tensor, Tensor]:
        """Return blank keys and values; zeros, for 0·NaN in a masked slot would be NaN."""
        stack = self._stack
        layers, heads, size = stack.num_layers, stack.heads, stack.head_size
        check_memory(8 * layers * batch * heads * capacity * size, batch)
        keys, values = _zeros(2, layers, batch, heads, capacity, size)
        return keys, values

    def _point(self) -> None:
        """Tell the library where the tensors are."""
        self.store = store(self.keys, self.values)
        self.source_store = store(*self.source, self.source_lengths)

    def make_room(self, width: int) -> None:
        """Let a chunk of so many tokens fit behind each row."""
        end, capacity, old = max(self.lengths) + width, self.capacity, self.capacity
        if end > capacity:
            while capacity < end:
                capacity *= 2
            keys, values = self._empty(self.keys.size(1), capacity)
            keys[:, :, :, :old] = self.keys
            values[:, :, :, :old] = self.values
            self.keys, self.values = keys, values
            self._point()

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.lengths = list(lengths)

    def gather(self, starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path of each row's tree; see ``Cache.gather``."""
        found = moves(starts, paths, self.capacity)
        if found:
            rows, to, of = zip(*found, strict=True)
            library().paradec_move(
                self._stack.address,
                ctypes.byref(self.store),
                array_of([self.rows[row] for row in rows]),
                array_of(to),
                array_of(of),
                len(found),
            )
        self.keep([start + len(path) for start, path in zip(starts, paths, strict=True)])

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Make row ``index[b]`` the new row b; see ``Cache.reorder``.

        The first row that continues a place keeps it; each other gets a copy.
        """
        self.lengths = [self.lengths[i] for i in index]
        if not same_source:
            self.source_rows = [self.source_rows[i] for i in index]
        wanted = [self.rows[i] for i in index]
        taken = set(wanted)
        free = [place for place in range(self.keys.size(1)) if place not in taken]
        missing = len(wanted) - len(taken) - len(free)
        if missing > 0:
            free += range(self.keys.size(1), self.keys.size(1) + missing)
            keys, values = self._empty(self.keys.size(1) + missing, self.capacity)
            keys[:, : self.keys.size(1)] = self.keys
            values[:, : self.keys.size(1)] = self.values
            self.keys, self.values = keys, values
            self._point()
        self.rows, copies = [], {}
        for place in wanted:
            if place in taken:
                taken.remove(place)
                self.rows.append(place)
            else:
                copies[free[-1]] = place
                self.rows.append(free.pop())
        if copies:
            library().paradec_copy(
                self._stack.address,
                ctypes.byref(self.store),
                array_of(list(copies)),
                array_of(list(copies.values())),
                len(copies),
                max(self.lengths),
            )


def _zeros(*shape: int) -> Tensor:
    """As torch.zeros; but the system blanks large ones page by page, as they are touched.

    numpy asks for huge pages from 4 MiB on. Most of a cache's slots stay blank, and a huge page of
    them would be memory all the same.
    """
    count, line = math.prod(shape), 16  # floats of the CPU cache's lines
    if 4 * count >= _LARGE and hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages = mmap.mmap(-1, 4 * count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(pages, dtype=torch.float32).view(shape)
    room = np.zeros(count + line, np.float32)
    first = -(room.ctypes.data // room.itemsize) % line
    return torch.from_numpy(room[first : first + count]).view(shape)


def store(keys: Tensor, values: Tensor, lengths: Tensor | None = None) -> Store:
    """Describe keys and values to the library."""
    return Store(
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        layers=len(keys),
        rows=keys.size(1),
        slots=keys.size(3),
        lengths=address_of(lengths),
    )


class Spans(NamedTuple):
    """Where the tokens of a batch are that are no padding."""

    # B×S, which moves padding behind the tokens; None: it lies on one side of each row
    order: Tensor | None = None
    begins: Tensor | None = None  # B, a row's first token; None: there is no padding
    counts: Tensor | None = None  # B, how many tokens follow; None: there is no padding


def spans(padding: Tensor | None) -> Spans:
    """Find the tokens of a batch: B×S, True at padding."""
    if padding is None or not bool(padding.any()):
        return Spans()
    real = ~padding
    begins, counts = real.to(torch.uint8).argmax(dim=1), real.sum(dim=1)
    index = torch.arange(padding.size(1))
    inside = (index >= begins[:, None]) & (index < (begins + counts)[:, None])
    if bool(inside.eq(real).all()):
        return Spans(None, begins.to(torch.int32), counts.to(torch.int32))
    # <pad> may be a word of the source: a stable sort keeps the order of the others.
    order = padding.to(torch.uint8).argsort(dim=1, stable=True)
    return Spans(order, torch.zeros_like(begins, dtype=torch.int32), counts.to(torch.int32))


def native_pass(
    weights: NativeWeights, cache: NativeCache, tokens: Tensor, mask: Mask = "causal"
) -> Tensor:
    """Run the decoder over one chunk per row; see ``decoder_pass``."""
    batch, width = tokens.shape
    cache.make_room(width)
    tokens = tokens.contiguous()
    # Arrays and tensors live until the library has read what the chunk points to.
    starts, own, source = array_of(cache.lengths), array_of(cache.rows), array_of(cache.source_rows)
    chunk = Chunk(
        rows=batch,
        width=width,
        tokens=tokens.data_ptr(),
        starts=addressof(starts),
        own_rows=addressof(own),
        source_rows=addressof(source),
    )
    if mask == "all":
        mask = torch.full((1, width), width, dtype=torch.int32)
    if isinstance(mask, Tensor):
        mask = mask.contiguous()
        if mask.dtype == torch.bool:
            chunk.mask, chunk.slots = mask.data_ptr(), mask.size(1)
        else:
            chunk.seen, chunk.seen_rows = mask.data_ptr(), mask.size(0)
    if isinstance(mask, Tree):
        reach = max(n - base for n, base in zip(cache.lengths, mask.bases, strict=True))
        assert reach + width <= mask.sees.size(2), "the chunk ends behind the tree's mask"
        assert mask.depths.dtype == torch.int32
        bases, sees, depths = array_of(mask.bases), mask.sees.contiguous(), mask.depths.contiguous()
        chunk.bases, chunk.depths = addressof(bases), depths.data_ptr()
        chunk.sees, chunk.tree = sees.data_ptr(), sees.size(2)
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


def array_of(numbers: Sequence[int]) -> Any:
    """Make an array of 32-bit numbers."""
    return (ctypes.c_int32 * len(numbers))(*numbers)


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
    draft: Tensor | None = None,
    normalised: bool = True,
    count: int | None = None,
) -> Scored:
    """Project hidden states and choose at every position; see ``Positions.choose``.

    Args:
        linear: the projection, to the vocabulary or to its first tokens.
        hidden: B×R×D.
        at: the positions.
        draft: B×K drafted tokens, or None.
        normalised: return log-probabilities; else the scores as they are.
        count: return so many of the best tokens, B×R×N, and no ranks; see
            ``Positions.candidates``.
    """
    batch, width, dim = hidden.shape
    limits = at.limits(width)
    hidden = hidden.contiguous()
    shape = (batch, width) if count is None else (batch, width, count)
    tokens, scores = torch.empty(shape, dtype=torch.long), torch.empty(shape)
    to = Choices(best=tokens.data_ptr(), score=scores.data_ptr(), normalised=normalised)
    to.count = count or 1
    bits, forced = bits_of(limits), limits.forced
    to.limits, to.forced = address_of(bits), address_of(forced)
    drafted = drafted_scores = ranks = None
    if draft is not None:
        drafted = torch.full((batch, width), at.rules.pad)
        drafted[:, : draft.size(1)] = draft
        drafted_scores = torch.empty(batch, width)
        to.drafted, to.drafted_score = drafted.data_ptr(), drafted_scores.data_ptr()
        if count is None:
            ranks = torch.empty_like(drafted)
            to.drafted_rank = ranks.data_ptr()
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
    last = draft.size(1)
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
    for b, one in enumerate(new):
        chunk_tokens[b * width : b * width + len(one)] = list(one)
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
    cache.keep([n + len(one) + max(0, w - 1) for n, one, w in zip(cache.lengths, new, written)])
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
        suppressed=rules.suppressed_tokens.data_ptr(),
        num_suppressed=len(rules.suppressed),
    )


def bits_of(limits: Limits) -> Tensor | None:
    """Return the limits of each position as csrc/choose.h reads them, B×R; None: there are none."""
    bits = None
    for bit, where in zip(Limit, (limits.early, limits.last, limits.free), strict=True):
        if where is not None:
            flags = where.to(torch.uint8) * int(bit)
            bits = flags if bits is None else bits | flags
    return bits
