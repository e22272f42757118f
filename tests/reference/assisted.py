"""Speculative decoding on one sentence, as Leviathan et al. 2023 have it for greedy search. Slow.

No cache, no batch: every drafted token takes a full forward of the drafter over all before it, and
every pass one of the verifier.
"""

import math
from collections.abc import Sequence

from .gad import Result, Verify, accept
from .greedy import Rules


def assisted(
    verify: Verify,
    draft: Verify,
    rules: Rules,
    block_size: int,
    draft_confidence: float = 0.0,
    accept_topk: int = 1,
    accept_margin: float = 0.0,
    adaptive_block: bool = False,
) -> Result:
    """Decode; `draft` is the drafter's log-probabilities, like `verify`."""
    result = Result()
    y, size = result.tokens, block_size
    while rules.eos not in y:
        drafted = said(draft, rules, y, size, draft_confidence)
        accepted = accept(result, verify, drafted, rules, accept_topk, accept_margin)
        if adaptive_block:
            size = min(block_size, accepted + 2)
    return result


def said(
    draft: Verify, rules: Rules, y: Sequence[int], size: int, draft_confidence: float
) -> list[int]:
    """What the drafter says behind `y`, token by token."""
    start = len(y)
    drafted: list[int] = []
    sure = 1.0
    while len(drafted) < size and start + len(drafted) < rules.max_len:
        position = start + len(drafted)
        text = [*y, *drafted]
        scores = rules.apply(draft(text)[-1], position, text)
        drafted.append(int(scores.argmax()))
        sure *= math.exp(float(scores.max()))
        if drafted[-1] == rules.eos or sure < draft_confidence:
            break
    return drafted
