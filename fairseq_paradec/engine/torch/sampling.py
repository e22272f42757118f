"""Draws by torch: what ``engine/sampling.py`` does with arrays, on the tensors' device."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...token_rules import Positions, Sampling, Scored
from ..sampling import Drawing
from .choices import arrays_of, choose, on_device

#: Tokens that are first looked at for topp.
_FEW = 32


def choose_by_draws(log_probs: Tensor, at: Positions, drawing: Drawing) -> Scored:
    """Draw the verifier's choice at every position of a chunk, B×R×V; see there."""
    sampling, chance, draft, drawn_from = drawing
    scored = choose(log_probs, at, draft)
    probs = distributions(sampling, log_probs)
    lots = on_device(chance, probs)
    if drawn_from is None:
        tokens = draw(probs, lots[:, :, 1])
    else:
        q = torch.stack([torch.as_tensor(part).to(probs) for part in drawn_from], dim=1)
        more = probs.size(1) - draft.shape[1]
        wide = (0, probs.size(2) - q.size(2), 0, more)
        tokens = redraw(probs, F.pad(q, wide), F.pad(on_device(draft, probs), (0, more)), lots)
    is_nan = on_device(np.isnan(scored.scores), probs)  # then the output ends at the limit
    tokens = torch.where(is_nan, on_device(scored.tokens, probs), tokens)
    drawn = log_probs.gather(2, tokens[:, :, None]).squeeze(2)
    numbers, scores = arrays_of((tokens, drawn))
    return scored._replace(tokens=numbers, scores=scores)


def draw_draft(
    log_probs: Tensor, at: Positions, sampling: Sampling, chance: np.ndarray
) -> tuple[Scored, Tensor]:
    """Draw the next token for each row: -> it, B×1, and the distribution, B×N; see there."""
    at.restrict(log_probs)
    probs = distributions(sampling, log_probs)
    tokens = draw(probs, on_device(chance, probs)[:, :, 1])
    shares = probs.gather(2, tokens[:, :, None]).squeeze(2).log()
    return Scored(*arrays_of((tokens, shares))), probs[:, 0]


def distributions(sampling: Sampling, log_probs: Tensor) -> Tensor:
    """Truncate and normalise distributions.

    As in fairseq, forbidden tokens' probabilities are missing from the sum that reaches topp.

    Args:
        sampling: says how.
        log_probs: B×R×V, -inf for forbidden tokens.

    Returns:
        B×R×V, of sum 1.
    """
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


def draw(weights: Tensor, chance: Tensor) -> Tensor:
    """Draw a token by each distribution, B×R×V, by B×R random numbers: -> B×R."""
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    tokens = torch.searchsorted(sums, chance[..., None] * sums[..., -1:], right=True)
    return tokens.squeeze(-1).clamp(max=weights.size(-1) - 1)


def redraw(probs: Tensor, draft_probs: Tensor, draft: Tensor, chance: Tensor) -> Tensor:
    """Accept drafted tokens or replace them: B×R draws from ``probs``.

    Args:
        probs: B×R×V, p.
        draft_probs: B×R×V, q; all 0 where nothing is drafted.
        draft: B×R tokens that were drawn from q; any where nothing is drafted.
        chance: B×R×2 random numbers.
    """
    p, q = (each.gather(2, draft[:, :, None]).squeeze(2) for each in (probs, draft_probs))
    is_accepted = chance[:, :, 0] < acceptance(p, q)
    return torch.where(is_accepted, draft, draw(residual(probs, draft_probs), chance[:, :, 1]))


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Return the probability that a token drawn from q is accepted; 0 where q is 0."""
    return torch.where(q > 0, p / q, 0.0).clamp(max=1.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return what a rejected token's replacement is drawn from, ...×V, not normalised.

    Where p equals q no token is rejected, but for rounding; it is then p.
    """
    rest = (p - q).clamp(min=0.0)
    return torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)
