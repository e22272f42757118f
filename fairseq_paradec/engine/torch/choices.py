"""Choices from torch's scores of all words: what ``Scorer`` returns of them, on the host."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...token_rules import Best, Positions, Scored
from .sampling import distributions, draw


def choose(scores: Tensor, at: Positions, draft: np.ndarray | None = None) -> Scored:
    """Apply the rules and choose at every position: the best token, or one that is drawn.

    Args:
        scores: B×R×V; written to: forbidden tokens become -inf.
        at: the positions.
        draft: B×K drafted tokens, ``<pad>`` after a shorter draft; K <= R.
    """
    at.restrict(scores)
    return _chosen(scores, at, draft)


def choose_traced(scores: Tensor, at: Positions, draft: np.ndarray | None) -> tuple[Scored, Best]:
    """Apply the rules once; return the choices, and the best two tokens at every position."""
    scored = choose(scores, at, draft)
    return scored, _best(scores, at, min(2, scores.size(-1)))


def _chosen(scores: Tensor, at: Positions, draft: np.ndarray | None) -> Scored:
    """Choose by restricted scores; see ``choose``."""
    best, choices = scores.max(dim=-1)
    if at.rules.sampling is not None:
        lots = on_device(at.lots(scores.size(1)), scores)
        drawn = draw(distributions(at.rules.sampling, scores), lots)
        choices = torch.where(best.isnan(), choices, drawn)  # then the output ends at the limit
        best = scores.gather(2, choices[:, :, None]).squeeze(2)
    if draft is None:
        return Scored(*arrays_of((choices, best)))
    part = scores[:, : draft.shape[1]]
    drafted = part.gather(2, on_device(draft, scores)[:, :, None])  # B×K×1
    ranks = part.gt(drafted).sum(dim=2)
    return Scored(*arrays_of((choices, best, drafted.squeeze(2), ranks)))


def candidates(scores: Tensor, at: Positions, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Apply the rules and return the best tokens at every position.

    Args:
        scores: B×R×V; see ``choose``.
        at: the positions.
        count: N, at most V.

    Returns:
        B×R×N tokens and their scores, the best first; of equal ones the token with the lower
        number. Where fewer tokens are allowed, the last scores are -inf.
    """
    at.restrict(scores)
    best, tokens = scores.topk(min(count + 1, scores.size(-1)), dim=-1)
    # Of equal scores topk returns any: this is rare, and a sort takes far longer.
    equal = best[..., 1:].eq(best[..., :-1]) & best[..., 1:].isfinite()
    if bool(equal.any()):
        best, tokens = scores.sort(dim=-1, descending=True, stable=True)
    numbers, values = arrays_of((tokens[..., :count], best[..., :count]))
    return numbers, values


def best_of(scores: Tensor, at: Positions, count: int) -> Best:
    """Apply the rules and return the best tokens at every position, and ``</s>``.

    Args:
        scores: B×R×V; see ``choose``.
        at: the positions.
        count: N, at most V.
    """
    at.restrict(scores)
    return _best(scores, at, count)


def _best(scores: Tensor, at: Positions, count: int) -> Best:
    """Return the best tokens by restricted scores; see ``best_of``."""
    best, tokens = scores.topk(count, dim=-1)
    return Best(*arrays_of((tokens, best, scores[:, :, at.rules.eos])))


def on_device(array: np.ndarray, like: Tensor) -> Tensor:
    """Return an array as a tensor on another tensor's device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)


def arrays_of(parts: Sequence[Tensor], at_once: bool | None = None) -> list[np.ndarray]:
    """Return tensors as arrays.

    Args:
        parts: tensors of one device.
        at_once: whether they come to the host in one copy, for which it waits once. None: from a
            device, they do. They are numbers below 2**53, or in fp32 or fp64.
    """
    if not (parts[0].device.type != "cpu" if at_once is None else at_once):
        return [part.numpy(force=True) for part in parts]
    joined = torch.cat([part.flatten().double() for part in parts]).numpy(force=True)
    pieces = np.split(joined, np.cumsum([part.numel() for part in parts])[:-1])
    return [
        piece.reshape(part.shape).astype(torch.empty(0, dtype=part.dtype).numpy().dtype)
        for piece, part in zip(pieces, parts, strict=True)
    ]
