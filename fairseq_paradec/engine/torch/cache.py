"""Cache: keys and values of a batch's source and of its decoded tokens."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..slots import check_memory, moves

# A new cache has this many slots per row; the number doubles when a chunk does not fit.
INITIAL_CAPACITY = 32


class Place(NamedTuple):
    """Where a chunk is written."""

    # the positions of its tokens in the output: a slice if they are the same for all rows, or R×K,
    # where R is B, or 1 for all rows
    positions: slice | Tensor
    where: tuple[Any, Any]  # its rows and slots, as an index of the cache's B×T
    end: int  # the number of slots that attention reads


class Cache:
    """Keys and values of a batch's source and tokens, each row with a length of its own.

    A row's tokens lie in its first slots. A pass writes keys and values in place, at each row's own
    offset; a rollback changes lengths only and moves no tensor.

    Args:
        source: L×2×B×H×S×Dh, keys and values of the source.
        padding: B×S, True at the source's padding; None: no padding.
        capacity: the number of slots per row at first.

    Attributes:
        keys: L×B×T×2×H×Dh, keys and values of the tokens.
        lengths: the number of cached tokens of each row.
        source: as given.
        source_bias: B×1×1×S, -inf at padding, or None.
        source_vectors: the source's embeddings, B×S×E, and its padding, B×S, for a decoder that
            copies from them.
    """

    def __init__(
        self, source: Tensor, padding: Tensor | None = None, capacity: int = INITIAL_CAPACITY
    ) -> None:
        batch, length = source.size(2), source.size(4)
        self.source = source
        self.source_bias: Tensor | None = None
        if padding is not None and bool(padding.any()):
            blank = source.new_zeros(batch, 1, 1, length)
            self.source_bias = blank.masked_fill_(padding[:, None, None], -math.inf)
        self.source_vectors: tuple[Tensor, Tensor] | None = None
        self.lengths = [0] * batch
        self.keys = self._empty(batch, capacity)

    @property
    def capacity(self) -> int:
        """T, the number of slots of a row."""
        return self.keys.size(2)

    def _empty(self, batch: int, capacity: int) -> Tensor:
        """Return keys and values of zeros; NaN in a masked slot would spread, since 0·NaN = NaN."""
        layers, _, _, heads, _, size = self.source.shape
        shape = (layers, batch, capacity, 2, heads, size)
        if self.source.device.type == "cpu":
            check_memory(math.prod(shape) * self.source.element_size(), batch)
        return self.source.new_zeros(shape)

    def make_room(self, width: int) -> None:
        """Enlarge the cache so that a chunk of ``width`` tokens fits after each row."""
        end, capacity = max(self.lengths) + width, self.capacity
        if end > capacity:
            while capacity < end:
                capacity *= 2
            larger = self._empty(self.keys.size(1), capacity)
            larger[:, :, : self.capacity] = self.keys
            self.keys = larger

    def place(self, width: int) -> Place:
        """Return where a chunk of ``width`` tokens is written; ``make_room`` has been called."""
        start, end = min(self.lengths), max(self.lengths) + width
        if start + width == end:
            return Place(slice(start, end), (slice(None), slice(start, end)), end)
        first = torch.tensor(self.lengths, device=self.keys.device)
        positions = first[:, None] + torch.arange(width, device=self.keys.device)
        return Place(positions, (self.rows(), positions), end)

    def rows(self) -> Tensor:
        """Return the indices of the rows, B×1."""
        return torch.arange(self.keys.size(1), device=self.keys.device)[:, None]

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.lengths = list(lengths)

    def gather(self, starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep one path of each row's tree: its slots move next to those before the tree.

        Args:
            starts: of row b, the first ``starts[b]`` slots stay.
            paths: of row b, the slots that follow them, ascending; no others stay cached.
        """
        copies = moves(starts, paths, self.capacity)
        if copies:
            rows, to, of = torch.tensor(copies, device=self.keys.device).unbind(1)
            self.keys[:, rows, to] = self.keys[:, rows, of]
        self.keep([start + len(path) for start, path in zip(starts, paths, strict=True)])

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Make row ``index[b]`` the new row b, for all b; rows may be dropped or repeated.

        Args:
            index: the rows.
            same_source: rows ``b`` and ``index[b]`` have the same source, as the hypotheses of one
                sentence do; the source is not copied.
        """
        picked = torch.tensor(index, device=self.keys.device)
        self.lengths = [self.lengths[i] for i in index]
        used = max(self.lengths)
        chosen = self.keys[:, :, :used].index_select(1, picked)
        if len(index) > self.keys.size(1):
            self.keys = self._empty(len(index), self.capacity)
        self.keys = self.keys[:, : len(index)]
        self.keys[:, :, :used] = chosen
        if same_source:
            return
        self.source = self.source.index_select(2, picked)
        if self.source_bias is not None:
            self.source_bias = self.source_bias.index_select(0, picked)
        if self.source_vectors is not None:
            vectors, padding = self.source_vectors
            self.source_vectors = vectors.index_select(0, picked), padding.index_select(0, picked)


class WindowCache(Cache):
    """A cache of the last tokens only, for local attention (Parmar et al. 2018, section 3.3).

    Position p of a row is kept in slot p mod T. T is the window plus room for a chunk, for any
    output length. So rolled-back tokens never overwrite a token that is still attended to, and a
    row's length determines which position a slot holds. A row can be rolled back to the start of
    its last chunk, no further.

    Args:
        source: see Cache.
        padding: see Cache.
        window: its ``first`` returns the first position that a position attends to.
        reach: the largest distance to a position that is attended to.
    """

    def __init__(self, source: Tensor, padding: Tensor | None, window: Any, reach: int) -> None:
        super().__init__(source, padding, reach + INITIAL_CAPACITY)
        self.window = window
        self.reach = reach
        self.oldest = [0] * len(self.lengths)  # the first position that each row holds

    def make_room(self, width: int) -> None:
        """Enlarge the cache so that the window and a chunk of ``width`` tokens fit."""
        room = INITIAL_CAPACITY
        while room < width:
            room *= 2
        if self.reach + room > self.capacity:
            self._enlarge(self.reach + room)
        known = zip(self.oldest, self.lengths, strict=True)
        self.oldest = [max(oldest, n + width - self.capacity) for oldest, n in known]

    def _enlarge(self, capacity: int) -> None:
        """Move the tokens in the window to a cache of ``capacity`` slots."""
        device = self.keys.device
        last = torch.tensor(self.lengths, device=device)[:, None] - 1
        # Positions below 0 do not exist; they map to slots that are not in use yet.
        positions = last - torch.arange(self.reach, device=device)  # B×R
        rows = self.rows()
        held = self.keys[:, rows, self.slots(positions, self.capacity)]
        self.keys = self._empty(len(self.lengths), capacity)
        self.keys[:, rows, self.slots(positions, capacity)] = held
        known = zip(self.oldest, self.lengths, strict=True)
        self.oldest = [max(oldest, n - self.reach) for oldest, n in known]

    def place(self, width: int) -> Place:
        """Return where a chunk of ``width`` tokens is written; ``make_room`` has been called."""
        device, starts = self.keys.device, self.lengths
        if min(starts) == max(starts):
            starts = starts[:1]  # one mask for all
        first = torch.tensor(starts, device=device)
        positions = first[:, None] + torch.arange(width, device=device)
        slots = self.slots(positions, self.capacity)
        return Place(positions, (self.rows(), slots), self.capacity)

    def slots(self, positions: Tensor, capacity: int) -> Tensor:
        """Return the slots, out of ``capacity``, of these positions of the output."""
        return positions % capacity

    def hidden(self, positions: Tensor, capacity: int) -> Tensor:
        """Return which of T slots are masked for a chunk at these positions: R×K -> R×K×T."""
        last = positions[:, -1:]
        slots = torch.arange(capacity, device=positions.device)
        held = (last - (last - slots) % capacity)[:, None]  # R×1×T: the position in each slot
        here = positions[:, :, None]
        return (held > here) | (held < self.window.first(here).clamp(min=0))

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        for length, oldest in zip(lengths, self.oldest, strict=True):
            assert self.window.first(length) >= oldest or oldest == 0, "the window is overwritten"
        super().keep(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows; see Cache.reorder."""
        super().reorder(index, same_source)
        self.oldest = [self.oldest[i] for i in index]
