"""Masks as a bias that is added to the attention scores; see ``engine/masks.py``."""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from ..masks import Mask, Tree
from .cache import Cache, Place, WindowCache
from .choices import on_device


def attention_bias(cache: Cache, place: Place, mask: Mask) -> Tensor | None:
    """Return the bias of the attention scores: 0 where a slot is attended to, -inf elsewhere.

    Returns:
        K×T, or R×1×K×T; None if every slot is attended to.
    """
    if isinstance(mask, Tree):
        return _tree(cache, place, mask)
    if not isinstance(mask, np.ndarray):
        return None if mask == "all" else _causal(cache, place)
    seen = on_device(mask, cache.keys)
    if seen.dtype == torch.bool:
        return cache.keys.new_zeros(seen.shape).masked_fill_(~seen, -math.inf)
    return _chunk(cache, place, seen)


def _causal(cache: Cache, place: Place) -> Tensor | None:
    """Return the bias of a chunk under causal attention."""
    positions = place.positions
    if isinstance(cache, WindowCache):
        assert isinstance(positions, Tensor)
        hidden = cache.hidden(positions, cache.capacity)
        return cache.keys.new_zeros(hidden.shape).masked_fill(hidden, -math.inf).unsqueeze(1)
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


def _tree(cache: Cache, place: Place, tree: Tree) -> Tensor:
    """Return the bias, B×1×K×T, of a chunk whose tokens see their own paths."""
    width, size = tree.sees.shape[1:]
    bases = np.array(tree.bases)[:, None]
    own = np.array(cache.lengths)[:, None] - bases + np.arange(width)
    sees = tree.sees.copy()
    np.put_along_axis(sees, own[:, :, None], True, axis=2)
    slots = np.arange(place.end) - bases  # B×T: in the tree
    inside = np.broadcast_to(slots.clip(0, size - 1)[:, None], (*sees.shape[:2], place.end))
    seen = np.take_along_axis(sees, inside, axis=2) & (slots < size)[:, None]
    hidden = on_device(~(seen | (slots < 0)[:, None]), cache.keys)
    return cache.keys.new_zeros(hidden.shape).masked_fill_(hidden, -math.inf).unsqueeze(1)
