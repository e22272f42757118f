"""Draws by torch: what ``engine/sampling.py`` does with arrays, on the tensors' device."""

import math

import torch
from torch import Tensor

from ...token_rules import Sampling

#: Tokens that are first looked at for topp.
_FEW = 32


def distributions(sampling: Sampling, log_probs: Tensor) -> Tensor:
    """Truncate and normalise distributions, B×R×V; see there."""
    if sampling.topp > 0:
        is_kept = _likeliest(sampling.topp, log_probs.exp())
    elif sampling.topk > 0:
        tokens = log_probs.topk(min(sampling.topk, log_probs.size(-1)), dim=-1).indices
        is_kept = torch.zeros_like(log_probs, dtype=torch.bool).scatter(-1, tokens, True)
    else:
        return log_probs.softmax(dim=-1)
    return log_probs.masked_fill(~is_kept, -math.inf).softmax(dim=-1)


def _likeliest(topp: float, probs: Tensor) -> Tensor:
    """Return which tokens are kept for topp: B×R×V booleans.

    Most distributions need few tokens; to sort all would take longer than a small model's pass.
    """
    size, width = probs.size(-1), min(_FEW, probs.size(-1))
    rows = probs.flatten(0, -2)
    is_kept = torch.zeros_like(rows, dtype=torch.bool)
    open_rows = torch.arange(len(rows), device=rows.device)
    while True:
        top, tokens = rows[open_rows].topk(width, dim=-1)
        last = (top.cumsum(dim=-1) < topp).sum(dim=-1, keepdim=True)  # that is kept
        kept = torch.arange(width, device=rows.device) <= last
        is_kept[open_rows[:, None], tokens] = kept
        open_rows = open_rows[last[:, 0] >= width]
        if width == size or len(open_rows) == 0:
            return is_kept.view_as(probs)
        width = min(4 * width, size)


def draw(weights: Tensor, lots: Tensor) -> Tensor:
    """Draw a token by each distribution, B×R×V, by B×R random numbers: -> B×R."""
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    tokens = torch.searchsorted(sums, lots[..., None] * sums[..., -1:], right=True)
    return tokens.squeeze(-1).clamp(max=weights.size(-1) - 1)
