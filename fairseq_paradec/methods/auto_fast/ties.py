"""Whether an output that differs from greedy's is a tie, by the scores of both."""

from __future__ import annotations

import math

import torch

from ...decoding.audit import TIE_GAP
from ...decoding.row import Row

# Below this precision rounding alone makes log-probabilities differ by about so much.
_COARSE_GAP = {torch.float16: 0.02, torch.bfloat16: 0.15}
_ENGINE = {"fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.bfloat16}


def tie_gap(dtype: torch.dtype, engine_dtype: str | None) -> float:
    """Return up to which difference of log-probabilities two tokens tie.

    Args:
        dtype: of the model's weights.
        engine_dtype: ``--engine-dtype``.
    """
    return _COARSE_GAP.get(_ENGINE.get(engine_dtype or "", dtype), TIE_GAP)


def gap(ours: Row, other: Row) -> float:
    """Return how far apart the scores are where two outputs part; inf where that is no tie.

    Two tokens of one distribution cannot both have more than half of it: where both scores say so,
    they are of different ones, and one of the outputs is wrong.
    """
    pairs = zip(ours.tokens, other.tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return math.inf
    apart = abs(ours.scores[at] - other.scores[at])
    both = math.exp(ours.scores[at]) + math.exp(other.scores[at])
    return apart if both <= 1 + apart else math.inf
