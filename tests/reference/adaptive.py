"""Drafting, verifying and adaptive blocks for one sentence, in plain words. Slow.

The rule: a sentence's first block is as long as blocks may be; after that a block is as long as
what the last pass wrote, its own token counted, and one more, but no longer than the first. A pass
without a draft changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from .greedy import Rules
from .jacobi import Run, Sentence, first_guess

#: What is written -> the tokens drafted behind it, as far as the drafter's longest block goes.
Draft = Callable[[Sequence[int]], list[int]]

#: Tokens y_1..y_n -> log P(. | y_1..y_i, x) by the verifier for i = 0..n, (n+1)×V.
Verify = Callable[[Sequence[int]], Tensor]

#: Scores at a position (V, -inf where a token is not allowed), a drafted token -> is it accepted?
Accepts = Callable[[Tensor, int], bool]


@dataclass(frozen=True)
class Pass:
    """One pass: the tokens written before it, and how many it drafted and accepted."""

    start: int
    num_drafted: int
    num_accepted: int


@dataclass
class Result:
    """An output with `</s>`, its tokens' log-probabilities, and every pass."""

    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)


def decode(
    verify: Verify, draft: Draft, rules: Rules, most: int, accepts: Accepts, least: int = 0
) -> Result:
    """Draft a block, at most of `most`, let the verifier judge it, adapt the block.

    The first `least` drafted tokens are accepted unseen.
    """
    result = Result()
    y, block = result.tokens, most
    while rules.eos not in y:
        start = len(y)
        drafted: list[int] = []
        for token in draft(y)[:block]:
            # The last position needs no draft, and neither does what follows </s>.
            if rules.eos not in drafted and start + len(drafted) < rules.max_len:
                drafted.append(token)
        ranked = [
            rules.apply(scores, start + i)
            for i, scores in enumerate(verify([*y, *drafted])[start:])
        ]
        num_accepted = 0
        while num_accepted < len(drafted) and accepts(ranked[num_accepted], drafted[num_accepted]):
            num_accepted += 1
        num_accepted = max(num_accepted, min(least, len(drafted)))
        written = drafted[:num_accepted]
        if rules.eos not in written:
            written.append(int(ranked[num_accepted].argmax()))
        result.scores += [float(ranked[i][token]) for i, token in enumerate(written)]
        y += written
        result.passes.append(Pass(start, len(drafted), num_accepted))
        if drafted:
            block = min(most, len(y) - start + 1)
    return result


def sliding(x: Sentence, most: int, hybrid_length: int | None = None, init: str = "pad") -> Result:
    """Jacobi iteration in a window that slides; single tokens from `hybrid_length` on."""
    end = x.num_positions if hybrid_length is None else min(hybrid_length, x.num_positions)
    result = Result()
    y, block = result.tokens, most
    history: list[Run] = []
    guesses: list[int] = []
    while x.eos not in y:
        start = len(y)
        if start >= end:
            y.append(x.predict([*y, x.pad])[start])
            result.passes.append(Pass(start, 0, 0))
            continue
        size = min(block, end - start)
        guesses = guesses[:size]
        guesses += first_guess(init, x, [*y, *guesses], size - len(guesses), history)
        predicted = x.predict([*y, *guesses])[start:]
        history.append(predicted)
        agreeing = 0
        while agreeing < size and guesses[agreeing] == predicted[agreeing]:
            agreeing += 1
        result.passes.append(Pass(start, size, agreeing))
        final = predicted[: agreeing + 1]  # the last of a block that agrees whole has none behind
        guesses = predicted[len(final) :]
        y += final[: final.index(x.eos) + 1] if x.eos in final else final
        block = min(most, agreeing + 2)
    return result
