"""GAD and GAD++ on one sentence, step by step as the paper has them. Slow.

Xia et al. 2022. No cache, no batch: in every iteration the drafter reads the whole prefix and k
masks (section 3, Draft), and the verifier makes a full forward over prefix and draft (Verify).
Everything is counted, nothing inferred.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from .block_nat import block_logits
from .greedy import Rules, known_log_probs

#: The translated prefix y_1..y_j -> the drafter's scores at the k masks behind it, k×V.
Draft = Callable[[Sequence[int]], Tensor]

#: Tokens y_1..y_n -> log P(. | y_1..y_i, x) by the verifier for i = 0..n, (n+1)×V.
Verify = Callable[[Sequence[int]], Tensor]


@dataclass(frozen=True)
class Pass:
    """One iteration."""

    start: int  # how many tokens were translated before it
    draft: tuple[int, ...]  # what the drafter proposed
    num_accepted: int  # how many of these the verifier let pass


@dataclass
class Result:
    """A translation with `</s>`, its tokens' log-probabilities, and how it came about."""

    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)


def verifier(models: Sequence[TransformerModelBase], source: Sequence[int], rules: Rules) -> Verify:
    """fairseq's full forward of the verifier, or of several as an ensemble."""
    return known_log_probs(models, source, rules)


def drafter(model: Any, source: Sequence[int], block_size: int, attention: str) -> Draft:
    """A model of --arch block_nat, in plain arithmetic."""

    @functools.cache
    def draft(prefix: tuple[int, ...]) -> Tensor:
        return block_logits(model, source, prefix, [None] * block_size, attention)

    return lambda prefix: draft(tuple(prefix))


def gad(
    verify: Verify,
    draft: Draft,
    rules: Rules,
    top_beta: int = 1,
    tau: float = 0.0,
    adaptive: bool = False,
) -> Result:
    """Section 3's loop; with top_beta and tau section 4's.

    Adaptive, a block is as long as what the last pass wrote, its own token counted, and one more.
    """
    result = Result()
    y, size = result.tokens, None
    while rules.eos not in y:
        start = len(y)
        # Draft. What greedy search may not choose, a draft need not hold.
        drafted: list[int] = []
        for i, scores in enumerate(draft(y)[:size]):
            if start + i < rules.max_len and rules.eos not in drafted:
                log_probs = (scores / rules.temperature).log_softmax(dim=-1)
                scores = rules.apply(log_probs, start + i, y if i == 0 else None)
                drafted.append(int(scores.argmax()))
        accepted = accept(result, verify, drafted, rules, top_beta, tau)
        size = accepted + 2 if adaptive else None
    return result


def accept(
    result: Result, verify: Verify, drafted: list[int], rules: Rules, top_beta: int, tau: float
) -> int:
    """Verify: accept the draft's start, and let the verifier say one more; return how many."""
    y, start = result.tokens, len(result.tokens)
    log_probs = verify([*y, *drafted])
    num_accepted = 0
    for token in drafted:
        scores = rules.apply(log_probs[len(y)], len(y), y)
        if not passes(scores, token, top_beta, tau):
            break
        num_accepted += 1
        result.scores.append(float(scores[token]))
        y.append(token)
    # At the bifurcation, or behind a draft that was right: the verifier's own token.
    if rules.eos not in y:
        scores = rules.apply(log_probs[len(y)], len(y), y)
        result.scores.append(float(scores.max()))
        y.append(int(scores.argmax()))
    result.passes.append(Pass(start, tuple(drafted), num_accepted))
    return num_accepted


def passes(scores: Tensor, token: int, top_beta: int, tau: float) -> bool:
    """Whether a drafted token is accepted: equation 5, or if that is loosened 6 and 7."""
    if top_beta == 1 or tau == 0:
        return token == int(scores.argmax())
    ranked = sorted(scores.tolist(), reverse=True)
    beta_th = ranked[min(top_beta, len(ranked)) - 1]
    score = float(scores[token])
    return score > -math.inf and score >= beta_th and ranked[0] - score <= tau


def nat(draft: Draft, rules: Rules) -> Result:
    """The drafter alone (Table 1): each block is the translation, nobody verifies it."""
    result = Result()
    y = result.tokens
    while rules.eos not in y:
        start = len(y)
        for i, logits in enumerate(draft(y[:start])):
            if start + i > rules.max_len or rules.eos in y:
                break
            log_probs = (logits / rules.temperature).log_softmax(dim=-1)
            scores = rules.apply(log_probs, start + i, None)
            result.scores.append(float(scores.max()))
            y.append(int(scores.argmax()))
        result.passes.append(Pass(start, (), 0))
    return result
