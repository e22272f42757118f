"""1-D local attention as Parmar et al. (2018) describe it, by loops over positions.

Their section on local self-attention cuts the sequence into query blocks of l_q positions; a query
block has a memory block: itself, and l_m positions before it. No position sees a later one.
"""

import math
from typing import Any

import torch

from . import block_nat


def visible(position: int, block: int, memory: int) -> list[int]:
    """The positions that one sees, by looking for its block from the beginning on (l_q, l_m)."""
    begin = 0
    while begin + block <= position:
        begin += block
    return [other for other in range(position + 1) if begin - memory <= other]


def attend(attention: Any, x: torch.Tensor, block: int, memory: int) -> torch.Tensor:
    """What local attention with this module's weights makes of one sequence, T×D -> T×D."""
    return block_nat.attend(attention, x, x, [visible(i, block, memory) for i in range(len(x))])


def window_mask(length: int, block: int, memory: int) -> torch.Tensor:
    """The T×T mask of full attention that is the same: 0 where seen, -inf where not."""
    mask = torch.full((length, length), -math.inf)
    for i in range(length):
        mask[i, visible(i, block, memory)] = 0.0
    return mask
