"""Sampling from the verifier's distribution, with drafts that a drafter sampled.

Sources: Leviathan, Kalman and Matias 2023, Algorithm 1; Chen et al. 2023, Algorithm 2. p is the
verifier's distribution at a position, q the drafter's. A token x that was drawn from q is accepted
with probability min(1, p(x) / q(x)); a rejected one is replaced by a draw from norm(max(0, p - q)).
Either way the result is a draw from p.

The loop needs no other rule for this than ExactMatch: at each position the verifier's choice is the
accepted draft or its replacement, which differs from the draft because p < q there.

Random numbers come from each row's own stream, as many as the row uses, so that what is drawn for a
sentence does not depend on its batch. ``torch/sampling.py`` draws the same by torch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..row import Row
from ..token_rules import Positions, Sampling, Scored

#: Tokens that are first looked at for topp.
_FEW = 32


class Drawing(NamedTuple):
    """How the verifier's choices of a chunk are drawn."""

    sampling: Sampling  # the distribution
    chance: np.ndarray  # B×R×2, see ``chances``
    draft: np.ndarray  # B×K drafted tokens, K <= R
    # K arrays or tensors of B×N over the first N tokens, what the draft was drawn from; all 0 where
    # a row has no draft. None: no row has one.
    drawn_from: Sequence[Any] | None


def chances(rows: Sequence[Row], counts: Sequence[int]) -> np.ndarray:
    """Take random numbers from the rows' streams.

    Args:
        rows: B rows.
        counts: B, how many positions of each row draw.

    Returns:
        B×R×2 numbers from 0 to below 1, two for each position: whether a draft is accepted, and
        what is drawn; R is the largest count.
    """
    table = np.zeros((len(rows), max(counts), 2))
    for numbers, row, count in zip(table, rows, counts, strict=True):
        assert row.stream is not None
        numbers[:count] = row.stream.random((count, 2))
    return table


def choose_by_draws(log_probs: np.ndarray, at: Positions, drawing: Drawing) -> Scored:
    """Draw the verifier's choice at every position of a chunk.

    Args:
        log_probs: the verifier's, B×R×V, before the rules; written to.
        at: the positions.
        drawing: says how.

    Returns:
        The drawn tokens and, as fairseq's scores, their log-probabilities before truncation; and
        the scores of the draft.
    """
    sampling, chance, draft, drawn_from = drawing
    at.restrict(log_probs)
    part = log_probs[:, : draft.shape[1]]
    drafted = np.take_along_axis(part, draft[:, :, None], 2)  # B×K×1
    probs = distributions(sampling, log_probs)
    if drawn_from is None:
        tokens = draw(probs, chance[:, :, 1])
    else:
        q = np.zeros_like(probs)
        for position, shares in enumerate(drawn_from):
            q[:, position, : shares.shape[1]] = shares
        wide = np.zeros(probs.shape[:2], np.int64)
        wide[:, : draft.shape[1]] = draft
        tokens = redraw(probs, q, wide, chance)
    if np.isnan(probs[:, :, 0]).any():  # then the output ends at the limit
        tokens = np.where(np.isnan(probs[:, :, 0]), log_probs.argmax(2), tokens)
    scores = np.take_along_axis(log_probs, tokens[:, :, None], 2)[:, :, 0]
    return Scored(tokens, scores, drafted[:, :, 0], (part > drafted).sum(2))


def draw_draft(
    log_probs: np.ndarray, at: Positions, sampling: Sampling, chance: np.ndarray
) -> tuple[Scored, np.ndarray]:
    """Draw the next token for each row: -> it, B×1, and the distribution, B×N.

    Args:
        log_probs: the drafter's, B×1×N, before the rules; written to.
        at: the positions.
        sampling: the distribution.
        chance: B×1×2, see ``chances``.
    """
    at.restrict(log_probs)
    probs = distributions(sampling, log_probs)
    tokens = draw(probs, chance[:, :, 1])
    with np.errstate(divide="ignore"):  # a row that draws nothing
        scores = np.log(np.take_along_axis(probs, tokens[:, :, None], 2))[:, :, 0]
    return Scored(tokens, scores), probs[:, 0]


