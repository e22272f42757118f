"""Masks of a decoder's self-attention.

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

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np


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
