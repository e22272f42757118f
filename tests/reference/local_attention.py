"""1-D local attention as Parmar et al. (2018) describe it, by loops over positions.

Their section on local self-attention cuts the sequence into query blocks of l_q positions; a query
block has a memory block: itself, and l_m positions before it. No position sees a later one.
"""

from __future__ import annotations

import math

import torch


def visible(position: int, block: int, memory: int) -> list[int]:
    """The positions that one sees, by looking for its block from the beginning on (l_q, l_m)."""
    begin = 0
    while begin + block <= position:
        begin += block
    return [other for other in range(position + 1) if begin - memory <= other]


def attend(
    x: torch.Tensor, weights: dict[str, torch.Tensor], heads: int, block: int, memory: int
) -> torch.Tensor:
    """What local attention with fairseq's weights makes of one sequence, T×D -> T×D."""
    length, dim = x.shape
    size = dim // heads

    def project(name: str, states: torch.Tensor) -> torch.Tensor:
        return states @ weights[f"{name}_proj.weight"].t() + weights[f"{name}_proj.bias"]

    queries, keys, values = (project(name, x) for name in "qkv")
    rows = []
    for i in range(length):
        parts = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            seen = visible(i, block, memory)
            scores = [(queries[i, part] * keys[j, part]).sum() / math.sqrt(size) for j in seen]
            shares = [torch.exp(score - max(scores).detach()) for score in scores]
            total = sum(shares)
            mixed = sum(s * values[j, part] for s, j in zip(shares, seen, strict=True))
            parts.append(mixed / total)
        rows.append(torch.cat(parts))
    return project("out", torch.stack(rows))


def window_mask(length: int, block: int, memory: int) -> torch.Tensor:
    """The T×T mask of full attention that is the same: 0 where seen, -inf where not."""
    mask = torch.full((length, length), -math.inf)
    for i in range(length):
        mask[i, visible(i, block, memory)] = 0.0
    return mask
