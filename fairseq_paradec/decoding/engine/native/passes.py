"""Native passes over a cache, and native encoders."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..masks import Mask
from .library import Chunk, Store, library
from .stack import NativeMap, NativeStack, Workspace

INITIAL_CAPACITY = 64
_INDEX = torch.int32


class NativeWeights(NamedTuple):
    """All that a native pass reads of a decoder.

    Attributes:
        stack: its layers.
        source_keys: all layers' keys and values of the source in one map, (L·2·H·Dp)×C.
        workspace: where passes compute.
    """

    stack: NativeStack
    source_keys: NativeMap
    workspace: Workspace


class NativeCache:
    """Keys and values of a batch's source and tokens, each row with a length of its own.

    Keys lie slot beside slot, so that one vector holds those of several slots.

    Args:
        weights: of the decoder.
        states: B×S×C, the encoder's.
        padding: B×S, True at padding, on either side; None: there is none.
        capacity: how many tokens it holds at first.

    Attributes:
        keys: L×B×H×Dp×T, of the tokens.
        values: L×B×H×T×Dp.
        source: the same two of the source.
        source_lengths: B, without padding.
        lengths: of each row, how many tokens are cached.
        compiled: False.
    """

    compiled = False

    def __init__(
        self,
        weights: NativeWeights,
        states: Tensor,
        padding: Tensor | None,
        capacity: int = INITIAL_CAPACITY,
    ) -> None:
        stack = weights.stack
        self.lanes = stack.lanes
        batch, length = states.shape[:2]
        lengths = [length] * batch
        if padding is not None and bool(padding.any()):
            lengths = (~padding).sum(dim=1).tolist()
            # A stable sort moves padding behind the tokens.
            order = padding.to(torch.int8).argsort(dim=1, stable=True)
            states = states.gather(1, order[:, :, None].expand_as(states))
        projected = weights.source_keys(states)  # B×S×(L·2·H·Dp)
        shape = (batch, length, stack.num_layers, 2, stack.heads, stack.head_size)
        keys, values = projected.view(shape).permute(3, 2, 0, 4, 1, 5)  # 2 of L×B×H×S×Dp
        blank = -length % self.lanes
        self.source = (
            F.pad(keys.transpose(3, 4), (0, blank)).contiguous(),
            F.pad(values, (0, 0, 0, blank)).contiguous(),
        )
        self.source_lengths = torch.tensor(lengths, dtype=_INDEX)
        self.lengths = [0] * batch
        self._shape = (stack.num_layers, stack.heads, stack.head_size)
        self.keys, self.values = self._empty(batch, capacity)

    @property
    def capacity(self) -> int:
        """How many slots a row has, T."""
        return self.keys.size(4)

    def _empty(self, batch: int, capacity: int) -> tuple[Tensor, Tensor]:
        """Return blank keys and values; zeros, for 0·NaN in a masked slot would be NaN."""
        layers, heads, size = self._shape
        return (
            torch.zeros(layers, batch, heads, size, capacity),
            torch.zeros(layers, batch, heads, capacity, size),
        )

    def make_room(self, width: int) -> None:
        """Let a chunk of so many tokens fit behind each row."""
        end, capacity, old = max(self.lengths) + width, self.capacity, self.capacity
        if end > capacity:
            while capacity < end:
                capacity *= 2
            keys, values = self._empty(self.keys.size(1), capacity)
            keys[..., :old] = self.keys
            values[:, :, :, :old] = self.values
            self.keys, self.values = keys, values

    def keep(self, lengths: Sequence[int]) -> None:
        """Roll back: of row b, only the first ``lengths[b]`` tokens stay cached."""
        self.lengths = list(lengths)

    def reorder(self, index: Sequence[int], same_source: bool = False) -> None:
        """Make row ``index[b]`` the new row b; see ``Cache.reorder``."""
        picked = torch.tensor(index)
        self.lengths = [self.lengths[i] for i in index]
        self.keys = self.keys.index_select(1, picked)
        self.values = self.values.index_select(1, picked)
        if not same_source:
            keys, values = self.source
            self.source = keys.index_select(1, picked), values.index_select(1, picked)
            self.source_lengths = self.source_lengths.index_select(0, picked)


#: 0, 1, 2, ... and zeros, from which a single row's places are cut.
_COUNT = torch.arange(8192, dtype=_INDEX)
_ZEROS = torch.zeros(8192, dtype=_INDEX)


def native_pass(
    weights: NativeWeights, cache: NativeCache, tokens: Tensor, mask: Mask = "causal"
) -> Tensor:
    """Run the decoder over one chunk per row; see ``decoder_pass``."""
    batch, width = tokens.shape
    stack = weights.stack
    cache.make_room(width)
    starts, count = cache.lengths, batch * width
    if batch == 1 and starts[0] + width < len(_COUNT):
        row, place = _ZEROS, _COUNT[starts[0] :]
        end = _COUNT[starts[0] + 1 :]
    else:
        row = _COUNT[:batch].repeat_interleave(width)
        first = torch.tensor(starts, dtype=_INDEX)[:, None]
        place = (first + _COUNT[:width]).reshape(-1)
        end = place + 1
    seen, seen_stride = None, 0
    if mask == "all":
        end = (torch.tensor(starts, dtype=_INDEX) + width).repeat_interleave(width)
    elif isinstance(mask, Tensor) and mask.dim() == 2:  # K×T, rows of one length
        seen = mask.to(torch.uint8).repeat(batch, 1)
        seen_stride = seen.size(1)
        end = torch.full((count,), seen_stride, dtype=_INDEX)
    elif isinstance(mask, Tensor):
        # R×K×K: a token sees a start of its chunk.
        most = mask.sum(dim=2, dtype=_INDEX)
        end = (torch.tensor(starts, dtype=_INDEX)[:, None] + most).reshape(-1).contiguous()
    tokens = tokens.contiguous()
    states = torch.empty(batch, width, stack.stride)
    chunk = Chunk(
        count, tokens.data_ptr(), row.data_ptr(), place.data_ptr(), end.data_ptr(),
        None if seen is None else seen.data_ptr(), seen_stride,
    )  # fmt: skip
    own = Store(cache.keys.data_ptr(), cache.values.data_ptr(), batch, cache.capacity, None)
    keys, values = cache.source
    source = Store(
        keys.data_ptr(), values.data_ptr(), batch, keys.size(4), cache.source_lengths.data_ptr()
    )
    _run(stack, chunk, own, source, states, weights.workspace)
    return states[..., : stack.dim]


def native_encode(
    stack: NativeStack, tokens: Tensor, padding: Tensor | None, workspace: Workspace
) -> Tensor:
    """Run an encoder's layers: B×S tokens -> B×S×D, zero at padding.

    Args:
        stack: of the encoder.
        tokens: B×S.
        padding: B×S, True at padding; None: there is none.
        workspace: where it computes.
    """
    batch, length = tokens.shape
    slots = -(-length // stack.lanes) * stack.lanes
    if padding is None:
        flat = tokens.reshape(-1)
        row = _COUNT[:batch].repeat_interleave(length)
        place = _COUNT[:length].repeat(batch)
        until = torch.full((batch * length,), length, dtype=_INDEX)
    else:
        real = ~padding
        flat = tokens[real]
        lengths = real.sum(dim=1, dtype=_INDEX)
        row = _COUNT[:batch].repeat_interleave(lengths)
        place = (real.cumsum(dim=1, dtype=_INDEX) - 1)[real]
        until = lengths.repeat_interleave(lengths)
    flat = flat.contiguous()
    keys = torch.zeros(stack.num_layers, batch, stack.heads, stack.head_size, slots)
    values = torch.zeros(stack.num_layers, batch, stack.heads, slots, stack.head_size)
    states = torch.empty(len(flat), stack.stride)
    chunk = Chunk(
        len(flat), flat.data_ptr(), row.data_ptr(), place.data_ptr(), until.data_ptr(), None, 0
    )
    own = Store(keys.data_ptr(), values.data_ptr(), batch, slots, None)
    _run(stack, chunk, own, None, states, workspace)
    if padding is None:
        return states.view(batch, length, -1)[..., : stack.dim]
    out = torch.zeros(batch, length, stack.dim)
    out[~padding] = states[:, : stack.dim]
    return out


def _run(
    stack: NativeStack,
    chunk: Any,
    own: Any,
    source: Any,
    states: Tensor,
    workspace: Workspace,
) -> None:
    """Call the library."""
    status = library().paradec_pass(
        stack.address, ctypes.byref(chunk), ctypes.byref(own),
        None if source is None else ctypes.byref(source), states.data_ptr(), workspace.address,
    )  # fmt: skip
    if status != 0:
        raise MemoryError("no room for a native pass")
