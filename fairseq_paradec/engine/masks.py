"""Masks of a decoder's self-attention, as a bias that is added to the attention scores.

A mask is one of these:

- ``causal``: a token attends to the cached tokens and to its chunk up to itself; on a WindowCache,
  to those of them in its window;
- ``all``: a token attends to the cached tokens and the whole chunk; all rows have equally many
  cached tokens (a step of a reordered model);
- K×T of bool, True where token i of the chunk attends to slot j; all rows have equally many cached
  tokens (a step whose directions or tokens do not attend to each other);
- R×K of int32: token i of the chunk attends to the cached tokens and to the first mask[r, i] tokens
  of the chunk (a prefix and a block of masks). R is B, or 1 for all rows;
- a Tree: a token attends to its own path.
"""

import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .cache import Cache, Place, WindowCache
from .choices import on_device


class Tree(NamedTuple):
    """Several continuations of each row, which share their beginnings (Miao et al. 2024).

    A chunk's tokens are written behind the cached ones, ``cache.lengths``, as ever. A token sees
    the tokens before the tree, itself, and its ancestors in the tree, whose slots ascend. Several
    passes may write into one tree. What a filling token of a short row sees, and its depth, have no
    effect on others.
    """

    # B, the first slot of each row's tree; all its tokens see the slots before it
    bases: Sequence[int]
    # B×K×M of bool: token i of row b sees slot ``bases[b] + j`` where sees[b, i, j], and its own. M
    # reaches at least to the end of each row's chunk; later slots are not seen.
    sees: np.ndarray
    depths: np.ndarray  # B×K of int32: token i of row b is at position ``bases[b] + depths[b, i]``

    def positions(self) -> np.ndarray:
        """Return the tokens' positions in the output, B×K."""
        positions: np.ndarray = np.array(self.bases)[:, None] + self.depths
        return positions


Mask = Literal["causal", "all"] | np.ndarray | Tree


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
