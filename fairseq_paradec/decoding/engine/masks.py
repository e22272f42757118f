"""Masks of a decoder's self-attention, as a bias that is added to the attention scores.

A mask is one of these:

- ``causal``: a token attends to the cached tokens and to its chunk up to itself; on a WindowCache,
  to those of them in its window;
- ``all``: a token attends to the cached tokens and the whole chunk; all rows have equally many
  cached tokens (a step of a reordered model);
- K×T of bool, True where token i of the chunk attends to slot j; all rows have equally many cached
  tokens (a step whose directions or tokens do not attend to each other);
- R×K of int32: token i of the chunk attends to the cached tokens and to the first mask[r, i] tokens
  of the chunk (a prefix and a block of masks). R is B, or 1 for all rows.
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
    if mask.dtype == torch.bool:
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


def _chunk(cache: Cache, place: Place, seen: Tensor) -> Tensor:
    """Return the bias, R×1×K×T, of a chunk that sees the cached tokens and the mask's."""
    first: Tensor | int = min(cache.lengths)
    if not isinstance(place.positions, slice):
        first = torch.tensor(cache.lengths, device=seen.device)[:, None]
    hidden = torch.arange(place.end, device=seen.device) >= (first + seen)[:, :, None]
    return cache.keys.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf).unsqueeze(1)