def distributions(sampling: Sampling, log_probs: np.ndarray) -> np.ndarray:
    """Truncate and normalise distributions.

    As in fairseq, forbidden tokens' probabilities are missing from the sum that reaches topp.

    Args:
        sampling: says how.
        log_probs: B×R×V, -inf for forbidden tokens.

    Returns:
        B×R×V, of sum 1.
    """
    probs = np.exp(log_probs - log_probs.max(2, keepdims=True))
    count = log_probs.shape[2]
    if sampling.topp > 0:
        probs = _only(probs, *_likeliest(sampling.topp, log_probs))
    elif 0 < sampling.topk < count:
        probs = _only(probs, _ranked(log_probs, sampling.topk), 1)
    probs /= probs.sum(2, keepdims=True)
    return probs


def _ranked(log_probs: np.ndarray, count: int) -> np.ndarray:
    """Return the likeliest tokens, the best first: B×R×V -> B×R×N, N = ``count``."""
    tokens = np.argpartition(-log_probs, count - 1, axis=2)[:, :, :count]
    order = np.argsort(-np.take_along_axis(log_probs, tokens, 2), axis=2)
    return np.take_along_axis(tokens, order, 2)


def _likeliest(topp: float, log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest tokens, B×R×N, and which of them are kept for topp.

    Most distributions need few tokens; to sort all would take longer than a small model's pass.
    """
    count = log_probs.shape[2]
    width = min(_FEW, count)
    while True:
        tokens = _ranked(log_probs, width)
        shares = np.exp(np.take_along_axis(log_probs, tokens, 2)).cumsum(2)
        if width == count or (shares[:, :, -1] >= topp).all():
            last = (shares < topp).sum(2, keepdims=True)  # that is kept
            return tokens, np.arange(width) <= last
        width = min(4 * width, count)


def _only(probs: np.ndarray, tokens: np.ndarray, kept: Any) -> np.ndarray:
    """Return 0 for all but some tokens, B×R×N, those that are kept."""
    only = np.zeros_like(probs)
    np.put_along_axis(only, tokens, kept * np.take_along_axis(probs, tokens, 2), 2)
    return only


def draw(weights: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Draw a token by each distribution, B×R×V, that need not be normalised: -> B×R.

    Sums are in fp64, for small shares. With NaN any token is drawn.

    Args:
        weights: the distributions.
        chance: B×R, from 0 to below 1, so that no token of weight 0 is drawn.
    """
    sums = weights.cumsum(2, dtype=np.float64)
    tokens = (sums <= chance[:, :, None] * sums[:, :, -1:]).sum(2)
    return tokens.clip(max=weights.shape[2] - 1)


def redraw(
    probs: np.ndarray, draft_probs: np.ndarray, draft: np.ndarray, chance: np.ndarray
) -> np.ndarray:
    """Accept drafted tokens or replace them: B×R draws from ``probs``.

    Args:
        probs: B×R×V, p.
        draft_probs: B×R×V, q; all 0 where nothing is drafted.
        draft: B×R tokens that were drawn from q; any where nothing is drafted.
        chance: B×R×2, see ``chances``.
    """
    p, q = (np.take_along_axis(each, draft[:, :, None], 2)[..., 0] for each in (probs, draft_probs))
    is_accepted = chance[:, :, 0] < acceptance(p, q)
    return np.where(is_accepted, draft, draw(residual(probs, draft_probs), chance[:, :, 1]))


def acceptance(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the probability that a token drawn from q is accepted; 0 where q is 0."""
    return np.divide(p, q, out=np.zeros_like(p), where=q > 0).clip(max=1.0)


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return what a rejected token's replacement is drawn from, ...×V, not normalised.

    Where p equals q no token is rejected, but for rounding; it is then p.
    """
    rest = (p - q).clip(min=0.0)
    return np.where(rest.sum(-1, keepdims=True) > 0, rest, p)
