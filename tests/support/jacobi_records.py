"""Records of Jacobi decoding, written by hand."""

from __future__ import annotations

import math
from typing import Any


def one_pass(start: int, verifier: str, committed: int, accepted: int = 0) -> dict[str, Any]:
    """A pass whose tokens have the probabilities 0.91, 0.82, 0.73 ... and runners-up in capitals.

    Pass and position are in the probability, so that none stands for another.
    """
    tokens = verifier.split()
    guesses = tokens[:accepted] + ["<pad>"] * (len(tokens) - accepted)
    scores = [math.log(0.99 - 0.1 * start - 0.01 * i) for i in range(len(tokens))]
    return {
        "start": start,
        "num_accepted": accepted,
        "num_committed": committed,
        "draft": guesses,
        "verifier": tokens,
        "log_probs": scores,
        "runner_up": [token.upper() for token in tokens],
        "runner_up_log_probs": [score - 1 for score in scores],
    }


def record(output: str, *passes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"decoding": "pj", "output": output.split(), "trace": list(passes)} | more


#: `b` is right, then wrong, then right; `d` before `c` to its left.
FIVE = record(
    "a b c d </s>",
    one_pass(0, "a b x x y", 1),
    one_pass(1, "x x d y", 0),
    one_pass(1, "b x d y", 1),
    one_pass(2, "c d </s>", 3),
    source=["s", "</s>"],
)
