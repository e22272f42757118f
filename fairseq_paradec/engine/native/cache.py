"""Keys and values of native passes, and where the tokens of a batch are."""

import bisect
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...threads import num_threads
from ..slots import check_memory, moves
from .library import Store, library
from .stack import NativeMap, NativeStack, address_of, check

#: How many tokens of a row there is room for at first.
INITIAL_CAPACITY = 64
#: Floats in a line of the CPU's cache.
_LINE = 16
#: Bytes from which memory is mapped page by page, and used again.
_LARGE = 4 << 20
#: Bytes of caches that are gone which are kept for the next ones, touched or not.
_KEPT = 128 << 20


#: Keys and values, L×P×H×T×Dp each.
Pair: TypeAlias = tuple[np.ndarray, np.ndarray]


class NativeWeights(NamedTuple):
    """All that a native pass reads of a decoder."""

    stack: NativeStack  # its layers
    # all layers' keys and values of the source in one map, (L·2·H·Dp)×C; None: it joins a cache
    source_keys: NativeMap | None
    projection: NativeMap | None  # to the vocabulary; None: it is no linear map


class NativeCache:
    """Keys and values of a batch's source and tokens, each row with a length of its own.

    Rows are numbers of places: a row that leaves the batch, or that moves, is not copied.

    Args:
        weights: of the decoder.
        states: B×S×C, the encoder's.
        padding: B×S, True at padding, on either side; None: there is none.

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
        self, weights: NativeWeights, states: np.ndarray, padding: np.ndarray | None
    ) -> None:
        self._weights, self._stack = weights, weights.stack
        self._taken: list[np.ndarray] = []  # what the source and the tokens lie in
        weakref.finalize(self, _pages.give_back, self._taken).atexit = False
        batch = len(states)
        self.source, self.source_lengths = self._read(states, padding)
        self.rows = self.source_rows = list(range(batch))
        self.lengths = [0] * batch
        self.keys, self.values = self._empty(batch, INITIAL_CAPACITY)
        self._point()

    def _read(self, states: np.ndarray, padding: np.ndarray | None) -> tuple[Pair, np.ndarray]:
        """Return keys and values of a source, and its lengths without padding."""
        batch, length = states.shape[:2]
        order, begins, counts = spans(padding)
        if order is not None:
            states = np.take_along_axis(states, order[:, :, None], axis=1)
        if counts is None:
            counts = np.full(batch, length, np.int32)
        pair, states = self._empty(batch, length), np.ascontiguousarray(states, np.float32)
        keys = self._weights.source_keys
        assert keys is not None, "a scorer that joins another's cache makes none"
        check(
            library().paradec_source(
                self._stack.address,
                keys.address,
                address_of(states),
                states.shape[2],
                length,
                address_of(begins),
                ctypes.byref(store(*pair, counts)),
                num_threads(),
            )
        )
        return pair, counts

    @property
    def capacity(self) -> int:
        """How many slots a row has, T."""
        return self.keys.shape[3]

    def _empty(self, batch: int, capacity: int) -> Pair:
        """Return room for keys and values; it holds numbers, for 0·NaN in a masked slot is NaN."""
        stack = self._stack
        shape = 2, stack.num_layers, batch, stack.heads, capacity, stack.head_size
        count = math.prod(shape)
        check_memory(4 * count, batch)
        taken = _pages.take(count)
        self._taken.append(taken)
        keys, values = taken[:count].reshape(shape)
        return keys, values

    def _point(self) -> None:
        """Tell the library where the arrays are."""
        self.store = store(self.keys, self.values)
        self.source_store = store(*self.source, self.source_lengths)

    def make_room(self, width: int) -> None:
        """Let a chunk of so many tokens fit behind each row."""
        self.reserve(max(self.lengths) + width)

    def reserve(self, slots: int) -> None:
        """Let each row have at least so many slots."""
        capacity = self.capacity
        while capacity < slots:
            capacity *= 2
        if capacity > self.capacity:
            self._enlarge(self.keys.shape[1], capacity)

    def _enlarge(self, places: int, slots: int) -> None:
        """Move the tokens' keys and values to a larger room."""
        self.keys, self.values = self._moved((self.keys, self.values), places, slots)
        self._point()

    def _moved(self, pair: Pair, places: int, slots: int) -> Pair:
        """Return a larger room for keys and values, with them in it."""
        larger = self._empty(places, slots)
        for to, of in zip(larger, pair, strict=True):
            to[:, : of.shape[1], :, : of.shape[3]] = of
        self._drop(pair)
        return larger

    def _drop(self, pair: Pair) -> None:
        """Give back the room of keys and values."""
        where = [taken.ctypes.data for taken in self._taken].index(pair[0].ctypes.data)
        _pages.give_back([self._taken.pop(where)])

    def add(self, states: np.ndarray, padding: np.ndarray | None) -> None:
        """Append rows without tokens, at the places of rows that have left.

        Args:
            states: of their sources; see the class.
            padding: the same.
        """
        pair, lengths = self._read(states, padding)
        slots, count = states.shape[1], len(states)
        if slots > self.source[0].shape[3]:
            self.source = self._moved(self.source, self.source[0].shape[1], slots)
        places = free_of(self.source_lengths.size, self.source_rows)[:count]
        for to, of in zip(self.source, pair, strict=True):
            to[:, places, :, :slots] = of
        self.source_lengths[places] = lengths
        self._drop(pair)
        self.source_rows = [*self.source_rows, *places]
        self.rows = [*self.rows, *free_of(self.keys.shape[1], self.rows)[:count]]
        self.lengths = [*self.lengths, *[0] * count]
        self._point()

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.lengths = list(lengths)

    def gather(self, starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path of each row's tree; see ``Cache.gather``."""
        copies = moves(starts, paths, self.capacity)
        if copies:
            rows, to, of = zip(*copies, strict=True)
            library().paradec_move(
                self._stack.address,
                ctypes.byref(self.store),
                array_of([self.rows[row] for row in rows]),
                array_of(to),
                array_of(of),
                len(copies),
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
        free = free_of(self.keys.shape[1], wanted)
        missing = len(wanted) - len(taken) - len(free)
        if missing > 0:
            free += range(self.keys.shape[1], self.keys.shape[1] + missing)
            self._enlarge(self.keys.shape[1] + missing, self.capacity)
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


class _Pages:
    """Memory of caches: large pieces are mapped, and used again once their cache is gone.

    The system blanks a mapped page when it is first touched, which costs a batch of small models a
    tenth of its time. As many pieces are kept as were in use at once, at most ``_KEPT`` bytes.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing; in a process that was forked another thread may have held the lock."""
        self._kept: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, count: int) -> np.ndarray:
        """Return a piece of at least so many floats: zeros, or numbers of a cache that is gone."""
        if 4 * count < _LARGE:
            return _new_pages(count)
        step = 1 << count.bit_length() - 3  # a little more, so that the next batch's fits, too
        count = math.ceil(count / step) * step
        with self._lock:
            self._kept.sort(key=len)
            place = bisect.bisect_left(self._kept, count, key=len)
            if place < len(self._kept):
                return self._kept.pop(place)
            del self._kept[-1:]  # the new piece takes its part
        return _new_pages(count)

    def give_back(self, pieces: list[np.ndarray]) -> None:
        """Keep the large ones of the pieces; the last ones go where that is too much."""
        # A cache may be collected in the middle of another one's take: then nothing is kept.
        if self._lock.acquire(blocking=False):
            self._kept += [piece for piece in pieces if 4 * len(piece) >= _LARGE]
            while sum(4 * len(piece) for piece in self._kept) > _KEPT:
                del self._kept[-1]
            self._lock.release()


_pages = _Pages()
os.register_at_fork(after_in_child=_pages.forget)


def _new_pages(count: int) -> np.ndarray:
    """Return so many zeros; pages of large ones get memory when they are touched.

    numpy asks for huge pages from 4 MiB on. Many of a cache's slots are never used, and a huge page
    of them would be memory all the same.
    """
    if 4 * count >= _LARGE and hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages = mmap.mmap(-1, 4 * count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(pages, np.float32)
    room = np.zeros(count + _LINE, np.float32)
    first = -(room.ctypes.data // room.itemsize) % _LINE
    return room[first : first + count]


def free_of(count: int, rows: Sequence[int]) -> list[int]:
    """Return the places of so many that no row has."""
    taken = set(rows)
    return [place for place in range(count) if place not in taken]


def store(keys: np.ndarray, values: np.ndarray, lengths: np.ndarray | None = None) -> Store:
    """Describe keys and values to the library."""
    return Store(
        keys=address_of(keys),
        values=address_of(values),
        layers=len(keys),
        rows=keys.shape[1],
        slots=keys.shape[3],
        lengths=address_of(lengths),
    )


class Spans(NamedTuple):
    """Where the tokens of a batch are that are no padding."""

    # B×S, which moves padding behind the tokens; None: it lies on one side of each row
    order: np.ndarray | None = None
    begins: np.ndarray | None = None  # B, a row's first token; None: there is no padding
    counts: np.ndarray | None = None  # B, how many tokens follow; None: there is no padding


def spans(padding: np.ndarray | None) -> Spans:
    """Find the tokens of a batch: B×S, True at padding."""
    if padding is None or not padding.any():
        return Spans()
    real = ~padding
    begins, counts = real.argmax(axis=1), real.sum(axis=1)
    index = np.arange(padding.shape[1])
    inside = (index >= begins[:, None]) & (index < (begins + counts)[:, None])
    if (inside == real).all():
        return Spans(None, begins.astype(np.int32), counts.astype(np.int32))
    # <pad> may be a word of the source: a stable sort keeps the order of the others.
    order = padding.argsort(axis=1, kind="stable")
    return Spans(order, np.zeros_like(begins, np.int32), counts.astype(np.int32))


def array_of(numbers: Sequence[int]) -> Any:
    """Make an array of 32-bit numbers."""
    return (ctypes.c_int32 * len(numbers))(*numbers)
