"""Who sees whom in a decoder's self-attention, as what is added to its scores.

A mask is one of these:

- ``causal``: a token sees what is cached and its chunk up to itself; of that, on a WindowCache,
  what lies in its window;
- ``all``: a token sees what is cached and the whole chunk, in rows that have cached equally many
  tokens (a step of a reordered model);
- K×T, True where token i of the chunk sees slot j, in such rows (a step whose directions or tokens
  do not see each other);
- R×K×K, True where token i of the chunk sees token j of it; what is cached is seen (a prefix and a
  block of masks). R is B, or 1: the same for all rows.
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
    """Return what is added to the scores: 0 where a slot is seen, -inf where not.

    Args:
        cache: the cache, with room for the chunk.
        place: of the chunk in it.
        mask: see above.

    Returns:
        K×T, or R×1×K×T; None if all is seen.
    """
    if not isinstance(mask, Tensor):
        return None if mask == "all" else _causal(cache, place)
    if mask.dim() == 2:
        return cache.keys.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)
    return _chunk(cache, place, mask)


def bias_over_slots(cache: Cache, positions: Tensor, keys: Tensor) -> Tensor:
    """Return the causal bias of tokens at these positions over all slots: R×K -> R×1×K×T.

    Args:
        cache: says which slots are seen.
        positions: R×K.
        keys: its own, L×B×T×2×H×Dh.
    """
    hidden = cache.hidden(positions, keys.size(2))
    blank = torch.zeros(hidden.shape, dtype=keys.dtype, device=keys.device)
    return blank.masked_fill(hidden, -math.inf).unsqueeze(1)


def _causal(cache: Cache, place: Place) -> Tensor | None:
    """Return the bias of a chunk whose tokens see what is written before them."""
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
    """Return the causal bias of so many positions: row i may see columns up to i."""
    with torch.inference_mode(False):  # it is for passes with gradients, too
        return torch.full((size, size), -math.inf, dtype=dtype, device=device).triu(1)


def _chunk(cache: Cache, place: Place, mask: Tensor) -> Tensor:
    """Return the bias, R×1×K×T, of a chunk that sees all that is cached, and of itself R×K×K."""
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
