"""Masks of a decoder's self-attention, as a bias that is added to the attention scores.

A mask is one of these:

- ``causal``: a token attends to the cached tokens and to its chunk up to itself; on a WindowCache,
  to those of them in its window;
- ``all``: a token attends to the cached tokens and the whole chunk; all rows have equally many
  cached tokens (a step of a reordered model);
- K×T, True where token i of the chunk attends to slot j; all rows have equally many cached tokens
  (a step whose directions or tokens do not attend to each other);
- R×K×K, True where token i of the chunk attends to token j of the chunk; all attend to the cached
  tokens (a prefix and a block of masks). R is B, or 1 for all rows.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import torch
from torch import Tensor

from .cache import Cache, Place, WindowCache

Mask = Literal["causal", "all"] | Tensor


def attention_bias(cache: Cache, place: Place, mask: Mask) -> Tensor | None:
    """Return the bias of the attention scores: 0 where a slot is attended to, -inf elsewhere.

    Args:
        cache: the cache, with room for the chunk.
        place: of the chunk in it.
        mask: see above.

    Returns:
        K×T, or R×1×K×T; None if every slot is attended to.
    """
    if not isinstance(mask, Tensor):
        return None if mask == "all" else _causal(cache, place)
    if mask.dim() == 2:
        return cache.keys.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
    return _chunk(cache, place, mask)


def bias_over_slots(cache: Cache, positions: Tensor, keys: Tensor) -> Tensor:
    """Return the causal bias of tokens at these positions over all slots: R×K -> R×1×K×T.

    Args:
        cache: defines which slots are masked.
        positions: R×K.
        keys: the cache's keys and values, L×B×T×2×H×Dh.
    """
    hidden = cache.hidden(positions, keys.size(2))
    blank = torch.zeros(hidden.shape, dtype=keys.dtype, device=keys.device)
    return blank.masked_fill(hidden, -math.inf).unsqueeze(1)


def _causal(cache: Cache, place: Place) -> Tensor | None:
    """Return the bias of a chunk under causal attention."""
    positions = place.positions
    if isinstance(cache, WindowCache):
        assert isinstance(positions, Tensor)
        return bias_over_slots(cache, positions, cache.keys)
    if isinstance(positions, slice) and positions.stop == positions.start + 1:
        return None
    table = _table(cache.capacity, cache.keys.dtype, cache.keys.device)
    bias = table[positions, : place.end]
    return bias if isinstance(positions, slice) else bias.unsqueeze(1)


@functools.lru_cache(maxsize=8)
def _table(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the causal bias of ``size`` positions: row i attends to columns up to i."""
    with torch.inference_mode(False):  # passes with gradients use it too
        return torch.full((size, size), -math.inf, dtype=dtype, device=device).triu(1)


def _chunk(cache: Cache, place: Place, mask: Tensor) -> Tensor:
    """Return the bias, B×1×K×T, of a chunk with all cached tokens and the mask R×K×K in itself."""
    width = mask.size(2)
    bias = cache.keys.new_zeros(len(cache.lengths), 1, width, place.end)
    if isinstance(place.positions, slice):
        bias[:, 0, :, place.positions].masked_fill_(~mask, -math.inf)
        return bias
    first = torch.tensor(cache.lengths, device=mask.device)
    column = torch.arange(place.end, device=mask.device) - first[:, None]  # B×T, in the chunk
    where = column.clamp(0, width - 1)[:, None].expand(-1, width, -1)
    seen = mask.expand(len(cache.lengths), -1, -1).gather(2, where)  # B×K×T
    seen = (seen & (column < width)[:, None]) | (column < 0)[:, None]
    return bias.masked_fill_(~seen[:, None], -math.inf)
