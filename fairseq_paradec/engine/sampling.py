"""Sampling: each position of a sentence has a random number, by which its token is drawn.

A token is drawn by its distribution's inverse: the first one at which the sum of probabilities, in
the dictionary's order, exceeds the position's number. So what a model draws at a position depends
on the tokens before it and on that number alone, as what greedy search takes there depends on the
tokens alone. Every decoder that verifies writes what sampling token by token writes, whatever
drafts; and a sentence's draws do not depend on its batch. A drafter draws by the same numbers:
where its distribution is like the verifier's it draws the same token.

Leviathan, Kalman and Matias 2023 and Chen et al. 2023 keep the distribution in another way: they
accept a draft as often as can be, and draw anew where it is rejected. docs/design.md compares them.
``torch/sampling.py`` does the same as this module by torch.
"""

from typing import Any

import numpy as np

from ..token_rules import Positions, Sampling, Scored

#: Tokens that are first looked at for topp.
_FEW = 32


def choose_by_draws(
    log_probs: np.ndarray, at: Positions, sampling: Sampling, draft: np.ndarray | None = None
) -> Scored:
    """Draw the next token at every position of a chunk.

    Args:
        log_probs: B×R×V, before the rules; written to.
        at: the positions.
        sampling: the distribution.
        draft: B×K drafted tokens, K <= R, whose scores are returned, too; None: there is none.

    Returns:
        The drawn tokens and, as fairseq's scores, their log-probabilities before truncation.
    """
    at.restrict(log_probs)
    probs = distributions(sampling, log_probs)
    tokens = draw(probs, at.lots(log_probs.shape[1]))
    is_nan = np.isnan(probs[:, :, 0])
    if is_nan.any():  # then the output ends at the limit
        tokens = np.where(is_nan, log_probs.argmax(2), tokens)
    scores = np.take_along_axis(log_probs, tokens[:, :, None], 2)[:, :, 0]
    if draft is None:
        return Scored(tokens, scores)
    part = log_probs[:, : draft.shape[1]]
    drafted = np.take_along_axis(part, draft[:, :, None], 2)  # B×K×1
    return Scored(tokens, scores, drafted[:, :, 0], (part > drafted).sum(2))


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


def draw(weights: np.ndarray, lots: np.ndarray) -> np.ndarray:
    """Draw a token by each distribution, B×R×V, that need not be normalised: -> B×R.

    Sums are in fp64, for small shares. With NaN any token is drawn.

    Args:
        weights: the distributions.
        lots: B×R, from 0 to below 1, so that no token of weight 0 is drawn.
    """
    sums = weights.cumsum(2, dtype=np.float64)
    tokens = (sums <= lots[:, :, None] * sums[:, :, -1:]).sum(2)
    return tokens.clip(max=weights.shape[2] - 1)
