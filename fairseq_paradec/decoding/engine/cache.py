"""Cache: what a decoder has computed of a batch, source and tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# The first cache holds this many tokens; it doubles whenever a chunk does not fit.
INITIAL_CAPACITY = 32


class Place(NamedTuple):
    """Where a chunk stands.

    Attributes:
        positions: of its tokens in the output: a slice if they are the same for all rows, or R×K,
            R being B, or 1 for all rows.
        where: rows and slots, as an index of the cache's B×T.
        end: how many slots are attended to.
    """

    positions: slice | Tensor
    where: tuple[Any, Any]
    end: int


class Cache:
    """Keys and values of a batch's source and tokens, each row with a length of its own.

    A row's tokens lie in its first slots. What is computed is written in place at each row's own
    offset; rolling back is by length alone and moves nothing.

    Args:
        source: L×2×B×H×S×Dh, keys and values of the source.
        padding: B×S, True at the source's padding; None: there is none.
        capacity: how many tokens it holds at first.

    Attributes:
        keys: L×B×T×2×H×Dh, keys and values of the tokens.
        lengths: of each row, how many tokens are cached.
        source: as given.
        source_bias: B×1×1×S, -inf at padding, or None.
        source_vectors: the source's embeddings, B×S×E, and its padding, B×S, for a decoder that
            copies from them.
        compiled: whether a pass over it ran as torch.compile made it.
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
        self.compiled = False
        self.keys = self._empty(batch, capacity)

    @property
    def capacity(self) -> int:
        """How many slots a row has, T."""
        return self.keys.size(2)

    def _empty(self, batch: int, capacity: int) -> Tensor:
        """Return blank keys and values; zeros, for 0·NaN in a masked slot would be NaN."""
        layers, _, _, heads, _, size = self.source.shape
        return self.source.new_zeros(layers, batch, capacity, 2, heads, size)

    def make_room(self, width: int) -> None:
        """Let a chunk of so many tokens fit behind each row."""
        end, capacity = max(self.lengths) + width, self.capacity
        if end > capacity:
            while capacity < end:
                capacity *= 2
            larger = self._empty(self.keys.size(1), capacity)
            larger[:, :, : self.capacity] = self.keys
            self.keys = larger

    def place(self, width: int) -> Place:
        """Say where a chunk of so many tokens goes; there is room for it."""
        start, end = min(self.lengths), max(self.lengths) + width
        if start + width == end:
            return Place(slice(start, end), (slice(None), slice(start, end)), end)
        first = torch.tensor(self.lengths, device=self.keys.device)
        positions = first[:, None] + torch.arange(width, device=self.keys.device)
        return Place(positions, (self.rows(), positions), end)

    def rows(self) -> Tensor:
        """Return the numbers of the rows, B×1, as an index."""
        return torch.arange(self.keys.size(1), device=self.keys.device)[:, None]

    def slots(self, positions: Tensor, capacity: int) -> Tensor:
        """Return in which of so many slots positions of the output are kept."""
        return positions

    def hidden(self, positions: Tensor, capacity: int) -> Tensor:
        """Say which of T slots a chunk at these positions does not see: R×K -> R×K×T."""
        return torch.arange(capacity, device=positions.device) > positions[:, :, None]

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

    def pad_source(self, length: int) -> None:
        """Make the source so long; nobody sees what is added."""
        blank = length - self.source.size(4)
        if self.source_bias is None:
            self.source_bias = self.source.new_zeros(self.keys.size(1), 1, 1, self.source.size(4))
        if blank > 0:
            self.source = F.pad(self.source, (0, 0, 0, blank))
            self.source_bias = F.pad(self.source_bias, (0, blank), value=-math.inf)


class WindowCache(Cache):
    """A cache of the last tokens alone, for local attention (Parmar et al. 2018, section 3.3).

    Position p of a row is kept in slot p mod T. T is the window and room for a chunk, whatever the
    output's length; so rolled-back tokens never lie where an older one is still to be seen, and
    which position a slot holds follows from the row's length alone. A row can be rolled back as far
    as its last chunk's start, no further.

    Args:
        source: see Cache.
        padding: see Cache.
        window: says by ``first`` from where on a position sees.
        reach: how many positions before its own one sees at most.
    """

    def __init__(self, source: Tensor, padding: Tensor | None, window: Any, reach: int) -> None:
        super().__init__(source, padding, reach + INITIAL_CAPACITY)
        self.window = window
        self.reach = reach
        self.oldest = [0] * len(self.lengths)  # of each row, the first position that is held

    def make_room(self, width: int) -> None:
        """Let a chunk of so many tokens fit behind what each row still sees."""
        room = INITIAL_CAPACITY
        while room < width:
            room *= 2
        if self.reach + room > self.capacity:
            self._enlarge(self.reach + room)
        known = zip(self.oldest, self.lengths, strict=True)
        self.oldest = [max(oldest, n + width - self.capacity) for oldest, n in known]

    def _enlarge(self, capacity: int) -> None:
        """Move what is still to be seen into more slots."""
        device = self.keys.device
        last = torch.tensor(self.lengths, device=device)[:, None] - 1
        # Those below 0 are nobody's; they fall into slots that are of no use yet.
        positions = last - torch.arange(self.reach, device=device)  # B×R
        rows = self.rows()
        held = self.keys[:, rows, self.slots(positions, self.capacity)]
        self.keys = self._empty(len(self.lengths), capacity)
        self.keys[:, rows, self.slots(positions, capacity)] = held
        known = zip(self.oldest, self.lengths, strict=True)
        self.oldest = [max(oldest, n - self.reach) for oldest, n in known]

    def place(self, width: int) -> Place:
        """Say where a chunk of so many tokens goes; there is room for it."""
        device, starts = self.keys.device, self.lengths
        if min(starts) == max(starts):
            starts = starts[:1]  # one mask for all
        first = torch.tensor(starts, device=device)
        positions = first[:, None] + torch.arange(width, device=device)
        slots = self.slots(positions, self.capacity)
        return Place(positions, (self.rows(), slots), self.capacity)

    def slots(self, positions: Tensor, capacity: int) -> Tensor:
        """Return in which of so many slots positions of the output are kept."""
        return positions % capacity

    def hidden(self, positions: Tensor, capacity: int) -> Tensor:
        """Say which of T slots a chunk at these positions does not see: R×K -> R×K×T."""
        last = positions[:, -1:]
        slots = torch.arange(capacity, device=positions.device)
        held = (last - (last - slots) % capacity)[:, None]  # R×1×T: the position in each slot
        here = positions[:, :, None]
        return (held > here) | (held < self.window.first(here).clamp(min=0))

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        for length, oldest in zip(lengths, self.oldest, strict=True):
            assert self.window.first(length) >= oldest or oldest == 0, "what it sees is overwritten"
        super().keep(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Pick rows; see Cache.reorder."""
        super().reorder(index, same_source)
        self.oldest = [self.oldest[i] for i in index]
