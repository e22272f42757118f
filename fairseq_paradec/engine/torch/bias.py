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


def slots_seen(bias: Tensor | None, end: int, is_tree: bool, positions: slice | Tensor) -> Tensor:
    """Return the positions of the tokens in slots, T, or in a tree as each token sees them, B×K×T.

    A token of a tree sees one token of each position before it, in slots that ascend.

    Args:
        bias: of ``attention_bias``.
        end: T.
        is_tree: whether slots are those of a tree.
        positions: of the chunk's tokens.
    """
    if not is_tree or bias is None:
        device = positions.device if isinstance(positions, Tensor) else None
        return torch.arange(end, device=device if bias is None else bias.device)
    return bias.isfinite().cumsum(-1).squeeze(1) - 1


def by_distance(table: Tensor, queries: slice | Tensor, keys: Tensor) -> Tensor:
    """Return biases by distance: H×K×T, or R×H×K×T.

    Args:
        table: H×(2·R+1), from distance -R to R; a farther key has the bias of that end.
        queries: positions, K of them or R×K.
        keys: positions, T or R×K×T.
    """
    if isinstance(queries, slice):
        queries = torch.arange(queries.start, queries.stop, device=table.device)
    reach = table.size(1) // 2
    biases = table[:, (keys - queries[..., None]).clamp(-reach, reach) + reach]
    return biases if biases.dim() == 3 else biases.transpose(0, 1)
