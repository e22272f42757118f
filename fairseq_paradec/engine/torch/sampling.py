"""Sampling from the verifier's distribution, with drafts that a drafter sampled.

Sources: Leviathan, Kalman and Matias 2023, Algorithm 1; Chen et al. 2023, Algorithm 2. p is the
verifier's distribution at a position, q the drafter's. A token x that was drawn from q is accepted
with probability min(1, p(x) / q(x)); a rejected one is replaced by a draw from norm(max(0, p - q)).
Either way the result is a draw from p.

The loop needs no other rule for this than ExactMatch: at each position the verifier's choice is the
accepted draft or its replacement, which differs from the draft because p < q there.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...token_rules import Positions, Sampling, Scored
from .choices import arrays_of, choose, on_device

#: Tokens of a part of the vocabulary; see ``draw``.
_PART = 128
#: Tokens that are first looked at for topp.
_FEW = 32


def choose_by_draws(
    scorer: Any,
    hidden: Any,
    at: Positions,
    sampling: Sampling,
    draft: np.ndarray,
    drawn_from: Sequence[Any] | None,
) -> Scored:
    """Draw the verifier's choice at every position of a chunk.

    Args:
        scorer: the verifier.
        hidden: of its pass.
        at: the positions.
        sampling: the distribution.
        draft: B×K drafted tokens, K <= R.
        drawn_from: K tensors of B×N over the first N tokens, what they were drawn from; all 0 where
            a row has no draft. None: no row has a draft.

    Returns:
        The drawn tokens and, as fairseq's scores, their log-probabilities before truncation; and
        the scores of the draft.
    """
    log_probs = scorer.log_probs(hidden, at.rules.temperature)  # B×R×V
    scored = choose(log_probs, at, draft)
    probs = distributions(sampling, log_probs)
    if drawn_from is None:
        tokens = draw(probs)
    else:
        q = torch.stack([torch.as_tensor(part).to(probs) for part in drawn_from], dim=1)
        more = probs.size(1) - draft.shape[1]
        wide = (0, probs.size(2) - q.size(2), 0, more)
        tokens = redraw(probs, F.pad(q, wide), F.pad(on_device(draft, probs), (0, more)))
    is_nan = on_device(np.isnan(scored.scores), probs)  # then the output ends at the limit
    tokens = torch.where(is_nan, on_device(scored.tokens, probs), tokens)
    drawn = log_probs.gather(2, tokens[:, :, None]).squeeze(2)
    numbers, scores = arrays_of((tokens, drawn))
    return scored._replace(tokens=numbers, scores=scores)


def draw_draft(
    projection: Any, hidden: Any, at: Positions, sampling: Sampling
) -> tuple[Scored, Tensor]:
    """Draw the next token for each row: -> it, B×1, and the distribution, B×N.

    Args:
        projection: the drafter's.
        hidden: B×1×D, what it reads.
        at: the positions.
        sampling: the distribution.
    """
    log_probs = projection.log_probs(hidden, at.rules.temperature)
    at.restrict(log_probs)
    probs = distributions(sampling, log_probs)
    tokens = draw(probs)
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


def draw(weights: Tensor) -> Tensor:
    """Draw a token by each distribution, ...×V -> ..., with torch's random numbers.

    The distributions need not be normalised. A part of the vocabulary is drawn, and a token of it:
    that takes one sum over the vocabulary. With NaN any token is drawn.
    """
    parts = F.pad(weights, (0, -weights.size(-1) % _PART)).unflatten(-1, (-1, _PART))
    part = _draw(parts.sum(dim=-1))
    tokens = part * _PART + _draw(parts.take_along_dim(part[..., None, None], -2).squeeze(-2))
    return tokens.clamp(max=weights.size(-1) - 1)


def _draw(weights: Tensor) -> Tensor:
    """Draw an index by each distribution, ...×N -> ...; in fp64, for small shares."""
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    share = torch.rand_like(sums[..., :1])  # below 1, so that no index of weight 0 is drawn
    index = torch.searchsorted(sums, share * sums[..., -1:], right=True)
    return index.squeeze(-1).clamp(max=weights.size(-1) - 1)


def redraw(probs: Tensor, draft_probs: Tensor, draft: Tensor) -> Tensor:
    """Accept drafted tokens or replace them: B×R draws from ``probs``.

    Args:
        probs: B×R×V, p.
        draft_probs: B×R×V, q; all 0 where nothing is drafted.
        draft: B×R tokens that were drawn from q; any where nothing is drafted.
    """
    p, q = (each.gather(2, draft[:, :, None]).squeeze(2) for each in (probs, draft_probs))
    is_accepted = torch.rand_like(p) < acceptance(p, q)
    return torch.where(is_accepted, draft, draw(residual(probs, draft_probs)))


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Return the probability that a token drawn from q is accepted; 0 where q is 0."""
    return torch.where(q > 0, p / q, 0.0).clamp(max=1.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return what a rejected token's replacement is drawn from, ...×V, not normalised.

    Where p equals q no token is rejected, but for rounding; it is then p.
    """
    rest = (p - q).clamp(min=0.0)
    return torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, p)
